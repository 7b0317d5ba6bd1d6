"""What every task's batches have in common."""

import math

import torch
from torch import Tensor

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
