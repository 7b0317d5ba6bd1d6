"""Restoring: text from which spans are missing, and a model that writes what was there. Raffel et al. 2020.

Shapes: B batch, S source tokens, T target tokens.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from regard.data import Corpus, DataConfig, Stream, Windows, corpus, held_out
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import cross_entropy
from regard.text import Tokenizer

from .answers import Answer, Written, written
from .batches import Batch, per_token, targets
from .pairs import END, PAD
from .task import Task

SENTINELS = tuple(f"<extra_id_{i}>" for i in range(100))  # one for each missing span, by the names of T5
BLANK = re.compile(r"_{2,}|\[MASK\]|<extra_id_\d+>")


@dataclass(frozen=True, kw_only=True)
class RestoreConfig:
    name: Literal["restore"]
    missing: float = 0.15  # the share of the tokens
    span: float = 3.0  # how many tokens are missing in a row, on average

    def __post_init__(self) -> None:
        if not 0 < self.missing < 1:
            raise ValueError(f"missing={self.missing} must be a share between 0 and 1")
        if not self.span >= 1:
            raise ValueError(f"span={self.span} must be 1 or more")


class Restore(Task):
    kinds = ("t5", "transformer")
    specials = (PAD, END, *SENTINELS)
    data = DataConfig
    builtin = ("write.txt",), ()
    at_once = 64
    steady = True
    generation: ClassVar = {"max_new_tokens": 100, "temperature": 0.0}

    def __init__(self, config: RestoreConfig, tokenizer: Tokenizer, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        self.begin, self.end = tokenizer.id(PAD) or 0, tokenizer.end or 0
        self.sentinels = [id for name in SENTINELS if (id := tokenizer.id(name)) is not None]
        if not self.sentinels:
            raise Mistake(f"the tokenizer has no {SENTINELS[0]}; train one with this recipe")
        # As long as a text can be whose source and target both fit the context.
        self.length = max((n for n in range(2, 4 * context) if max(self.sizes(n)) <= context), default=2)

    def sizes(self, length: int) -> tuple[int, int]:
        """The tokens of source and target that so long a text becomes, ends included."""
        missing, spans = self.holes(length)
        return length - missing + spans + 1, missing + spans + 1

    def holes(self, length: int) -> tuple[int, int]:
        """How many tokens are missing, and in how many spans."""
        missing = min(max(1, round(length * self.config.missing)), length - 1)
        spans = max(1, round(missing / self.config.span))
        return missing, min(spans, length - missing, len(self.sentinels))

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: DataConfig,
        config: RestoreConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        return corpus(paths, valid, data, cls.specials, *tokenizers)

    def held_out(self, paths: Sequence[str]) -> Stream:
        return held_out(paths, self.specials, self.tokenizer)

    def training(self, stream: Stream, seed: int, rows: int, tokens: int | None) -> Windows:
        size = rows if tokens is None else max(1, tokens // self.context)
        return Windows(stream, self.length, seed, size)

    def batch(self, samples: Windows, rows: np.ndarray) -> Batch:
        texts = samples.batch(rows)[:, :-1]
        return self.torn(texts, [np.random.Philox(key=[samples.seed, row]) for row in rows.tolist()])

    def torn(self, texts: np.ndarray, dice: Sequence[np.random.BitGenerator]) -> Batch:
        """Texts (B, L) with spans taken out: source, where it is real (everywhere), target, what follows."""
        missing, spans = self.holes(texts.shape[1])
        marks, end = np.array(self.sentinels[:spans]), [self.end]
        sources, wanted = [], []
        for text, throws in zip(texts, dice, strict=True):
            rng = np.random.Generator(throws)
            # Kept and missing stretches in turns: each kind cut at random into as many as there are spans.
            kept, gone = (pieces(rng, n, spans) for n in (len(text) - missing, missing))
            parts = np.split(text, np.cumsum(np.stack([kept, gone], 1).ravel())[:-1])
            whole, torn = [parts[0::2], marks[:, None]], [marks[:, None], parts[1::2]]
            sources.append(np.concatenate([x for both in zip(*whole, strict=True) for x in both] + [end]))
            wanted.append(np.concatenate([x for both in zip(*torn, strict=True) for x in both] + [end]))
        source, following = (torch.from_numpy(np.stack(side).astype(np.int64)) for side in (sources, wanted))
        target = following.roll(1, dims=1)
        target[:, 0] = self.begin
        return source, torch.ones_like(source, dtype=torch.bool), target, following

    def in_order(self, stream: Stream, tokens: int) -> Iterator[Batch]:
        """The whole stream, window by window; what is missing is the same every time."""
        starts = range(0, len(stream) - 1, self.length)
        size = max(1, tokens // self.context)
        whole = [start for start in starts if start + self.length <= len(stream)]
        for i in range(0, len(whole), size):
            some = whole[i : i + size]
            texts = np.stack([stream.read(start, start + self.length) for start in some])
            yield self.torn(texts, [np.random.Philox(key=[0, start]) for start in some])
        for start in starts[len(whole) :]:
            if len(rest := stream.read(start, len(stream))) > 1:
                yield self.torn(rest[None], [np.random.Philox(key=[0, start])])

    @staticmethod
    def loss(model: Any, source: Tensor, real: Tensor, target: Tensor, following: Tensor) -> Tensor:
        """The sum over all predictions, in nats."""
        return cross_entropy(model.hidden(source, target, real), model.output, following)

    def metrics(self, loss: float, count: int, stream: Stream) -> dict[str, float]:
        found = per_token(loss, count, stream.bytes)
        return {name: found[name] for name in ("loss", "perplexity")}  # only some of the bytes are written

    def covered(self, batch: Batch) -> int:
        return targets(batch)

    def sample(self, model: Any, stream: Stream, seed: int) -> str:
        """A torn text of the data, and the text with what the model puts in."""
        ids = stream.read(0, min(len(stream), self.length, 40))
        source = self.torn(ids[None], [np.random.Philox(key=[0, 0])])[0][0].tolist()
        ((best,),) = self._written(model, [source], Sampling(max_new_tokens=60, temperature=0), 1)
        names = dict.fromkeys(self.sentinels, "___")
        shown = "".join(names.get(id) or self.tokenizer.decode([id]) for id in source[:-1])
        return f"{shown}\n  → {self.filled(source[:-1], best.tokens)}"

    # using it

    def source(self, text: str) -> list[int]:
        """A text as ids, each blank in it as a sentinel."""
        parts = BLANK.split(text)
        if not 1 < len(parts) <= len(self.sentinels) + 1:
            many = (
                f"there are {len(parts) - 1}, at most {len(self.sentinels)} go" if len(parts) > 1 else "none"
            )
            raise Mistake(f"mark what is missing with ___ ({many}), as in: The fox ___ over the dog")
        ids: list[int] = []
        for i, part in enumerate(parts):  # a word brings the space before it: the blank's is left out
            part = part.rstrip() if i < len(parts) - 1 else part
            ids += [*([self.sentinels[i - 1]] if i else []), *self.tokenizer.encode(part)]
        if len(ids) >= self.context:
            raise Mistake(
                f"a text of {len(ids)} tokens does not fit the context of {self.context}; shorten it"
            )
        return [*ids, self.end]

    def filled(self, source: Sequence[int], written: Sequence[int]) -> str:
        """The text with each sentinel replaced by what was written after it."""
        found: dict[int, list[int]] = {}
        last: int | None = None
        for id in written:
            if id in self.sentinels:
                last = id
            elif last is not None:
                found.setdefault(last, []).append(id)
        return self.tokenizer.decode(
            [i for id in source for i in (found.get(id, []) if id in self.sentinels else [id])]
        )

    def answers(
        self,
        model: Any,
        texts: Sequence[str],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """Each text with its blanks filled in, `samples` times; with scores where beams found them."""
        sources = [self.source(text) for text in texts]
        found = self._written(model, sources, sampling, samples) if sources else []
        return [
            [Answer(self.filled(source[:-1], h.tokens), h.score) for h in some]
            for source, some in zip(sources, found, strict=True)
        ]

    def _written(
        self, model: Any, sources: list[list[int]], sampling: Sampling, samples: int
    ) -> list[list[Written]]:
        return written(model, [[self.begin]] * len(sources), sampling, self.end, samples, sources)


def pieces(rng: np.random.Generator, total: int, many: int) -> np.ndarray:
    """`many` lengths of at least 1 that make up the total, every choice as likely as any other."""
    cuts = (
        np.sort(rng.choice(np.arange(1, total), many - 1, replace=False)) if many > 1 else np.array([], int)
    )
    return np.diff(np.concatenate([[0], cuts, [total]]))
