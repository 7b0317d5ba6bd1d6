"""Projections of vectors to the plane.

Shapes: N vectors, D width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


class PCA:
    """The two directions in which vectors (N, D) differ most: principal components, Pearson 1901.

    The largest number of each direction is positive, so that the same vectors give the same map.
    """

    def __init__(self, x: Tensor):
        x = x.double()
        self.mean = x.mean(0)
        _, s, axes = torch.linalg.svd(x - self.mean, full_matrices=False)
        axes = axes[:2]  # (2, D)
        self.axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
        shares = s.square() / s.square().sum().clamp(min=1e-30)
        self.shares: list[float] = F.pad(shares, (0, 2))[:2].tolist()  # of the variance, in each direction

    def __call__(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, 2)"""
        return F.pad((x.double() - self.mean) @ self.axes.mT, (0, 2 - len(self.axes)))


def tsne(x: Tensor, steps: int = 500) -> Tensor:
    """(N, D) -> (N, 2), so that neighbours stay neighbours: t-SNE, van der Maaten & Hinton 2008.

    It starts from the principal components, so that the same vectors give the same map.
    """
    x, N = x.double(), len(x)
    if N < 3:
        return F.pad(torch.arange(N, dtype=torch.float64)[:, None], (0, 1))
    p = affinities(x)  # (N, N)
    alone = torch.eye(N, dtype=torch.bool)
    y = PCA(x)(x)
    y = y * (1e-2 / y.std().clamp(min=1e-12))  # (N, 2)
    momentum, gain = torch.zeros_like(y), torch.ones_like(y)
    for step in range(steps):
        early = step < steps // 4  # exaggerated affinities bring neighbours together first
        near = 1 / (1 + torch.cdist(y, y).square()).masked_fill(alone, torch.inf)  # (N, N)
        pull = ((4 if early else 1) * p - near / near.sum()) * near  # (N, N)
        slope = 4 * (pull.sum(1, keepdim=True) * y - pull @ y)  # eq. 5
        gain = torch.where(slope * momentum < 0, gain + 0.2, gain * 0.8).clamp(min=0.01)
        momentum = (0.5 if early else 0.8) * momentum - max(N / 4, 10) * gain * slope
        y = y + momentum
    return y


def affinities(x: Tensor) -> Tensor:
    """The symmetric p (N, N) of t-SNE, eq. 1: by bisection, every point has the same perplexity."""
    N = len(x)
    distances = torch.cdist(x, x).square()  # (N, N)
    alone = torch.eye(N, dtype=torch.bool)
    low, high = torch.full((N, 1), -20.0, dtype=torch.float64), torch.full((N, 1), 20.0, dtype=torch.float64)
    for _ in range(50):
        middle = (low + high) / 2
        p = (-middle.exp() * distances).masked_fill(alone, -torch.inf).softmax(1)  # (N, N)
        wide = torch.special.entr(p).sum(1, keepdim=True) > math.log(max(2, min(15, N / 4)))
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return (p + p.mT) / (2 * N)
