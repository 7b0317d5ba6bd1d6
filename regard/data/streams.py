"""Streams of token ids, and windows of them in random order for training."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from regard.data.shard import Shard
from regard.data.shuffling import random_keys, shuffle_index
from regard.errors import UserError

BLOCK = 2**20  # tokens at a time, if all are read


class Stream:
    """Consecutive token ids, in memory or in files; `bytes` is the size of the text in UTF-8."""

    def __init__(self, parts: Sequence[np.ndarray | Shard], bytes: int) -> None:
        self.parts = list(parts)
        self.bytes = bytes
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    def describe(self) -> str:
        return f"{len(self):,} tokens"

    def fingerprint(self) -> str:
        """Return a SHA-256 of all tokens; tokens of files are checked by the files' own SHA-256."""
        shards = [part for part in self.parts if isinstance(part, Shard)]
        for shard in shards:
            shard.check_begun = True  # so that other readers don't have to wait
        sha = hashlib.sha256(f"{len(self)}".encode())
        for part in self.parts:
            if isinstance(part, Shard):
                part.check()
                sha.update(part.sha256.encode())
            else:
                for start in range(0, len(part), BLOCK):
                    sha.update(part[start : start + BLOCK].astype("<u4").data)
        return sha.hexdigest()

    def sampled_fingerprint(self) -> str:
        """Return the SHA-256 of the length and of up to a million tokens, as earlier versions did."""
        sha = hashlib.sha256(f"{len(self)}".encode())
        for start in np.linspace(0, max(0, len(self) - 4096), 256, dtype=np.int64).tolist():
            sha.update(self.read(start, min(len(self), start + 4096)).tobytes())
        return sha.hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the ids from start up to stop, as int64."""
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

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all ids, some at a time."""
        for start in range(0, len(self), BLOCK):
            yield self.read(start, start + BLOCK)

    def windows(self, context: int, seed: int, size: int) -> "Windows":
        """Return windows of `context` tokens for training, `size` of them a step."""
        return Windows(self, context, seed, size)

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the `width` ids from each start, one row each, as int64."""
        first, last = (np.searchsorted(self.ends, i, side="right") for i in (starts, starts + width - 1))
        ids = np.empty((len(starts), width), dtype=np.int64)
        for number in np.unique(first).tolist():  # all rows of a part with one operation
            part, rows = self.parts[number], np.flatnonzero((first == number) & (last == number))
            inside = starts[rows] - (self.ends[number] - len(part))
            if isinstance(part, Shard):
                ids[rows] = part.rows(inside, width)
            else:
                ids[rows] = part[inside[:, None] + np.arange(width)]
        for row in np.flatnonzero(first != last).tolist():
            ids[row] = self.read(int(starts[row]), int(starts[row]) + width)
        return ids


class Windows:
    """Windows of a stream, in a new random order and from a new offset every epoch.

    The window at a position is a function of (seed, position) alone, so there is no state to save, and any
    number of processes can share the positions.
    """

    def __init__(self, stream: Stream, context: int, seed: int, size: int) -> None:
        if len(stream) < 2:
            raise UserError(
                f"training needs at least two tokens, but the text has {len(stream)}; give more text"
            )
        self.stream, self.seed, self.size = stream, seed, size  # `size` windows per step
        self.width = min(context, len(stream) - 1)
        # One window fewer than would fit leaves room for a random offset.
        self.count = max(1, (len(stream) - 1) // self.width - 1)
        self.slack = len(stream) - 1 - self.count * self.width
        self.steps_per_epoch = self.count / size

    notes = ()  # nothing to report: windows have no padding

    def rows(self, step: int) -> np.ndarray:
        """Return the positions that a step reads."""
        return np.arange(step * self.size, (step + 1) * self.size)

    def batch(self, positions: np.ndarray) -> np.ndarray:
        """Return the windows at these positions, each with the token after it: (B, width + 1)."""
        epochs, index = np.divmod(np.asarray(positions, dtype=np.int64), self.count)
        order, offset = random_keys(self.seed, 2 * epochs), random_keys(self.seed, 2 * epochs + 1)
        starts = (offset % np.uint64(self.slack + 1)).astype(np.int64)
        starts += shuffle_index(index, self.count, order) * self.width
        return self.stream.rows(starts, self.width + 1)


def in_order(stream: Stream, context: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the stream as (inputs, targets), both (B, T); each token but the first is a target once."""
    last = len(stream) - 1
    full = max(0, last) // context
    for first in range(0, full, batch):
        rows = min(batch, full - first)
        ids = stream.read(first * context, (first + rows) * context + 1)
        yield ids[:-1].reshape(rows, context), ids[1:].reshape(rows, context)
    if full * context < last:
        ids = stream.read(full * context, last + 1)[None]
        yield ids[:, :-1], ids[:, 1:]
