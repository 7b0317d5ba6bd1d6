"""Rows of token ids of different lengths."""

import numpy as np


class Ragged:
    """Rows of ids of different lengths, concatenated in one array."""

    def __init__(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        self.ids, self.lengths = ids, lengths.astype(np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def __add__(self, other: "Ragged") -> "Ragged":
        """Return the rows of both."""
        return Ragged(np.concatenate([self.ids, other.ids]), np.concatenate([self.lengths, other.lengths]))

    def keep_last(self, counts: np.ndarray, rows: np.ndarray) -> "Ragged":
        """Return the last `counts` ids of each row for which the boolean array `rows` is True."""
        counts = np.where(rows, counts, 0)
        # In each row, first the ids to drop, then those to keep: a byte for every id instead of an index.
        parts = np.stack([self.lengths - counts, counts], axis=1).ravel()
        mask = np.repeat(np.tile([False, True], len(counts)), parts)
        return Ragged(self.ids[mask], counts[rows])
