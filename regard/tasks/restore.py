"""Span corruption: spans of a text are missing, and the model writes them. Raffel et al. 2020, T5.

Shapes: B batch, S source tokens, T target tokens.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from regard.data import Corpus, DataConfig, Stream, Windows, load_corpus, load_heldout
from regard.decode.sampling import Sampling
from regard.errors import UserError
from regard.models import Transformer
from regard.tasks.answers import Answer, Generated, generate_tokens
from regard.tasks.batches import Batch, count_pair, per_token, targets
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.loss import cross_entropy
from regard.tasks.request import DataRequest, Prompt, Request
from regard.tasks.source import END, PAD
from regard.tasks.task import Task

SENTINELS = tuple(f"<extra_id_{i}>" for i in range(100))  # one for each missing span, by the names of T5
BLANK = re.compile(r"_{2,}|\[MASK\]|<extra_id_\d+>")


@dataclass(frozen=True, kw_only=True)
class RestoreConfig:
    name: Literal["restore"]
    missing: float = 0.15  # the share of the tokens that are missing
    span: float = 3.0  # the mean length of a missing span, in tokens

    def __post_init__(self) -> None:
        if not 0 < self.missing < 1:
            raise ValueError(f"missing={self.missing} must be a share between 0 and 1")
        if not self.span >= 1:
            raise ValueError(f"span={self.span} must be 1 or more")


class Restore(Task[RestoreConfig, Stream, Transformer]):
    kinds = ("t5", "transformer")
    specials = (PAD, END, *SENTINELS)
    data_config = DataConfig
    builtin = ("write.txt",), ()
    static_shapes = generates = has_source = True
    generation: ClassVar = {"max_new_tokens": 100, "temperature": 0.0}
    ask_batch_size = 64
    example = "The fox ___ over the dog."
    begin: int
    end: int

    def setup(self) -> None:
        self.begin, self.end = self.tokenizer.id(PAD) or 0, self.tokenizer.end or 0
        self.sentinels = [id for name in SENTINELS if (id := self.tokenizer.id(name)) is not None]
        if not self.sentinels:
            raise UserError(f"the tokenizer has no {SENTINELS[0]}; train one with this recipe")
        self.length = self.longest(self.context)

    def longest(self, context: int) -> int:
        """The longest text whose source and target both fit a context, found by bisection: neither becomes
        shorter as the text becomes longer."""
        fits, above = 2, max(3, 4 * context)
        while above - fits > 1:
            length = (fits + above) // 2
            fits, above = (length, above) if max(self.sizes(length)) <= context else (fits, length)
        return fits

    def sizes(self, length: int) -> tuple[int, int]:
        """The tokens of the source and the target of a text of this length, ends included."""
        missing, spans = self.holes(length)
        return length - missing + spans + 1, missing + spans + 1

    def holes(self, length: int) -> tuple[int, int]:
        """The number of missing tokens, and of spans."""
        missing = min(max(1, round(length * self.config.missing)), length - 1)
        spans = max(1, round(missing / self.config.span))
        return missing, min(spans, length - missing, len(self.sentinels))

    # Data

    @classmethod
    def read(cls, request: DataRequest[RestoreConfig]) -> Corpus:
        return load_corpus(request.paths, request.valid, request.data, cls.specials, *request.tokenizers)

    def held_out(self, paths: Sequence[str]) -> Stream:
        return load_heldout(paths, self.specials, self.tokenizer)

    def samples(self, data: Stream, seed: int, rows: int, tokens: int | None) -> Windows:
        size = rows if tokens is None else max(1, tokens // self.context)
        return data.windows(self.length, seed, size)

    def batch(self, samples: Windows, rows: np.ndarray) -> Batch:
        texts = samples.batch(rows)[:, :-1]
        return self.collate(texts, [np.random.Philox(key=[samples.seed, row]) for row in rows.tolist()])

    def collate(self, data: np.ndarray, rows: Sequence[np.random.BitGenerator]) -> Batch:
        """Remove spans from texts (B, L), each by its own generator: the source, its attention mask (all
        True), and the target as input and as output."""
        missing, spans = self.holes(data.shape[1])
        marks, end = np.array(self.sentinels[:spans]), [self.end]
        sources, targets = [], []
        for text, bits in zip(data, rows, strict=True):
            rng = np.random.Generator(bits)
            # Kept and missing spans in turn: each kind cut at random into as many as there are spans.
            lengths = [random_lengths(rng, n, spans) for n in (len(text) - missing, missing)]
            parts = np.split(text, np.cumsum(np.stack(lengths, 1).ravel())[:-1])
            source, target = [parts[0::2], marks[:, None]], [marks[:, None], parts[1::2]]
            sources.append(np.concatenate([x for both in zip(*source, strict=True) for x in both] + [end]))
            targets.append(np.concatenate([x for both in zip(*target, strict=True) for x in both] + [end]))
        sides = (torch.from_numpy(np.stack(side).astype(np.int64)) for side in (sources, targets))
        source_ids, following = sides
        target_ids = following.roll(1, dims=1)
        target_ids[:, 0] = self.begin
        return source_ids, torch.ones_like(source_ids, dtype=torch.bool), target_ids, following

    def evaluation_batches(self, data: Stream, tokens: int) -> Iterator[Batch]:
        """The whole stream, window by window; the same spans are missing every time."""
        starts = range(0, len(data) - 1, self.length)
        size = max(1, tokens // self.context)
        full = [start for start in starts if start + self.length <= len(data)]
        for i in range(0, len(full), size):
            group = full[i : i + size]
            texts = np.stack([data.read(start, start + self.length) for start in group])
            yield self.collate(texts, [np.random.Philox(key=[0, start]) for start in group])
        for start in starts[len(full) :]:
            if len(rest := data.read(start, len(data))) > 1:
                yield self.collate(rest[None], [np.random.Philox(key=[0, start])])

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    def count_read(self, batch: Batch) -> dict[str, float]:
        return count_pair(batch)

    # Training

    def loss(self, model: Transformer, *batch: Tensor) -> Tensor:
        """The sum over all predictions, in nats."""
        source, attention_mask, target, following = batch
        hidden = model.hidden(source, target, attention_mask)
        return cross_entropy(hidden, model.output, following, bias=model.output_bias)

    def metrics(self, loss: float, count: int, data: Stream, *more: float) -> dict[str, float]:
        metrics = per_token(loss, count, data.bytes)
        return {name: metrics[name] for name in ("loss", "perplexity")}  # only some of the bytes are written

    def guess(self, model: Transformer, batches: Iterable[Batch], data: Stream) -> Guess:
        return guess_targets(batches, self.tokenizer.vocab)

    def preview(self, model: Transformer, data: Stream, seed: int) -> str:
        """A text of the data with blanks, and the text as the model fills it."""
        ids = data.read(0, min(len(data), self.length, 40))
        source = self.collate(ids[None], [np.random.Philox(key=[0, 0])])[0][0].tolist()
        ((best,),) = self._generate(model, [source], Sampling(max_new_tokens=60, temperature=0), 1)
        names = dict.fromkeys(self.sentinels, "___")
        shown = "".join(names.get(id) or self.tokenizer.decode([id]) for id in source[:-1])
        return f"{shown}\n  → {self.fill_in(source[:-1], best.tokens)}"

    # Answers

    def source(self, text: str) -> list[int]:
        """A text as ids, each blank in it as a sentinel."""
        parts = BLANK.split(text)
        if not 1 < len(parts) <= len(self.sentinels) + 1:
            many = f"there are {len(parts) - 1}, at most {len(self.sentinels)} go"
            count = many if len(parts) > 1 else "none"
            raise UserError(f"mark what is missing with ___ ({count}), as in: The fox ___ over the dog")
        ids: list[int] = []
        for i, part in enumerate(parts):  # a word includes the space before it: the blank's is left out
            part = part.rstrip() if i < len(parts) - 1 else part
            ids += [*([self.sentinels[i - 1]] if i else []), *self.tokenizer.encode(part)]
        if len(ids) >= self.context:
            raise UserError(
                f"a text of {len(ids)} tokens does not fit the context of {self.context}; shorten it"
            )
        return [*ids, self.end]

    def fill_in(self, source: Sequence[int], target: Sequence[int]) -> str:
        """The text with each sentinel replaced by what was written after it."""
        spans: dict[int, list[int]] = {}
        last: int | None = None
        for id in target:
            if id in self.sentinels:
                last = id
            elif last is not None:
                spans.setdefault(last, []).append(id)
        return self.tokenizer.decode(
            [i for id in source for i in (spans.get(id, []) if id in self.sentinels else [id])]
        )

    def answers(self, model: Transformer, request: Request) -> list[list[Answer]]:
        """Each text with its blanks filled in."""
        sources = [self.source(text) for text in request.inputs]
        targets = self._generate(model, sources, request.sampling, request.samples) if sources else []
        return [
            [Answer(self.fill_in(source[:-1], target.tokens), target.score) for target in several]
            for source, several in zip(sources, targets, strict=True)
        ]

    def _generate(
        self, model: Transformer, sources: list[list[int]], sampling: Sampling, samples: int
    ) -> list[list[Generated]]:
        return generate_tokens(model, [[self.begin]] * len(sources), sampling, self.end, samples, sources)

    # Prompts

    def prompts(self, input: str, as_user: bool = False) -> list[Prompt]:
        return [Prompt([self.begin], self.source(input))]

    def encode_target(self, prompt: Prompt, target: str) -> list[int]:
        """Encode the contents of the blanks, as in "jumps ___ lazy"."""
        blanks = [id for id in prompt.source or () if id in self.sentinels]
        spans = BLANK.split(target)
        if len(spans) != len(blanks):
            raise UserError(
                f"answer: give what goes into the {len(blanks)} blanks, with ___ between: jumps ___ lazy"
            )
        both = zip(blanks, spans, strict=True)
        return [int(i) for blank, span in both for i in (blank, *self.tokenizer.encode(span))] + [self.end]

    def write_target(self, model: Transformer, prompt: Prompt, sampling: Sampling) -> list[int]:
        ((best,),) = self._generate(model, [list(prompt.source or ())], sampling, 1)
        return [*best.tokens, self.end]


def random_lengths(rng: np.random.Generator, total: int, count: int) -> np.ndarray:
    """`count` lengths of at least 1 that make up the total, every choice as likely as any other."""
    cuts = (
        np.sort(rng.choice(np.arange(1, total), count - 1, replace=False)) if count > 1 else np.array([], int)
    )
    return np.diff(np.concatenate([[0], cuts, [total]]))
