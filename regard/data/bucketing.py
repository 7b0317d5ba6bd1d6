"""Batches of pairs of similar length, so that there is little padding."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from regard.data.shuffling import random_keys, shuffle_index
from regard.errors import UserError


class Buckets:
    """Batches of pairs of similar length, with different neighbours and in a different order every epoch.

    The batch of a step is a function of (seed, step) alone, so there is no state to save. The pairs are
    shuffled and then stably sorted by bucket; so each position has the same bucket in every epoch, and the
    boundaries of batches, which depend on the longest pair of a bucket, are the same too.

    A batch has at most `rows` pairs, or `tokens` tokens on its longer side with padding, where each text
    has one more token, which begins or ends it; a pair that is longer than that is a batch of its own.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        seed: int,
        rows: int | None = None,
        tokens: int | None = None,
    ) -> None:
        assert (rows is None) != (tokens is None), "either rows or tokens"
        if not len(source_lengths):
            raise UserError("training needs at least one pair, but there is none; give more data")
        self.lengths, self.seed = (source_lengths, target_lengths), seed
        longer = np.maximum(source_lengths, target_lengths)
        edges = _bucket_edges(int(longer.max()))
        size = np.searchsorted(edges, longer)
        # Within a size, sort by how much longer the target is than the source, in alternating directions,
        # so that neighbours on both sides of a boundary are alike too.
        excess = np.searchsorted(edges, target_lengths) - np.searchsorted(edges, source_lengths)
        self.bucket = (size * 2 * len(edges) + len(edges) + np.where(size % 2, excess, -excess)).astype(
            np.uint64
        )
        if rows is not None:
            self.cuts = np.append(np.arange(0, len(longer), rows), len(longer))
        else:
            longest = np.zeros(len(edges), dtype=np.int64)
            np.maximum.at(longest, size, longer)
            self.cuts = _batch_cuts(np.repeat(longest, np.bincount(size, minlength=len(edges))), tokens or 0)
        self.count = len(self.cuts) - 1  # batches in an epoch
        self.current = (-1, np.array([], dtype=np.int64))  # an epoch and its order

    def rows(self, step: int) -> np.ndarray:
        """Return the row numbers of this step's batch."""
        epoch, index = divmod(step, self.count)
        current = self.current  # another thread may be in another epoch
        if current[0] != epoch:
            current = self.current = (epoch, self._order(epoch))
        key = random_keys(self.seed, np.array([2 * epoch + 1]))
        batch = int(shuffle_index(np.array([index]), self.count, key)[0])
        return current[1][self.cuts[batch] : self.cuts[batch + 1]]

    def _order(self, epoch: int) -> np.ndarray:
        """Return all pairs sorted by bucket, at random within each bucket."""
        seed = int(random_keys(self.seed, np.array([2 * epoch]))[0])
        noise = random_keys(seed, np.arange(len(self.bucket)))
        return np.argsort(self.bucket << np.uint64(40) | noise >> np.uint64(24), kind="stable")

    @cached_property
    def padding(self) -> float:
        """The share of padding among the tokens of both sides, over the first epoch."""
        return self._padding(self._widths())

    def count_shapes(self) -> tuple[int, float]:
        """The number of shapes, and the share of padding, if both sides are as wide as their bucket."""
        widths = np.array([bucket_width(width) for width in np.maximum(*self._widths()).tolist()])
        shapes = set(zip(np.diff(self.cuts).tolist(), widths.tolist(), strict=True))
        return len(shapes), self._padding([widths, widths])

    def _widths(self) -> list[np.ndarray]:
        """The widths of both sides of all batches, in the first epoch."""
        order = self._order(0)
        return [np.maximum.reduceat(side[order], self.cuts[:-1]) + 1 for side in self.lengths]

    def _padding(self, widths: list[np.ndarray]) -> float:
        rows = np.diff(self.cuts)
        used = sum(int((side + 1).sum()) for side in self.lengths)
        return 1 - used / sum(int((width * rows).sum()) for width in widths)


def in_length_order(
    source_lengths: np.ndarray, target_lengths: np.ndarray, tokens: int
) -> Iterator[np.ndarray]:
    """Yield the row numbers of all pairs once, shortest first, in batches of at most `tokens` tokens.

    Tokens are counted as in Buckets. For evaluation, with little padding.
    """
    longer, excess = np.maximum(source_lengths, target_lengths), target_lengths - source_lengths
    order = np.lexsort((np.where(longer % 2, excess, -excess), longer))
    cuts = _batch_cuts(longer[order], tokens)
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        yield order[start:stop]


def _bucket_edges(longest: int) -> np.ndarray:
    """Return the longest length of each bucket; a bucket spans two lengths, or a tenth of its length."""
    # Finer buckets pad less, but hold fewer pairs than a batch: the same pairs would always meet in it.
    edges = [0]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 2, edges[-1] * 11 // 10))
    return np.array(edges)


def bucket_width(width: int) -> int:
    """Return the width of a batch with padding up to the longest text of its bucket, and one more token."""
    return int(_bucket_edges(width - 1)[-1]) + 1


def _batch_cuts(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Return where batches begin, and the end; each has as many of the ascending lengths as fit."""

    def fitting_rows(start: int) -> int:
        limit = min(len(lengths) - start, tokens // (int(lengths[start]) + 1))
        padded = lambda rows: rows * (int(lengths[start + rows - 1]) + 1)  # noqa: E731
        return max(1, bisect_right(range(1, limit + 1), tokens, key=padded))

    cuts = [0]
    while cuts[-1] < len(lengths):
        cuts.append(cuts[-1] + fitting_rows(cuts[-1]))
    return np.array(cuts)
