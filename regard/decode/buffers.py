"""The inputs of a `Runner`'s steps: texts in their slots, as tensors with fixed addresses.

Shapes: S slots (places for texts), R rows, N pages of a text, M pages of a source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.decode.filters import Filter
from regard.decode.prompts import Source
from regard.decode.sampling import GREEDY, LEVELS, RowRules, Sampling

SUPPRESSED = 16  # tokens that a text may suppress on the device
DRAWS = 64  # steps for which random numbers are sent to the device at once
FIELDS = 7  # of a slot: id, position, steps, temperature, top_k, top_p, min_p


class Kind(NamedTuple):
    """The kind of sampling, which decides the operations of a step."""

    filtered: Filter | None = None  # from some tokens only: top_k, top_p, min_p
    suppressed: bool = False  # some tokens are suppressed


def joint_kind(texts: Sequence["Text"]) -> Kind:
    """The kind of a step for all of these texts."""
    kinds = [text.kind for text in texts]
    filters = [kind.filtered for kind in kinds if kind.filtered]
    return Kind(reduce(Filter.join, filters) if filters else None, any(kind.suppressed for kind in kinds))


@dataclass(eq=False)
class Text:
    """A text that is being written: `ids` are its prompt and its tokens so far, at most `limit` new ones."""

    ids: list[int]
    sampling: Sampling
    generator: np.random.Generator
    limit: int
    source: Source | None = None
    top_logprobs: int = 0
    rules: RowRules | None = None

    pages: list[int] = field(default_factory=list)
    source_pages: list[int] = field(default_factory=list)
    source_length: int = 0
    begin: int = 0  # the cache holds the text from here on
    cached: int = 0  # how many of its tokens, including those of steps in progress
    steps: int = 0  # that have begun
    count: int = 0  # tokens that have arrived
    slot: int | None = None
    reading: bool = False  # its prompt is not completely read
    done: bool = False
    draws: np.ndarray | None = None  # (DRAWS, LEVELS), of the present block of steps
    block: int = -1

    def __post_init__(self) -> None:
        s = self.sampling
        by_text = s.repetition_penalty != 1 or s.no_repeat_ngram_size or len(s.suppress_tokens) > SUPPRESSED
        # Whether the next token depends on the text so far, or more than its probability is requested
        self.on_host = bool(by_text or self.top_logprobs or self.rules is not None)
        # Whether steps go on with it by themselves: the host neither chooses nor guesses its tokens
        self.advances = not (self.on_host or s.prompt_lookup_num_tokens)
        self.sampled = s.temperature >= GREEDY
        filtered = Filter.of(s.top_k, s.top_p) if self.sampled and s.is_filtered else None
        self.kind = Kind(filtered, bool(s.suppress_tokens))

    def uniform(self, step: int) -> np.ndarray:
        """The random numbers of a step: its row of the block (DRAWS, LEVELS), which is drawn in order."""
        while self.block < step // DRAWS:
            self.draws, self.block = self.generator.random((DRAWS, LEVELS)), self.block + 1
        assert self.draws is not None
        return self.draws


class Buffers:
    """The inputs of steps for every slot, on the device. The host writes whole slots; steps advance them."""

    def __init__(self, slots: int, width: int, source_width: int, device: torch.device):
        self.device = device
        self.numbers = torch.zeros(FIELDS, slots, dtype=torch.int32, device=device)
        self.numbers[1] = -1  # no slot is in use
        self.tables = torch.zeros(slots, width, dtype=torch.int32, device=device)
        self.source_tables = torch.zeros(slots, source_width, dtype=torch.int32, device=device)
        self.source_lengths = torch.zeros(slots, dtype=torch.int32, device=device)
        self.draws = torch.zeros(slots, DRAWS, LEVELS, device=device)
        self.suppressed = torch.full((slots, SUPPRESSED), -1, device=device)  # -1: none

    def send(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device, without waiting for the device."""
        t = torch.from_numpy(array)
        return t.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else t

    def write(self, target: Tensor, dim: int, slots: Sequence[int], values: np.ndarray) -> None:
        target.index_copy_(dim, self.send(np.array(slots)), self.send(values))

    def place(self, texts: Sequence[Text]) -> None:
        """Texts whose prompts are read begin with the next step; of others, the host sends every row."""
        numbers = np.zeros((FIELDS, len(texts)), np.int32)
        floats = numbers.view(np.float32)
        for i, t in enumerate(texts):
            s = t.sampling
            numbers[:3, i] = t.ids[t.begin + t.cached], t.cached if t.advances else -1, t.steps
            numbers[4, i] = min(s.top_k, 2**31 - 1)
            floats[3, i], floats[5, i], floats[6, i] = s.temperature, s.top_p, s.min_p
        self.write(self.numbers, 1, [t.slot or 0 for t in texts], numbers)
        if any(t.kind.suppressed and not t.on_host for t in texts):
            rows = np.full((len(texts), SUPPRESSED), -1)
            for row, t in zip(rows, texts, strict=True):
                tokens = t.sampling.suppress_tokens[:SUPPRESSED]
                row[: len(tokens)] = tokens
            self.write(self.suppressed, 0, [t.slot or 0 for t in texts], rows)

    def clear(self, slots: Sequence[int]) -> None:
        numbers = np.zeros((FIELDS, len(slots)), np.int32)
        numbers[1] = -1
        self.write(self.numbers, 1, slots, numbers)

    def write_tables(self, texts: Sequence[Text]) -> None:
        for target, pages in ((self.tables, "pages"), (self.source_tables, "source_pages")):
            if target.shape[1]:
                rows = np.zeros((len(texts), target.shape[1]), np.int32)
                for row, text in zip(rows, texts, strict=True):
                    row[: len(getattr(text, pages))] = getattr(text, pages)
                self.write(target, 0, [t.slot or 0 for t in texts], rows)
        lengths = np.array([t.source_length for t in texts], np.int32)
        self.write(self.source_lengths, 0, [t.slot or 0 for t in texts], lengths)

    def write_draws(self, texts: Sequence[Text]) -> None:
        draws = np.stack([text.uniform(text.steps) for text in texts]).astype(np.float32)
        self.write(self.draws, 0, [t.slot or 0 for t in texts], draws)
