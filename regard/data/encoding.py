"""Texts to token ids: which of them are held out, the tokenizer, and the ids of both sides."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np

from regard.errors import Mistake
from regard.recipe import nearest
from regard.text import AT_ONCE, KINDS, Tokenizer, pieces, train_tokenizer

from .reading import Again

TRAINING_TEXT = 2**30  # characters: more do not make a better tokenizer
FEW = 10  # documents: with fewer, the end of the text is held out instead of whole documents


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    tokenizer: str = "char"  # a kind to train, or a tokenizer.json or its folder
    vocab: int = 8192  # what a trained tokenizer aims for
    holdout: float = 0.1  # the share of the text to measure on, where no other text is given for that

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout={self.holdout} must be a share of the text, from 0 to less than 1")
        if not self.vocab > 0:
            raise ValueError(f"vocab={self.vocab} must be more than 0")


Parts = Iterable[tuple[bool, str]]  # texts, each with whether it is held out


def split(texts: Iterable[str], valid: Iterable[str] | None, holdout: float) -> Parts:
    """All texts, and which are held out: `valid`, if given; or every tenth, for a holdout of 0.1; or, of few
    texts, the last tenth of their characters (as nanoGPT does)."""
    if valid is not None:
        held_out = valid
        return Again(lambda: chain(((False, text) for text in texts), ((True, text) for text in held_out)))
    if holdout == 0:
        return Again(lambda: ((False, text) for text in texts))
    count = characters = 0
    for text in texts:
        count += 1
        characters += len(text)
    every = max(2, round(1 / holdout))
    if count >= max(FEW, every):
        return Again(lambda: ((number % every == 0, text) for number, text in enumerate(texts, 1)))
    return Again(lambda: _cut(texts, int(characters * (1 - holdout))))


def _cut(texts: Iterable[str], left: int) -> Iterator[tuple[bool, str]]:
    for text in texts:
        if left > 0:
            yield False, text[:left]
        if left < len(text):
            yield True, text[max(0, left) :]
        left -= len(text)


def tokenizer_for(parts: Parts, config: DataConfig, specials: Sequence[str]) -> Tokenizer:
    """Trains the tokenizer that the configuration names, or loads it."""
    kind = config.tokenizer
    if kind in KINDS:
        # Single characters of the held-out text are no secret, and would all be unknown otherwise.
        learnable = Again(lambda: (text for held, text in parts if kind == "char" or not held))
        limit = sys.maxsize if kind == "char" else TRAINING_TEXT
        return train_tokenizer(kind, Again(lambda: _first(learnable, limit)), config.vocab, specials)
    if os.path.exists(kind):
        return Tokenizer.load(kind)
    raise Mistake(f"data.tokenizer={kind} is neither a file nor a kind of tokenizer; {nearest(kind, KINDS)}")


def _first(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


@dataclass
class Ids:
    """Some of the ids of one side of the split, and what they stand for."""

    held: bool
    ids: np.ndarray
    bytes: int
    documents: int


def encoded(parts: Parts, tokenizer: Tokenizer) -> Iterator[Ids]:
    """The ids of all texts, batch by batch; the end token stands between two documents of the same side."""
    dtype = dtype_for(tokenizer)
    end = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
    begun: set[bool] = set()
    batches = _batches(parts)
    with ThreadPoolExecutor(1) as reader:  # reads on while the library's own threads encode
        following = reader.submit(next, batches, None)
        while batch := following.result():
            following = reader.submit(next, batches, None)
            encoded = tokenizer.encode_batch([piece for _, _, piece in batch])
            for side in (False, True):
                arrays, size, documents = [], 0, 0
                for (held, starts, piece), ids in zip(batch, encoded, strict=True):
                    if held == side:
                        arrays += [end, ids] if starts and side in begun else [ids]
                        size += len(piece) if piece.isascii() else len(piece.encode())
                        documents += starts
                        begun.add(side)
                if arrays:
                    yield Ids(side, np.concatenate(arrays, dtype=dtype, casting="unsafe"), size, documents)


def _batches(parts: Parts) -> Iterator[list[tuple[bool, bool, str]]]:
    """Texts for one call of the tokenizer: (held out, starts a document, piece)."""
    batch: list[tuple[bool, bool, str]] = []
    characters = 0
    for held, text in parts:
        for number, piece in enumerate(pieces(text)):
            batch.append((held, number == 0, piece))
            characters += len(piece)
            if characters >= AT_ONCE:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def dtype_for(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab <= 2**16 else np.uint32)
