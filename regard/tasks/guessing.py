"""The loss of the best constant answer, which a model that has learned something must beat."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from regard.tasks.batches import Batch
from regard.tasks.loss import IGNORED

EACH = 100  # a BERT of width 128 was still at the level of word frequencies after 37 targets a word


@dataclass(frozen=True)
class Guess:
    """The best constant answer to some batches."""

    loss: float  # mean training loss, with smoothed labels and weights of classes
    plain_loss: float  # without smoothing and weights, as in evaluations
    share: float  # of the most frequent target
    steps: float = 0.0  # until each class or word was a target EACH times on average


def guess_targets(
    batches: Iterable[Batch], classes: int, smoothing: float = 0.0, weights: Sequence[float] | None = None
) -> Guess:
    """Guess by the frequency of each class or word among the targets; guess scores by their mean.

    The entropy of a sample is too low by about (number of classes in it - 1)/(2 n) (Miller 1955).
    """
    targets = [batch[-1][batch[-1] != IGNORED] for batch in batches]
    values = torch.cat(targets).numpy()
    if values.dtype.kind == "f":
        return Guess(float(values.var()), float(values.var()), 0.0)
    p = np.bincount(values, minlength=classes) / max(1, len(values))
    bias = float(np.count_nonzero(p) - 1) / (2 * max(1, len(values)))
    weight = np.ones(len(p)) if weights is None else np.asarray(weights)
    smoothed = weight * ((1 - smoothing) * p + smoothing / len(p))  # as in torch's cross_entropy
    steps = EACH * len(p) * len(targets) / max(1, len(values))
    return Guess(cross_entropy_of(smoothed) + bias, cross_entropy_of(p) + bias, float(p.max()), steps)


def cross_entropy_of(amounts: np.ndarray) -> float:
    """-Σ a log q for the best distribution q: a in proportion."""
    a = amounts[amounts > 0]
    return float(-(a * np.log(a / a.sum())).sum())
