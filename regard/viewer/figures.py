"""Figures computed from plain numbers: attention pooling, maps of words, curves and similarity of positions.

Shapes: N points, T queries, D width.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.attention import KERNELS, Score, attend
from regard.draw.heat import Matrix
from regard.draw.plots import Curves, Pooling
from regard.draw.word_map import Points
from regard.errors import UserError, suggest
from regard.text.projection import PCA


def average(q: Tensor, k: Tensor) -> Tensor:
    """A score that gives every key the same weight: plain averaging."""
    return q.new_zeros(q.shape[-2], k.shape[-2])


def pooling(
    x: Sequence[float], y: Sequence[float], kernel: str = "gaussian", width: float = 1.0, queries: int = 61
) -> Pooling:
    """Nadaraya-Watson regression (1964), f(q) = Σ K(q - x) y / Σ K(q - x): queries from the first x to the
    last, keys x, values y. Kernels are those of core/attention.py, and `average`, which has no width."""
    scores: dict[str, Score] = {name: partial(K, width=width) for name, K in KERNELS.items()}
    scores["average"] = average
    if kernel not in scores:
        raise UserError(f"kernel={kernel}: no such kernel; {suggest(kernel, scores)}")
    if not 0 < width < math.inf:
        raise UserError(f"width={width}: give a number greater than 0")
    if len(x) != len(y) or len(x) < 2:
        raise UserError(f"{len(x)} values of x and {len(y)} of y: give the same number of both, at least 2")
    k, v = (torch.as_tensor(side, dtype=torch.float64)[:, None] for side in (x, y))  # (N, 1)
    q = torch.linspace(float(k.min()), float(k.max()), queries, dtype=torch.float64)[:, None]  # (T, 1)
    fitted, weights = attend(q, k, v, score=scores[kernel])
    title = "plain averaging" if kernel == "average" else f"{kernel} kernel, width {width:g}"
    fitted = fitted.masked_fill(weights.sum(-1, keepdim=True) == 0, math.nan)  # far from all points
    return Pooling(title, *(t.numpy() for t in (k[:, 0], v[:, 0], q[:, 0], fitted[:, 0], weights)))


def classify_by_pooling(
    queries: Tensor, points: Tensor, labels: Tensor, width: float = 1.0, kernel: str = "gaussian"
) -> tuple[Tensor, Tensor]:
    """Nadaraya-Watson classification: the share (T, C) of each class, and the weights (T, N), for queries
    (T, D), given points (N, D) and their labels (N,). Keys are the points, values their classes as one-hot
    vectors.

    A narrow Gaussian kernel is a lookup, with all weight on the nearest point; a very wide one gives the
    share of each class among all points.
    """
    values = F.one_hot(labels).to(points.dtype)  # (N, C)
    return attend(queries, points, values, score=partial(KERNELS[kernel], width=width))


def word_map(title: str, words: Sequence[str], vectors: Tensor) -> Points:
    """Words in the plane of the principal components of their vectors (N, D)."""
    vectors = vectors.detach().double().cpu()
    return Points(title, PCA(vectors)(vectors).numpy(), words)


def waves(title: str, table: np.ndarray, count: int = 4) -> Curves:
    """Some columns of a table of positions (T, D), from the fast first to the slower middle one."""
    D = table.shape[1]
    columns = sorted({round(i * (D // 2) / count) for i in range(count)})
    at = np.arange(len(table), dtype=np.float64)
    return Curves(title, "position", {f"number {i}": (at, table[:, i]) for i in columns})


def similarity_matrix(title: str, table: np.ndarray) -> Matrix:
    """Cosine similarities between the rows of a table (T, D)."""
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    names, cosines = list(map(str, range(len(table)))), unit @ unit.T  # (T, T)
    return Matrix(title, cosines, names, names, float(cosines.min()))
