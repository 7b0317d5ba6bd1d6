"""What every task's batches have in common."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data import Buckets
from regard.data.pairs import Ragged
from regard.loss import IGNORED

Batch = tuple[Tensor, ...]  # what a task's loss takes; the last one holds the targets


def targets(batch: Batch) -> int:
    """How many predictions a batch asks for."""
    return int((batch[-1] != IGNORED).sum())


def idle(batch: Batch) -> Batch:
    """The batch, but nothing in it counts: for a process that has no row of a step, and must keep time."""
    return *batch[:-1], torch.full_like(batch[-1], IGNORED)


def per_token(loss: float, count: int, bytes: int) -> dict[str, float]:
    """What a summed loss over `count` predictions of so many bytes of text means to people."""
    mean = loss / max(1, count)
    return {
        "loss": mean,
        "perplexity": math.exp(min(mean, 700)),
        "bits_per_byte": loss / math.log(2) / max(1, bytes),
    }


def padded(side: Ragged, rows: np.ndarray, by: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows on top of each other (B, T), filled up with `by`, and where they are real."""
    n = side.lengths[rows][:, None]
    i = np.arange(n.max())
    real = i < n
    found = np.full(real.shape, by, dtype=side.ids.dtype)
    found[real] = side.ids[(side.offsets[rows][:, None] + i)[real]]
    return found, real


class Bucketed:
    """Samples of similar length together, so many rows or tokens a step; what a step reads depends on seed
    and step alone."""

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
        self.notes = [f"{self.buckets.count:,} batches an epoch, {self.buckets.waste:.1%} of them padding"]

    def rows(self, step: int) -> np.ndarray:
        return self.buckets.rows(step)
