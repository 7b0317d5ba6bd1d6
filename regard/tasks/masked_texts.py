"""Texts with masked tokens, alone or in pairs whose second text may follow the first: the data of `fill`.

Shapes: B batch, T tokens, M masked tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from regard.data import Corpus, DataConfig, Stream, Windows, load_corpus
from regard.data.documents import read_documents
from regard.data.passages import Passages, encode_passages, split_documents, split_paragraphs
from regard.errors import UserError
from regard.models import Bert, Electra, Elmo
from regard.tasks.batches import Batch, Shuffled
from regard.tasks.loss import IGNORED
from regard.tasks.masking import END, FIRST, MASK, PAD, SPECIALS, Masker
from regard.tasks.request import DataRequest
from regard.tasks.task import Task

Row = tuple[list[int], int, int]  # ids, where the second text begins, and 0 if it follows the first, else 1


@dataclass(frozen=True, kw_only=True)
class FillConfig:
    name: Literal["fill"]
    next: bool = (
        True  # also predict whether the second text follows the first; false: pack the text (RoBERTa)
    )
    hidden: float = 0.15  # the share of the tokens to predict
    whole_words: bool = False  # mask all tokens of a word, or none
    replaced: bool = False  # a small model fills them in, and the model detects these words (ELECTRA)
    words: bool = True  # false: a folder of another library, without a head for masked words

    def __post_init__(self) -> None:
        if not 0 < self.hidden < 1:
            raise ValueError(f"hidden={self.hidden} must be a share between 0 and 1")


class MaskedTexts(Task[FillConfig, Stream | Passages, Bert | Electra | Elmo]):
    """How `fill` reads texts and makes batches of them."""

    specials = SPECIALS
    data_config = DataConfig
    static_shapes = True
    end: int

    def setup(self) -> None:
        if self.config.replaced:  # better replacements are harder to detect: the loss may rise
            self.best_metric = "words_accuracy"
        ids = [self.tokenizer.id(name) for name in (PAD, FIRST, END, MASK)]
        if None in ids:
            raise UserError(
                f"the tokenizer lacks one of {PAD} {FIRST} {END} {MASK}; train one with this recipe"
            )
        self.pad, self.first, self.end, self.mask = (id for id in ids if id is not None)
        self.masker = Masker(self.tokenizer, self.config.hidden, self.config.whole_words, self.context)

    @classmethod
    def read(cls, request: DataRequest[FillConfig]) -> Corpus:
        paths, valid, data = request.paths, request.valid, request.data
        if not request.config.words:
            raise UserError("task.words=false: masked words are always learned; leave it out")
        if not request.config.next:
            return load_corpus(paths, valid, data, cls.specials, *request.tokenizers)
        train = [part for text in read_documents(paths) for part in split_paragraphs(text)]
        if valid:
            held = [part for text in read_documents(valid) for part in split_paragraphs(text)]
        else:
            train, held = split_documents(train, data.holdout)
        sides = [(False, text) for text in train] + [(True, text) for text in held]
        tokenizer = request.tokenizer(sides, cls.specials)
        room = request.context - 3
        training = encode_passages(train, tokenizer, room)
        if len(training.firsts) < 3:
            raise UserError(
                f"{paths[0]}: one document; predicting what follows needs several, blank lines between them "
                "(or set task.next=false)"
            )
        evaluation = encode_passages(held, tokenizer, room) if held else None
        if evaluation is not None and len(evaluation.firsts) < 3:
            if valid:
                raise UserError(f"{valid[0]}: one document; give several, blank lines between them")
            evaluation = None
        return Corpus(training, evaluation, tokenizer)

    def held_out(self, paths: Sequence[str]) -> Stream | Passages:
        if self.config.replaced and not self.config.words:
            raise UserError("this ELECTRA has no generator, whose words it could be scored on")
        if not self.config.next:
            data = load_corpus(paths, (), DataConfig(holdout=0.0), self.specials, self.tokenizer)
            return data.valid or data.train
        parts = (part for text in read_documents(paths) for part in split_paragraphs(text))
        held = encode_passages(parts, self.tokenizer, self.context - 3)
        if len(held.firsts) < 3:
            raise UserError(f"{paths[0]}: one document; give several, blank lines between them")
        return held

    def samples(
        self, data: Stream | Passages, seed: int, rows: int, tokens: int | None
    ) -> Windows | Shuffled:
        size = rows if tokens is None else max(1, tokens // self.context)
        if isinstance(data, Passages):
            return Shuffled(data, seed, size)
        return data.windows(self.context - 2, seed, size)

    def batch(self, samples: Windows | Shuffled, rows: np.ndarray) -> Batch:
        rngs = [np.random.Generator(np.random.Philox(key=[samples.seed, row])) for row in rows.tolist()]
        if isinstance(samples, Shuffled):
            numbers = samples.at(rows).tolist()
            texts = [self.two(samples.data, n, rng) for n, rng in zip(numbers, rngs, strict=True)]
        else:
            texts = [self.one(text) for text in samples.batch(rows)[:, :-1].tolist()]
        return self.collate(texts, rngs)

    def one(self, text: list[int]) -> Row:
        """A text alone."""
        return [self.first, *text, self.end], 0, IGNORED

    def two(self, data: Passages, at: int, rng: np.random.Generator) -> Row:
        """A passage as two texts; in half of the cases, the second one is from elsewhere. Both end with a
        sentence if possible, so that the lengths do not give away the answer.
        """
        first, stop = data.cuts[at].tolist()
        room = self.context - 3
        alone = stop - first == 1
        middle = stop if alone else first + 1 + int(rng.integers(stop - first - 1))
        other = alone or rng.random() < 0.5
        a, b = data.sentence_ids(first, middle), data.sentence_ids(middle, stop)
        if other:
            space = max(room - len(a), room // 2 if alone else 1)
            begin = data.random_elsewhere(first, rng)
            b = data.sentence_ids(begin, data.passage_end(begin, space))[:space]
        a = a[: room - len(b)]
        ids = [self.first, *a.tolist(), self.end, *b.tolist(), self.end]
        return ids, len(a) + 2, int(other)

    def collate(self, data: Sequence[Row], rows: Sequence[np.random.Generator]) -> Batch:
        """Texts, each masked by its own generator: ids, attention mask and segments (B, T); whether the
        second follows (B,); masked places (B, M), random numbers for replacements, and masked words."""
        B, M = len(data), self.masker.limit
        ids = np.full((B, self.context), self.pad, dtype=np.int64)
        segments, attention_mask = np.zeros_like(ids), np.zeros((B, self.context), dtype=bool)
        follows = np.array([label for _, _, label in data])
        places, words = np.zeros((B, M), dtype=np.int64), np.full((B, M), IGNORED)
        for b, ((text, second, _), rng) in enumerate(zip(data, rows, strict=True)):
            shown, masked = self.masker.mask(np.array(text), rng)
            ids[b, : len(text)], attention_mask[b, : len(text)] = shown, True
            if second:
                segments[b, second : len(text)] = 1
            places[b, : len(masked)], words[b, : len(masked)] = masked, np.array(text)[masked]
        throws = [np.stack([rng.random(M, np.float32) for rng in rows])] if self.config.replaced else []
        batch = (ids, attention_mask, segments, follows, places, *throws, words)
        return tuple(torch.from_numpy(x) for x in batch)

    def evaluation_batches(self, data: Stream | Passages, tokens: int) -> Iterator[Batch]:
        """All of the data once; the same tokens are masked every time."""
        size = max(1, tokens // self.context)
        width = self.context - 2
        count = len(data) if isinstance(data, Passages) else -(-len(data) // width)
        for i in range(0, count, size):
            numbers = range(i, min(i + size, count))
            rngs = [np.random.Generator(np.random.Philox(key=[0, n])) for n in numbers]
            if isinstance(data, Passages):
                texts = [self.two(data, n, rng) for n, rng in zip(numbers, rngs, strict=True)]
            else:
                parts = (data.read(n * width, min((n + 1) * width, len(data))) for n in numbers)
                texts = [self.one(part.tolist()) for part in parts]
            yield self.collate(texts, rngs)

    def batch_length(self, batch: Batch) -> int:
        return len(batch[0]) if self.config.next else int(batch[1].sum()) - 2 * len(batch[0])
