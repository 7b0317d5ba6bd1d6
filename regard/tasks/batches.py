"""Parts that the batches of all tasks share."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.data import Buckets
from regard.data.ragged import Ragged
from regard.data.shuffling import random_keys, shuffle_index
from regard.tasks.loss import IGNORED

Batch = tuple[Tensor, ...]  # the arguments of a task's loss; the last one holds the targets
TOKENS_AT_ONCE = 8192  # of texts that are answered in one batch
RowsT = TypeVar("RowsT", bound=Sized)
ExamplesT = TypeVar("ExamplesT")


class Samples(Protocol):
    """The rows of each step, which depend only on the seed and the step."""

    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def steps_per_epoch(self) -> float: ...  # the number of steps that read all data once
    def rows(self, step: int) -> np.ndarray: ...


def targets(batch: Batch) -> int:
    """The number of predictions that count in a batch."""
    return int((batch[-1] != IGNORED).sum())


def count_pair(batch: Batch) -> dict[str, float]:
    """Count the tokens of the target, and of source and target together."""
    target = targets(batch)
    return {"target_tokens": target, "tokens": target + int(batch[1].sum())}


def idle(batch: Batch) -> Batch:
    """Return the batch without targets that count, for a process that takes part in a step without data."""
    return *batch[:-1], torch.full_like(batch[-1], IGNORED)


def per_token(loss: float, count: int, bytes: int) -> dict[str, float]:
    """Metrics from a summed loss over `count` predictions, which stand for this many bytes of text."""
    mean = loss / max(1, count)
    return {
        "loss": mean,
        "perplexity": math.exp(min(mean, 700)),
        "bits_per_byte": loss / math.log(2) / max(1, bytes),
    }


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of the arrays' contents, by which a resumed run recognises its data."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def encode_held_out(
    encode: Callable[[RowsT], tuple[ExamplesT, list[str]]], rows: RowsT
) -> tuple[ExamplesT | None, list[str]]:
    """Encode the held-out rows as a task's examples, if there are any; return notes, too."""
    if not len(rows):
        return None, []
    examples, notes = encode(rows)
    return examples, [f"held out: {note}" for note in notes]


def ragged(rows: Sequence[Sequence[Any] | np.ndarray], dtype: np.typing.DTypeLike = np.int64) -> Ragged:
    """Store rows of different lengths as one array."""
    flat = np.concatenate([np.array([], dtype), *(np.asarray(row, dtype) for row in rows)])
    return Ragged(flat, np.array([len(row) for row in rows], dtype=np.int64))


def pad_rows(side: Ragged, rows: np.ndarray, value: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Stack rows to (B, T), padded with `value`; return them and their attention mask."""
    n = side.lengths[rows][:, None]
    i = np.arange(n.max())
    attention_mask = i < n
    ids = np.full(attention_mask.shape, value, dtype=side.ids.dtype)
    ids[attention_mask] = side.ids[(side.offsets[rows][:, None] + i)[attention_mask]]
    return ids, attention_mask


def segments_from(seconds: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """Segments (B, T): 1 from where the second text of a row begins, else 0."""
    positions = np.arange(attention_mask.shape[1])
    return ((positions >= seconds[:, None]) & attention_mask).astype(np.int64)


def row_places(rows: np.ndarray, count: int) -> np.ndarray:
    """The index of each row and the number of all rows, (B, 2), for `at_places`."""
    return np.stack([rows, np.full_like(rows, count)], axis=1)


def at_places(values: Tensor, places: Tensor) -> Tensor:
    """Put the values (B,) at the places of their rows, 0 elsewhere: the sum over all batches has all rows."""
    all_rows = values.new_zeros(int(places[0, 1]), dtype=torch.float64)
    all_rows[places[:, 0]] = values.double()
    return all_rows


class Bucketed:
    """Batches of rows of similar length, with a fixed number of rows or tokens a step."""

    def __init__(
        self,
        data: Any,
        lengths: tuple[np.ndarray, np.ndarray],  # of both sides of a pair, or twice those of a text
        seed: int,
        rows: int,
        tokens: int | None,
    ):
        self.data = data
        self.buckets = Buckets(*lengths, seed, rows if tokens is None else None, tokens)
        self.steps_per_epoch = float(self.buckets.count)
        self.notes = [f"{self.buckets.count:,} batches an epoch, {self.buckets.padding:.1%} of them padding"]

    def rows(self, step: int) -> np.ndarray:
        return self.buckets.rows(step)

    def describe_shapes(self) -> str:
        """Describe the shapes that `Task.pad_to_bucket` makes of the batches."""
        shapes, padding = self.buckets.count_shapes()
        return f"padded to {shapes} shapes for CUDA graphs, {padding:.1%} of them padding"


class BucketedByPass(Bucketed):
    """As Bucketed; rows of later passes have other indices, so that each pass can augment them anew."""

    def rows(self, step: int) -> np.ndarray:
        return super().rows(step) + step // self.buckets.count * len(self.data)


class Shuffled:
    """All of the data in a new random order every epoch, with a fixed number of rows a step."""

    def __init__(self, data: Any, seed: int, size: int, notes: Sequence[str] = ()):
        self.data, self.seed, self.size, self.notes = data, seed, size, notes
        self.steps_per_epoch = len(data) / size

    def rows(self, step: int) -> np.ndarray:
        """Positions in the order of all epochs, one after another."""
        return np.arange(step * self.size, (step + 1) * self.size)

    def at(self, rows: np.ndarray) -> np.ndarray:
        """The indices of the items at these positions."""
        epochs, index = np.divmod(rows, len(self.data))
        return shuffle_index(index, len(self.data), random_keys(self.seed, epochs))
