"""Streams of token ids, and which parts of them training sees when."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from regard.errors import Mistake


class Stream:
    """Token ids that follow one another, in parts that may lie on disk; `bytes` of UTF-8 are behind them."""

    def __init__(self, parts: Sequence[np.ndarray], bytes: int) -> None:
        self.parts = list(parts)
        self.bytes = bytes
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    def describe(self) -> str:
        return f"{len(self):,} tokens"

    def fingerprint(self) -> str:
        """SHA-256 of the length and of up to a million tokens spread over the stream: are these the same
        data?"""
        sha = hashlib.sha256(f"{len(self)}".encode())
        for start in np.linspace(0, max(0, len(self) - 4096), 256, dtype=np.int64).tolist():
            sha.update(self.read(start, min(len(self), start + 4096)).tobytes())
        return sha.hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from start up to stop, as int64."""
        ids = np.empty(max(0, min(stop, len(self)) - start), dtype=np.int64)
        filled = 0
        part = int(np.searchsorted(self.ends, start, side="right"))
        while filled < len(ids):
            begin = start + filled - (int(self.ends[part]) - len(self.parts[part]))
            piece = self.parts[part][begin : begin + len(ids) - filled]
            ids[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return ids

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """The `width` ids from each start, one row each, as int64."""
        first, last = (np.searchsorted(self.ends, at, side="right") for at in (starts, starts + width - 1))
        if (first[0] == first).all() and (first == last).all():  # in one part: all at once
            part = self.parts[first[0]]
            inside = starts - (self.ends[first[0]] - len(part))
            return part[inside[:, None] + np.arange(width)].astype(np.int64)
        return np.stack([self.read(start, start + width) for start in starts.tolist()])


def mixed(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (splitmix64's finaliser; Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: its multiples lie far apart


def keys(seed: int, numbers: np.ndarray) -> np.ndarray:
    """An independent random 64-bit key for every number, under a seed."""
    start = mixed(np.array([seed % 2**64], dtype=np.uint64) + np.uint64(GOLDEN))
    return mixed((numbers.astype(np.uint64) + start) * np.uint64(GOLDEN))


def shuffled(index: np.ndarray, n: int, key: np.ndarray) -> np.ndarray:
    """Where each index goes in the random order of range(n) that its key names: a bijection without a table.

    A Feistel network permutes the numbers of 2 * half bits; what falls outside of range(n) walks on to the
    next number in its cycle (Black & Rogaway 2002).
    """
    key = np.broadcast_to(key, index.shape)
    if n <= 64:  # too few bits for a network, few enough to sort
        noise = mixed(key[:, None] + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN))
        return np.take_along_axis(noise.argsort(axis=1), index[:, None], axis=1)[:, 0]
    half = -(-(n - 1).bit_length() // 2)
    low = np.uint64(2**half - 1)
    place = index.astype(np.uint64)
    outside = np.arange(place.size)
    while outside.size:
        left, right = place[outside] >> np.uint64(half), place[outside] & low
        for turn in range(6):
            noise = mixed(right + key[outside] + np.uint64(turn * GOLDEN % 2**64))
            left, right = right, left ^ (noise >> np.uint64(64 - half))
        place[outside] = left << np.uint64(half) | right
        outside = outside[place[outside] >= n]
    return place.astype(np.int64)


class Windows:
    """Windows of a stream, in a new random order and from a new offset every epoch.

    What stands at a position is a function of (seed, position) alone: there is no state to save, and any
    number of processes can share the positions out.
    """

    def __init__(self, stream: Stream, context: int, seed: int, size: int) -> None:
        if len(stream) < 2:
            raise Mistake(f"training needs at least two tokens, the text has {len(stream)}; give more text")
        self.stream, self.seed, self.size = stream, seed, size  # `size` windows a step
        self.width = min(context, len(stream) - 1)
        # One window fewer than would fit leaves room to shift them.
        self.count = max(1, (len(stream) - 1) // self.width - 1)
        self.slack = len(stream) - 1 - self.count * self.width

    notes = ()  # for people: whole windows waste nothing

    def rows(self, step: int) -> np.ndarray:
        """The positions that a step reads."""
        return np.arange(step * self.size, (step + 1) * self.size)

    def batch(self, positions: np.ndarray) -> np.ndarray:
        """The windows at these positions, each with the token after it: (B, width + 1)."""
        epochs, index = np.divmod(np.asarray(positions, dtype=np.int64), self.count)
        order, offset = keys(self.seed, 2 * epochs), keys(self.seed, 2 * epochs + 1)
        starts = (offset % np.uint64(self.slack + 1)).astype(np.int64)
        starts += shuffled(index, self.count, order) * self.width
        return self.stream.rows(starts, self.width + 1)


def in_order(stream: Stream, context: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The whole stream as (inputs, targets), both (B, T): each token but the first is a target once."""
    last = len(stream) - 1
    full = max(0, last) // context
    for first in range(0, full, batch):
        rows = min(batch, full - first)
        ids = stream.read(first * context, (first + rows) * context + 1)
        yield ids[:-1].reshape(rows, context), ids[1:].reshape(rows, context)
    if full * context < last:
        ids = stream.read(full * context, last + 1)[None]
        yield ids[:, :-1], ids[:, 1:]
