"""Figures as numbers: curves, bars, maps of words, attention pooling, the tree of a search.

Shapes: N points, T queries, D width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from regard.attention import KERNELS, Score, pool
from regard.errors import Mistake
from regard.recipe import nearest
from regard.vectors import principal


@dataclass(frozen=True)
class Curves:
    """Lines by name, over what is written below them."""

    title: str
    x: str
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]]  # x and y of each
    points: tuple[np.ndarray, np.ndarray] | None = None  # drawn as dots


@dataclass(frozen=True)
class Points:
    """Words at their places in the plane."""

    title: str
    places: np.ndarray  # (N, 2)
    words: Sequence[str]


@dataclass(frozen=True)
class Bars:
    """A bar for each name, beside it those of other groups; from 0 up."""

    title: str
    names: Sequence[str]
    groups: Mapping[str, np.ndarray]  # a height for each name


@dataclass(frozen=True)
class Pooling:
    """A curve from data points by attention: what each query is told, and from which points."""

    title: str
    x: np.ndarray  # N
    y: np.ndarray  # N
    queries: np.ndarray  # T
    fitted: np.ndarray  # T
    weights: np.ndarray  # (T, N)


@dataclass(frozen=True)
class Tree:
    """Texts that grow word by word, each with its probability; those that were kept stand out."""

    title: str
    texts: Mapping[tuple[str, ...], float]
    kept: Sequence[tuple[str, ...]]


def average(q: Tensor, k: Tensor) -> Tensor:
    """All keys alike: plain averaging as a score."""
    return q.new_zeros(q.shape[-2], k.shape[-2])


def pooling(
    x: Sequence[float], y: Sequence[float], kernel: str = "gaussian", width: float = 1.0, queries: int = 61
) -> Pooling:
    """Nadaraya-Watson regression (1964), f(q) = Σ K(q - x) y / Σ K(q - x): queries from the first x to the
    last, keys x, values y. Kernels are those of attention.py, and `average`, which has no width."""
    scores: dict[str, Score] = {name: partial(K, width=width) for name, K in KERNELS.items()}
    scores["average"] = average
    if kernel not in scores:
        raise Mistake(f"kernel={kernel}: no such kernel; {nearest(kernel, scores)}")
    if not 0 < width < math.inf:
        raise Mistake(f"width={width}: give a number above 0")
    if len(x) != len(y) or len(x) < 2:
        raise Mistake(f"{len(x)} values of x and {len(y)} of y: give as many of both, 2 or more")
    k, v = (torch.as_tensor(side, dtype=torch.float64)[:, None] for side in (x, y))  # (N, 1)
    q = torch.linspace(float(k.min()), float(k.max()), queries, dtype=torch.float64)[:, None]  # (T, 1)
    fitted, weights = pool(q, k, v, score=scores[kernel])
    title = "plain averaging" if kernel == "average" else f"{kernel} kernel, width {width:g}"
    told = fitted.masked_fill(weights.sum(-1, keepdim=True) == 0, math.nan)  # far from all points
    return Pooling(title, *(t.numpy() for t in (k[:, 0], v[:, 0], q[:, 0], told[:, 0], weights)))


def word_map(title: str, words: Sequence[str], vectors: Tensor) -> Points:
    """Words by their vectors (N, D) in the plane that shows most of their differences: PCA."""
    return Points(title, principal(vectors.detach().double().cpu()).numpy(), words)


def waves(title: str, table: np.ndarray, count: int = 4) -> Curves:
    """Some columns of a table of positions (T, D), from the first to the middle one: quick ones to slow."""
    D = table.shape[1]
    some = sorted({round(i * (D // 2) / count) for i in range(count)})
    at = np.arange(len(table), dtype=np.float64)
    return Curves(title, "position", {f"number {i}": (at, table[:, i]) for i in some})
