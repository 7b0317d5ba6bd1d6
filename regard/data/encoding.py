"""Split texts for training and validation, make their tokenizer, and encode them."""

import contextvars
import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from regard.data.documents import Chunk, Reiterable
from regard.data.reading import ReadConfig, reading_fold
from regard.data.splitting import first_held_out, number_groups
from regard.errors import UserError, suggest
from regard.text.pieces import PieceEncoder
from regard.text.tokenizer import AT_ONCE, Tokenizer, split_chunks
from regard.text.tokenizer_kinds import KINDS, train_tokenizer

LEARNED, LEARNED_PER_TOKEN = 2**25, 2**12  # characters for a tokenizer, at least, and per token: it holds
# all their different words in memory, and more text hardly changes it
MOST_TOKENS = 2**24  # of a vocabulary; the trainer allocates memory for all of them at once
MIN_DOCUMENTS = 10  # with fewer, the end of the text is held out instead of whole documents


@dataclass(frozen=True, kw_only=True)
class DataConfig(ReadConfig):
    tokenizer: str = "char"  # a kind to train, or a tokenizer.json or its folder
    vocab: int = 8192  # the target size of a trained tokenizer's vocabulary
    holdout: float = 0.1  # the share of the text for validation, if no validation text is given
    parts: int | None = None  # parts of a stream that are read side by side; None: one for each process
    buffer: int = 2**20  # tokens of each part that are shuffled together

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout={self.holdout} must be a share of the text, from 0 to less than 1")
        if not 0 < self.vocab <= MOST_TOKENS:
            raise ValueError(f"vocab={self.vocab} must be more than 0, and at most {MOST_TOKENS:,}")
        if self.parts is not None and not self.parts > 0:
            raise ValueError(f"parts={self.parts} must be more than 0")
        if not self.buffer > 0:
            raise ValueError(f"buffer={self.buffer} must be more than 0")


Part = tuple[bool, bool, str]  # whether it is held out, whether a document starts here, and text of it
Parts = Iterable[Part]


def split_texts(texts: Iterable[Chunk], valid: Iterable[Chunk] | None, holdout: float) -> Parts:
    """Return all texts, each with whether it is held out.

    Held out are `valid`, if given; or every tenth document, for a holdout of 0.1, where equal ones count as
    one; or, if there are few documents, the last tenth of their characters (as in nanoGPT).
    """
    if valid is not None:
        sides = ((False, texts), (True, valid))
        return Reiterable(lambda: ((out, starts, text) for out, side in sides for starts, text in side))
    if holdout == 0:
        return Reiterable(lambda: ((False, starts, text) for starts, text in texts))
    characters, digests = 0, array("Q")
    document = hashlib.blake2b(digest_size=8)
    for number, (starts, text) in enumerate(texts):
        if starts and number:
            digests.append(int.from_bytes(document.digest()))
            document = hashlib.blake2b(digest_size=8)
        document.update(text.encode())
        characters += len(text)
    digests.append(int.from_bytes(document.digest()))
    every, groups = max(2, round(1 / holdout)), number_groups(np.array(digests))
    if groups.max() + 1 >= max(MIN_DOCUMENTS, every):
        held_out = groups % every == first_held_out(every)
        return Reiterable(lambda: _hold_out_documents(texts, held_out))
    if reading_fold():
        raise UserError("train.folds divides rows or documents, and there are too few; leave it out")
    return Reiterable(lambda: _cut_texts(texts, int(characters * (1 - holdout))))


def _hold_out_documents(texts: Iterable[Chunk], held_out: np.ndarray) -> Iterator[Part]:
    number = -1
    for starts, text in texts:
        number += starts
        yield bool(held_out[number]), starts, text


def _cut_texts(texts: Iterable[Chunk], left: int) -> Iterator[Part]:
    """Hold out everything after the first `left` characters."""
    for starts, text in texts:
        if left > 0:
            yield False, starts, text[:left]
        if left < len(text):
            yield True, starts, text[max(0, left) :]
        left -= len(text)


def split_parts(parts: Parts) -> Iterator[Part]:
    """Yield the pieces that the tokenizer encodes, independent of the chunks of a document."""
    number = 0

    def document(part: Part) -> tuple[int, bool]:
        nonlocal number
        number += part[1]
        return number, part[0]

    for (_, held_out), chunks in groupby(parts, document):
        for index, piece in enumerate(split_chunks(text for _, _, text in chunks)):
            yield held_out, index == 0, piece


def texts_to_learn_from(parts: Parts) -> Iterable[tuple[bool, str]]:
    """Return the texts for `tokenizer_for`."""
    return Reiterable(lambda: ((held_out, piece) for held_out, _, piece in split_parts(parts)))


def tokenizer_for(
    texts: Iterable[tuple[bool, str]], config: DataConfig, specials: Sequence[str]
) -> Tokenizer:
    """Train the kind of tokenizer that the configuration names, or load the file.

    A text comes with whether it is held out. Of many texts a tokenizer learns a share, so that its memory
    depends on the size of its vocabulary alone; one of characters learns all of them.
    """
    kind = config.tokenizer
    if kind in KINDS:
        # The characters of the held-out text reveal nothing, and would be unknown otherwise.
        learnable = Reiterable(lambda: (text for held_out, text in texts if kind == "char" or not held_out))
        limit = max(LEARNED, LEARNED_PER_TOKEN * config.vocab)
        sample = learnable if kind == "char" else sample_texts(learnable, limit)
        return train_tokenizer(kind, sample, config.vocab, specials)
    if os.path.exists(kind):
        return Tokenizer.load(kind)
    raise UserError(
        f"data.tokenizer={kind} is neither a file nor a kind of tokenizer; {suggest(kind, KINDS)}"
    )


def sample_texts(texts: Iterable[str], limit: int) -> Iterable[str]:
    """Return at most `limit` characters, from texts spread evenly over all of them."""
    total = sum(map(len, texts))

    def sample() -> Iterator[str]:
        passed = taken = 0
        for text in texts:
            if taken * total <= passed * limit:
                yield text[: limit - taken]
                taken += min(len(text), limit - taken)
            passed += len(text)

    return Reiterable(sample) if total > limit else texts


@dataclass
class EncodedBatch:
    """Token ids of one side of the split, and the size of their text."""

    held_out: bool
    ids: np.ndarray
    bytes: int
    documents: int


def encode_texts(parts: Parts, tokenizer: Tokenizer) -> Iterator[EncodedBatch]:
    """Yield the ids of all texts, batch by batch; the end token separates documents of the same side."""
    dtype = dtype_for(tokenizer)
    end = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
    started: set[bool] = set()
    batches = _batches(parts)
    context = contextvars.copy_context()  # the limits of `read_together`

    def read_batch() -> list[Part] | None:
        return context.run(next, batches, None)

    encoder = PieceEncoder(tokenizer)
    with ThreadPoolExecutor(1) as reader:  # reads ahead while others encode
        next_batch = reader.submit(read_batch)
        while batch := next_batch.result():
            next_batch = reader.submit(read_batch)
            encoded = encoder.encode_batch([piece for _, _, piece in batch])
            for side in (False, True):
                arrays, size, documents = [], 0, 0
                for (held_out, starts, piece), ids in zip(batch, encoded, strict=True):
                    if held_out == side:
                        arrays += [end, ids] if starts and side in started else [ids]
                        size += len(piece) if piece.isascii() else len(piece.encode())
                        documents += starts
                        started.add(side)
                if arrays:
                    side_ids = np.concatenate(arrays, dtype=dtype, casting="unsafe")
                    yield EncodedBatch(side, side_ids, size, documents)


def _batches(parts: Parts) -> Iterator[list[Part]]:
    """Yield the pieces for one call of the tokenizer."""
    batch: list[Part] = []
    characters = 0
    for part in split_parts(parts):
        batch.append(part)
        characters += len(part[2])
        if characters >= AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def dtype_for(tokenizer: Tokenizer) -> np.dtype:
    """Return the smallest type for the ids of a tokenizer."""
    return np.dtype(np.uint16 if tokenizer.vocab <= 2**16 else np.uint32)
