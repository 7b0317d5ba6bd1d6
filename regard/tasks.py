"""Tasks: what to do with data and a model. A recipe names one.

Shapes: B batch, T tokens.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .beam import NOTHING, beam_search
from .data import Corpus, DataConfig, Stream, Windows, corpus, in_order
from .errors import Mistake
from .generate import Sampling, Stopper, generate, read
from .loss import IGNORED, cross_entropy
from .text import Tokenizer

Batch = tuple[Tensor, ...]  # what a task's loss takes; the last one holds the targets


def targets(batch: Batch) -> int:
    """How many predictions a batch asks for."""
    return int((batch[-1] != IGNORED).sum())


@dataclass(frozen=True, kw_only=True)
class WriteConfig:
    name: Literal["write"]


class Write:
    """Predict the next token of running text, and so go on writing."""

    kinds = ("gpt",)  # of models that can do it
    specials = ("<|endoftext|>",)

    def __init__(self, config: WriteConfig, tokenizer: Tokenizer, context: int):
        self.config, self.tokenizer, self.context = config, tokenizer, context

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        config: DataConfig,
        tokenizer: Tokenizer | None = None,
    ) -> Corpus:
        return corpus(paths, valid, config, cls.specials, tokenizer)

    def held_out(self, paths: Sequence[str]) -> Stream:
        """Data to score on: all of a text, or the held-out part of a prepared folder."""
        found = corpus(paths, (), DataConfig(holdout=0.0), self.specials, self.tokenizer)
        stream = found.valid or found.train
        if len(stream) < 2:
            raise Mistake(f"{paths[0]}: one token is too little to score on; give a longer text")
        return stream

    def training(self, stream: Stream, seed: int) -> Windows:
        """Samples by position: any of them at any time, in an order that the seed decides."""
        return Windows(stream, self.context, seed)

    def batch(self, samples: Windows, positions: np.ndarray) -> Batch:
        ids = torch.from_numpy(samples.batch(positions))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def in_order(self, stream: Stream, size: int) -> Iterator[Batch]:
        """The whole stream, every token but the first predicted once."""
        for ids, following in in_order(stream, self.context, size):
            yield torch.from_numpy(ids), torch.from_numpy(following)

    @staticmethod
    def loss(model: nn.Module, ids: Tensor, following: Tensor) -> Tensor:
        """The sum over all predictions, in nats."""
        return cross_entropy(model.hidden(ids), model.output, following)  # type: ignore[operator, arg-type]

    def metrics(self, loss: float, count: int, stream: Stream) -> dict[str, float]:
        """What a summed loss over `count` predictions of a stream means to people."""
        mean = loss / count
        return {
            "loss": mean,
            "perplexity": math.exp(min(mean, 700)),
            "bits_per_byte": loss / math.log(2) / max(1, stream.bytes),
        }

    def opening(self, stream: Stream) -> str:
        """A few words of the data, for the model to go on from."""
        return self.tokenizer.decode(stream.read(0, min(8, len(stream))))

    # using it

    generation: ClassVar = {"max_new_tokens": 200, "temperature": 0.8}

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
        prompts = [self.tokenizer.encode(text) or self._blank() for text in texts]
        if sampling.num_beams > 1:
            yield self._best(model, prompts, sampling, stop, samples)
            return
        written = [(self.tokenizer.decoder(), Stopper(stop)) for _ in range(len(texts) * samples)]
        for tokens in generate(
            model, prompts, sampling, end=self.tokenizer.end, samples=samples, cached=cached
        ):
            yield [
                stopper.push(decoder.push(token)) if token is not None and not stopper.done else ""
                for token, (decoder, stopper) in zip(tokens, written, strict=True)
            ]
            if all(stopper.done for _, stopper in written):
                return
        yield [stopper.push(decoder.finish()) + stopper.finish() for decoder, stopper in written]

    def _best(
        self, model: Any, prompts: list[list[int]], sampling: Sampling, stop: Sequence[str], samples: int
    ) -> list[str]:
        """The most likely answers, whole; beams can't outgrow the context, as a row that is sampled can."""
        beams, longest, end = sampling.num_beams, sampling.max_new_tokens, self.tokenizer.end
        if longest >= self.context:
            raise Mistake(f"max_new_tokens={longest}: with beams, less than the context of {self.context}")
        if samples > beams:
            raise Mistake(f"num_return_sequences={samples}: no more than num_beams={beams}")
        with torch.inference_mode():
            logits, state = read(model, [prompt[longest - self.context :] for prompt in prompts])
        found = beam_search(
            model.step,
            logits,
            state,
            beams=beams,
            end=NOTHING if end is None else end,
            max_new_tokens=longest,
            length_penalty=sampling.length_penalty,
        )
        texts = [self.tokenizer.decode(h.tokens) for hypotheses in found for h in hypotheses[:samples]]
        stoppers = [(Stopper(stop), text) for text in texts]
        return [stopper.push(text) + stopper.finish() for stopper, text in stoppers]

    def _blank(self) -> list[int]:
        """What stands before the first word: a new line, or else the end of an earlier text."""
        return self.tokenizer.encode("\n") or [self.tokenizer.end or 0]


TASKS = {"write": (Write, WriteConfig)}
