"""Encode each distinct piece of a text once: natural text repeats its words, and looking them up is fast."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from regard.text.tokenizer import Tokenizer, split_pieces, tokenizer_errors
from regard.text.tokenizer_limits import GPT2_PATTERN, LATER_PATTERNS

MAX_KNOWN = 2**19  # pieces: some 100 MB
MAX_LENGTH = 64  # characters of a piece that is cached
MAX_UNKNOWN = 0.25  # the share of unknown pieces at which the cache is cleared
BLOCK = 1024  # words that are encoded as one text

# Patterns that cut texts only where the tokenizer cuts, too. Python's \s has all white space of the library's
# patterns and more, so \S is none there.
# White space is dropped: the pieces are what stands between.
DROPPED = re.compile(r"[^ \t\n\r]++")
# No token of GPT-2's pattern has white space after another character, and what is chosen at a place depends
# on nothing before it and on no more after it than the white space that begins there: cut between both.
BEFORE_SPACES = re.compile(r"\s*+\S++(?:[^\S \t\n\r]\s*+\S*+)*+|\s++")
# Later patterns join punctuation with the newlines after it (and with slashes): cut before spaces, and behind
# newlines that come at once after another character and before the next one.
AROUND_NEWLINES = re.compile(r"\s*+\S++(?:[\r\n]++(?=[^\s/])|(?:[^\S ]\s*+\S*+)*+)|\s++")

# Can separate words of one text without changing their tokens, if it is a token itself.
SEPARATORS = {BEFORE_SPACES: "\n", AROUND_NEWLINES: " \n"}
WORD = re.compile(r" ?[^\W\d_](?:[^\n]*\S)?")

# Normalizers that change each character by itself, or with marks after it, and no white space.
KEEPING = {"NFC", "NFD", "Lowercase"}
REMOVING = {"BertNormalizer", "StripAccents"}  # and characters between spaces, which are then one run


def piece_pattern(inner: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Return a pattern of the pieces of a text that can be encoded one by one; None if there is no known one.

    Models of whole words have none either: the library looks them up as fast.
    """
    if isinstance(inner.model, models.WordLevel) or (
        isinstance(inner.model, models.BPE) and inner.model.dropout
    ):
        return None
    normalizers = _steps(inner.normalizer, "normalizers")
    pattern = _pre_tokenizer_pattern(_steps(inner.pre_tokenizer, "pretokenizers"))
    allowed = KEEPING | REMOVING if pattern is DROPPED else KEEPING
    if not {step["type"] for step in normalizers} <= allowed:
        return None
    added = inner.get_added_tokens_decoder().values()  # the spelling of special tokens is not searched
    if not all(token.special for token in added) and any(
        token.lstrip or token.rstrip or re.search(r"\s", token.content) or (token.normalized and normalizers)
        for token in added
    ):
        return None
    return pattern


def _steps(part: Any, key: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or a pre-tokenizer."""
    if part is None:
        return []
    step = json.loads(part.__getstate__())
    return step[key] if step["type"] == "Sequence" else [step]


def _pre_tokenizer_pattern(steps: list[dict[str, Any]]) -> re.Pattern[str] | None:
    match steps:
        case [{"type": "WhitespaceSplit" | "Whitespace" | "BertPreTokenizer"}]:
            return DROPPED
        case [
            *first,
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(by_pattern)},
        ]:
            pass
        case _:
            return None
    match first:
        case [] | [{"type": "Digits"}]:
            return BEFORE_SPACES if by_pattern else None
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}] if not by_pattern:
            if pattern in LATER_PATTERNS:
                return AROUND_NEWLINES
            return BEFORE_SPACES if pattern == GPT2_PATTERN else None
    return None


class KnownPieces(dict[str, bytes]):
    """The ids of pieces, as int32; missing ones are collected, and None is returned for them."""

    missing: list[str]

    def __missing__(self, piece: str) -> Any:
        self.missing.append(piece)
        return None


class PieceEncoder:
    """Encodes texts like `Tokenizer.encode_batch`, and caches the ids of their pieces.

    The first pieces are kept, since frequent ones come early; if many are unknown, the cache starts anew.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pattern = piece_pattern(tokenizer.inner) if tokenizer.sandbox is None else None
        self.known = KnownPieces()
        self.separator = SEPARATORS.get(self.pattern, "") if self.pattern else ""
        ids = tokenizer.encode(self.separator) if self.separator else []
        self.separator_id = ids[0] if len(ids) == 1 else None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self.pattern is None:
            return self.tokenizer.encode_batch(texts)
        find, known = self.pattern.findall, self.known
        rows = [list(chain.from_iterable(map(find, split_pieces(text)))) for text in texts]
        missing: list[str] = []
        known.missing = missing
        ids: list[list[Any]] = [list(map(known.__getitem__, row)) for row in rows]
        learned = self._encode_new(list(dict.fromkeys(missing)))
        pieces = iter(missing)
        for row_ids in ids:
            place = -1
            for _ in range(row_ids.count(None)):
                place = row_ids.index(None, place + 1)
                row_ids[place] = learned[next(pieces)]
        if len(known) >= MAX_KNOWN and len(missing) > MAX_UNKNOWN * sum(map(len, rows)):
            known.clear()
        short = (piece for piece in learned if len(piece) <= MAX_LENGTH)
        known.update((piece, learned[piece]) for piece in islice(short, max(0, MAX_KNOWN - len(known))))
        return [np.frombuffer(b"".join(row_ids), np.int32) for row_ids in ids]

    def _encode_new(self, pieces: list[str]) -> dict[str, bytes]:
        learned = dict(self._encode_words([piece for piece in pieces if WORD.fullmatch(piece)]))
        single = [piece for piece in pieces if piece not in learned]
        return learned | dict(zip(single, map(np.ndarray.tobytes, self._encode(single)), strict=True))

    def _encode_words(self, words: list[str]) -> Iterator[tuple[str, bytes]]:
        """Encode many words as one text, which is faster, with separators whose token nothing else has."""
        if self.separator_id is None:
            return
        blocks = [words[i : i + BLOCK] for i in range(0, len(words), BLOCK)]
        for block, ids in zip(blocks, self._encode([self.separator.join(b) for b in blocks]), strict=True):
            ends = np.flatnonzero(ids == self.separator_id)
            if len(ends) == len(block) - 1:
                data = ids.tobytes()
                stops = [*(ends * ids.itemsize).tolist(), len(data)]
                starts = [0, *((ends + 1) * ids.itemsize).tolist()]
                for word, start, stop in zip(block, starts, stops, strict=True):
                    yield word, data[start:stop]

    def _encode(self, pieces: list[str]) -> list[np.ndarray]:
        with tokenizer_errors("the tokenizer fails on this text"):
            encodings = self.tokenizer.inner.encode_batch_fast(pieces, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]
