"""Documents as sentences of token ids, for models that tell whether two pieces of text belong together."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from regard.errors import Mistake
from regard.sentences import sentences
from regard.text import Tokenizer

from .encoding import dtype_for
from .pairs import Ragged

LINES = 25  # of one sentence each that make a document, where no blank line parts them
LOOKED_AT = 1000


def paragraphs(text: str) -> list[str]:
    """The documents in a text: between blank lines. If it has none, its lines, when most of them have several
    sentences; else so many of them at a time: they follow each other, and there is something elsewhere."""
    parts = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(parts) > 1:
        return parts
    lines = [line for line in text.split("\n") if line.strip()]
    several = [len(sentences(line)) > 1 for line in lines[:LOOKED_AT]]
    many = 1 if 2 * sum(several) > len(several) else LINES
    return ["\n".join(lines[i : i + many]) for i in range(0, len(lines), many)]


class Passages:
    """Sentences as ids, document by document; and passages: as many sentences of one as have room."""

    def __init__(self, ids: Ragged, firsts: np.ndarray, bytes: int, longest: int) -> None:
        self.ids, self.bytes = ids, bytes
        self.firsts = firsts  # each document's first sentence, and the end
        cuts = [0]
        while cuts[-1] < firsts[-1]:
            cuts.append(self.until(cuts[-1], longest))
        self.cuts = np.array(list(pairwise(cuts)))  # first sentence and end of each passage

    def until(self, first: int, longest: int) -> int:
        """The end of as many of a document's sentences, from this one on, as have room, but at least one."""
        stop = self.firsts[np.searchsorted(self.firsts, first, side="right")]
        starts = self.ids.offsets
        room = starts[first] + longest
        return first + max(1, int(np.searchsorted(starts[first + 1 : stop + 1], room, side="right")))

    def __len__(self) -> int:
        return len(self.cuts)

    def describe(self) -> str:
        return f"{len(self.ids.ids):,} tokens in {len(self.firsts) - 1:,} documents"

    def fingerprint(self) -> str:
        sha = hashlib.sha256()
        for array in (self.ids.ids, self.ids.lengths, self.firsts):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()

    def joined(self, first: int, stop: int) -> np.ndarray:
        """The ids of some sentences, end to end."""
        return self.ids.ids[self.ids.offsets[first] : self.ids.offsets[stop]]

    def elsewhere(self, first: int, rng: np.random.Generator) -> int:
        """A sentence of another document than that of this one, at random."""
        own = int(np.searchsorted(self.firsts, first, side="right")) - 1
        low, high, last = int(self.firsts[own]), int(self.firsts[own + 1]), int(self.firsts[-1])
        at = int(rng.integers(last - (high - low)))
        return at if at < low else at + high - low


def passages(documents: Iterable[str], tokenizer: Tokenizer, longest: int) -> Passages:
    """Every document's sentences as ids; `longest` tokens have room in a passage."""
    ids, lengths, firsts, size = [], [], [0], 0
    for text in documents:
        parts = sentences(text)
        encoded = [e for e in tokenizer.encode_batch(parts) if len(e)]
        if encoded:
            ids += encoded
            lengths += [len(e) for e in encoded]
            firsts.append(len(lengths))
            size += len(text.encode())
    if not lengths:
        raise Mistake("there is no sentence in the text; give more text")
    flat = np.concatenate(ids).astype(dtype_for(tokenizer))
    return Passages(Ragged(flat, np.array(lengths)), np.array(firsts), size, longest)


def divided(documents: Sequence[str], holdout: float) -> tuple[list[str], list[str]]:
    """Documents to learn from and to measure on: every tenth, for a holdout of 0.1."""
    every = max(2, round(1 / holdout)) if holdout else 0
    if not every or len(documents) < 2:
        return list(documents), []
    every = min(every, len(documents))
    return [d for i, d in enumerate(documents, 1) if i % every], list(documents[every - 1 :: every])
