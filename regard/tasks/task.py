"""What every task answers to: the trainer, `ask` and `score` know no more of it than this."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from regard.data import in_length_order
from regard.text import Tokenizer

from .answers import Answer
from .batches import Batch, Bucketed


class Task:
    """Usual answers; a task has its own to some of them.

    It also has, each in its own way: `read` (files to data, with what follows from them), `held_out` (data to
    score on), `collated` (rows of the data as a batch), `loss` (a sum over predictions), `metrics` (what sums
    mean to people), `sample` (what to show meanwhile), `answers`.
    """

    kinds: tuple[str, ...]  # of models that can do it
    specials: tuple[str, ...]  # tokens that a tokenizer must have for it
    data: type[Any]  # the settings of its data
    builtin: tuple[tuple[str, ...], tuple[str, ...]]  # files to learn from, to measure on, if none are given
    generation: ClassVar[dict[str, Any]] = {}  # usual options of `ask`
    extras: tuple[str, ...] = ()  # options of `ask` that only this task has
    at_once = 512  # texts from a pipe, answered together: enough to sort them by length
    steady = False  # all batches have the same shape, worth compiling for
    talks = False  # and remembers what was said
    whole = False  # a step's batch cannot be cut into parts
    compares = False  # answers with references
    weighs = False  # answers are told with their scores
    best: str | None = None  # of its metrics, what is highest for the best model; none: its loss is lowest
    inherits: tuple[str, ...] = ()  # settings that it takes over from a model of its kind, to start from
    target_tokenizer: Tokenizer | None = None  # where what is written has a vocabulary of its own
    loss: Callable[..., Tensor]  # of a model on a batch: the sum over all predictions
    collated: Callable[..., Batch]  # rows of the data
    answers: Callable[..., list[list[Answer]]]  # to texts: some to each

    # making a model

    @classmethod
    def headed(cls, model: Any, config: Any) -> Any:
        """The model with what the task puts on it."""
        return model

    @classmethod
    def primed(cls, model: Any, data: Any) -> None:
        """Gives a new model what it starts from, if that is not chance alone."""

    def lengths(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Of both sides of every row; twice the same, if it has one."""
        return data.ids.lengths, data.ids.lengths

    def training(self, data: Any, seed: int, rows: int, tokens: int | None) -> Any:
        """Samples by step, in an order that the seed decides: `rows`, `notes`."""
        return Bucketed(data, self.lengths(data), seed, rows, tokens)

    def batch(self, samples: Any, rows: np.ndarray) -> Batch:
        return self.collated(samples.data, rows)

    def in_order(self, data: Any, tokens: int) -> Iterator[Batch]:
        """All of the data once; about so many tokens at a time."""
        for rows in in_length_order(*self.lengths(data), tokens):
            yield self.collated(data, rows)

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """What `metrics` needs of a batch, as sums: the loss, and more in some tasks."""
        return self.loss(model, *batch)

    def covered(self, batch: Batch) -> int:
        """How much of the data a batch holds, as `len` counts it."""
        return len(batch[0])

    def finish(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """What a finished run keeps besides."""

    # using it

    def ask(self, *asked: Any, **options: Any) -> Iterator[list[str]]:
        """The answers as they come: all at once, if they can't be told piece by piece."""
        yield [answer.text for several in self.answers(*asked, **options) for answer in several]

    def conversation(self, turns: Sequence[str]) -> Any:
        """What was said in turn, as something to ask, where a task `talks`: a line each."""
        return "\n".join(turn.replace("\n", " ") for turn in turns)

    def scored(self, model: Any, data: Any) -> dict[str, float] | None:
        """Scores that are no sum over batches, instead of all others."""
        return None

    def judged(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        """What answers are worth beside references, where a task `compares` them."""
        raise NotImplementedError
