"""Documents as sentences of token ids, for next sentence prediction."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from regard.data.encoding import dtype_for
from regard.data.ragged import Ragged
from regard.data.splitting import hold_out_groups
from regard.errors import UserError
from regard.text.sentences import split_sentences
from regard.text.tokenizer import Tokenizer

LINES = 25  # lines of one sentence each that form a document, if there are no blank lines
SAMPLED_LINES = 1000


def split_paragraphs(text: str) -> list[str]:
    """Return the documents in a text, which blank lines separate.

    Without blank lines, each line is a document if most lines have several sentences; else every LINES
    lines are one, so that there are both next sentences and other documents.
    """
    parts = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(parts) > 1:
        return parts
    lines = [line for line in text.split("\n") if line.strip()]
    several = [len(split_sentences(line)) > 1 for line in lines[:SAMPLED_LINES]]
    count = 1 if 2 * sum(several) > len(several) else LINES
    return ["\n".join(lines[i : i + count]) for i in range(0, len(lines), count)]


class Passages:
    """The sentences of documents as ids, and passages: as many sentences of a document as fit."""

    def __init__(self, ids: Ragged, firsts: np.ndarray, bytes: int, longest: int) -> None:
        self.ids, self.bytes = ids, bytes
        self.firsts = firsts  # each document's first sentence, and the end
        cuts = [0]
        while cuts[-1] < firsts[-1]:
            cuts.append(self.passage_end(cuts[-1], longest))
        self.cuts = np.array(list(pairwise(cuts)))  # first sentence and end of each passage

    def passage_end(self, first: int, longest: int) -> int:
        """Return the end of a passage that begins with this sentence and has as many as fit, at least one."""
        stop = self.firsts[np.searchsorted(self.firsts, first, side="right")]
        starts = self.ids.offsets
        room = starts[first] + longest
        return first + max(1, int(np.searchsorted(starts[first + 1 : stop + 1], room, side="right")))

    def __len__(self) -> int:
        return len(self.cuts)

    def describe(self) -> str:
        return f"{len(self.ids.ids):,} tokens in {len(self.firsts) - 1:,} documents"

    def fingerprint(self) -> str:
        """Return the SHA-256 of all ids, lengths and documents."""
        sha = hashlib.sha256()
        for array in (self.ids.ids, self.ids.lengths, self.firsts):
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()

    def sentence_ids(self, first: int, stop: int) -> np.ndarray:
        """Return the ids of these sentences, concatenated."""
        return self.ids.ids[self.ids.offsets[first] : self.ids.offsets[stop]]

    def random_elsewhere(self, first: int, rng: np.random.Generator) -> int:
        """Return a random sentence of another document."""
        own = int(np.searchsorted(self.firsts, first, side="right")) - 1
        low, high, last = int(self.firsts[own]), int(self.firsts[own + 1]), int(self.firsts[-1])
        sentence = int(rng.integers(last - (high - low)))
        return sentence if sentence < low else sentence + high - low


def encode_passages(documents: Iterable[str], tokenizer: Tokenizer, longest: int) -> Passages:
    """Encode the sentences of every document; a passage has at most `longest` tokens."""
    ids, lengths, firsts, size = [], [], [0], 0
    for text in documents:
        parts = split_sentences(text)
        encoded = [e for e in tokenizer.encode_batch(parts) if len(e)]
        if encoded:
            ids += encoded
            lengths += [len(e) for e in encoded]
            firsts.append(len(lengths))
            size += len(text.encode())
    if not lengths:
        raise UserError("no sentence in the text; give more text")
    flat = np.concatenate(ids).astype(dtype_for(tokenizer))
    return Passages(Ragged(flat, np.array(lengths)), np.array(firsts), size, longest)


def split_documents(documents: Sequence[str], holdout: float) -> tuple[list[str], list[str]]:
    """Return documents for training and for validation: every tenth, for a holdout of 0.1."""
    held_out = hold_out_groups(documents, holdout)
    sides: tuple[list[str], list[str]] = [], []
    for document, out in zip(documents, held_out.tolist(), strict=True):
        sides[out].append(document)
    return sides
