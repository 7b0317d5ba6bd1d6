"""Pairs of all processes in one batch, for losses in which every pair competes with all others.

Shapes: B pairs of a process, N pairs of all processes, D width.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from regard.tasks.loss import IGNORED
from regard.training import distributed


class Sum(torch.autograd.Function):
    """The sum over all processes, forward and backward, since every process's loss depends on all of it."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def gather_pairs(
    u: Tensor, v: Tensor, numbers: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, slice]:
    """Gather the vectors (N, D) (v may have negatives appended), text numbers and labels of all processes;
    and return which rows are this process's own."""
    if distributed.WORLD == 1 or u.device.type == "meta":
        return u, v, numbers, labels, slice(None)
    B = len(u)
    size = int(distributed.all_max(B)[0])
    before, after = distributed.RANK * size, (distributed.WORLD - distributed.RANK) * size - B
    x = F.pad(torch.cat([u, v], 1), (0, 0, before, after))
    x = Sum.apply(x)  # (N, 2 * D), or 3 * D with negatives
    known = torch.cat([numbers, labels[:, None] - IGNORED], 1)  # shifted: an empty row comes out as IGNORED
    known = distributed.all_sum(F.pad(known, (0, 0, before, after)))
    u, v = x.split([u.shape[1], v.shape[1]], 1)
    return u, v, known[:, :-1], known[:, -1] + IGNORED, slice(before, before + B)
