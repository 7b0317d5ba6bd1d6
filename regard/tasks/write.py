"""Writing: predict the next token of running text, and so go on from any text.

Shapes: B batch, T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from regard.data import Corpus, DataConfig, Stream, Windows, corpus, held_out, in_order
from regard.errors import Mistake
from regard.generate import Sampling, generate
from regard.loss import cross_entropy
from regard.text import Tokenizer, told

from .answers import Answer, searched, spelt, streamed
from .batches import Batch, per_token, targets
from .task import Task

if TYPE_CHECKING:
    from regard.template import Message, Template

TURNS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>")  # may end one


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    name: Literal["write"]


class Write(Task):
    kinds = ("gpt",)  # of models that can do it
    specials = ("<|endoftext|>",)
    data = DataConfig
    builtin = ("write.txt",), ()  # what it learns from, and what it is measured on, if nothing else is given
    at_once = 64  # texts from a pipe, answered together
    steady = True  # all batches have the same shape, worth compiling for

    def __init__(self, config: WriteConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        self.ends = () if tokenizer.end is None else (tokenizer.end,)  # any of these ends a text
        self.first: list[int] = []  # before every text, where a model has learnt it so
        self.template: Template | None = None  # of one that answers: a text is what a user says

    def speak(self, template: "Template") -> None:
        """From now on, texts are turns of a conversation, which the template makes a text of."""
        self.template, self.talks = template, True
        ends = [self.tokenizer.id(name) for name in TURNS if name in template.text]
        self.ends = tuple(dict.fromkeys([*self.ends, *(id for id in ends if id is not None)]))

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: WriteConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        """`tokenizers` are those of an earlier run, to be used again."""
        return corpus(paths, valid, data, cls.specials, *tokenizers)

    def held_out(self, paths: Sequence[str]) -> Stream:
        return held_out(paths, self.specials, self.tokenizer)

    def training(self, stream: Stream, seed: int, rows: int, tokens: int | None) -> Windows:
        """Samples by number: any of them at any time, in an order that the seed decides."""
        return Windows(stream, self.context, seed, rows if tokens is None else max(1, tokens // self.context))

    def batch(self, samples: Windows, rows: np.ndarray) -> Batch:
        ids = torch.from_numpy(samples.batch(rows))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def in_order(self, stream: Stream, tokens: int) -> Iterator[Batch]:
        """The whole stream, every token but the first predicted once; about so many tokens at a time."""
        for ids, following in in_order(stream, self.context, max(1, tokens // self.context)):
            yield torch.from_numpy(ids), torch.from_numpy(following)

    @staticmethod
    def loss(model: nn.Module, ids: Tensor, following: Tensor) -> Tensor:
        """The sum over all predictions, in nats."""
        return cross_entropy(model.hidden(ids), model.output, following)  # type: ignore[operator, arg-type]

    def metrics(self, loss: float, count: int, stream: Stream) -> dict[str, float]:
        return per_token(loss, count, stream.bytes)

    def covered(self, batch: Batch) -> int:
        """How much of the data a batch holds."""
        return targets(batch)

    def sample(self, model: Any, stream: Stream, seed: int) -> str:
        """A few words of the data, and how the model goes on from them."""
        opening = self.tokenizer.decode(stream.read(0, min(8, len(stream))))
        options = Sampling(**self.generation | {"max_new_tokens": 120, "seed": seed})
        return opening + self.answers(model, [opening], options)[0][0].text

    # using it

    generation: ClassVar[dict[str, Any]] = {"max_new_tokens": 200, "temperature": 0.8}

    def ask(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
        cached: bool = True,
    ) -> Iterator[list[str]]:
        """The new text of every row, piece by piece; row i * samples + j is sample j of text i."""
        if sampling.num_beams > 1:
            found = self.answers(model, texts, sampling, stop, samples)
            yield [answer.text for several in found for answer in several]
            return
        prompts = [self.read_in(text) for text in texts]
        steps = generate(model, prompts, sampling, end=self.ends, samples=samples, cached=cached)
        yield from streamed(steps, self.tokenizer, len(texts) * samples, stop)

    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """Whole answers: `samples` of them to each text, with scores where beams found them."""
        if sampling.num_beams == 1:
            rows = zip(*self.ask(model, texts, sampling, stop, samples), strict=True)
            found = [Answer("".join(pieces)) for pieces in rows]
            return [found[i : i + samples] for i in range(0, len(found), samples)]
        longest = sampling.max_new_tokens
        if longest >= self.context:
            raise Mistake(f"max_new_tokens={longest}: with beams, less than the context of {self.context}")
        prompts = [self.read_in(text) for text in texts]
        prompts = [prompt[longest - self.context :] for prompt in prompts]
        best = searched(model, prompts, sampling, self.ends, samples)
        return spelt(best, self.tokenizer, stop)

    def conversation(self, turns: Sequence[str]) -> Any:
        """What was said in turn, by the user first and last, as something to ask."""
        return [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]

    def prompt(self, messages: "Sequence[Message]") -> list[int]:
        """A conversation as tokens, up to where the model's answer begins.

        A message is {"role": "system", "user" or "assistant", "content": text}.
        """
        if self.template is None:
            raise Mistake("this model writes on and has no chat template; give it a text, not a conversation")
        text = self.template.render(messages)
        with told("the tokenizer fails on this conversation"):
            ids = self._spelling.encode(text, add_special_tokens=False).ids
        if not ids:
            raise Mistake(f"{self.template.where}: the chat template makes nothing of this conversation")
        return ids

    def read_in(self, text: "str | Sequence[Message]") -> list[int]:
        """What the model reads before it writes."""
        if self.template is not None or not isinstance(text, str):
            return self.prompt([{"role": "user", "content": text}] if isinstance(text, str) else text)
        return self.plain(text)

    def plain(self, text: str) -> list[int]:
        """A text to go on from, as it is."""
        return self.first + self.tokenizer.encode(text) or self._blank()

    @cached_property
    def _spelling(self) -> tokenizers.Tokenizer:
        """The same tokenizer, to which a special token's spelling is the token."""
        return tokenizers.Tokenizer.from_str(self.tokenizer.inner.to_str())

    def _blank(self) -> list[int]:
        """What stands before the first word: a new line, or else the end of an earlier text."""
        return self.tokenizer.encode("\n") or [self.tokenizer.end or 0]
