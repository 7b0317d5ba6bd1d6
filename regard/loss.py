"""Cross-entropy of logits that are never stored whole.

Shapes: N positions, V vocabulary, D width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100  # a target that does not count
LOGITS_AT_ONCE = 2**26  # numbers; above this, chunks cost no speed and save gigabytes


def cross_entropy(x: Tensor, W: Tensor, targets: Tensor) -> Tensor:
    """-Σ log softmax(x Wᵀ)[target] over the positions that count; the mean is the caller's to take."""
    x, targets = x.flatten(0, -2), targets.flatten()  # (N, D), (N,)
    if len(targets) * len(W) > LOGITS_AT_ONCE:
        return chunked_cross_entropy(x, W, targets, max(1, LOGITS_AT_ONCE // len(W)))
    return F.cross_entropy(F.linear(x, W).float(), targets, ignore_index=IGNORED, reduction="sum")


def chunked_cross_entropy(x: Tensor, W: Tensor, targets: Tensor, rows: int) -> Tensor:
    """The same by `rows` positions at a time: only so many rows of logits exist at any moment."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, W = x.to(dtype), W.to(dtype)
    loss: Tensor = _Chunked.apply(x, W, targets, rows)
    return loss


class _Chunked(torch.autograd.Function):
    """Gradients are made while a chunk's logits are at hand: d loss / d logits = softmax - one-hot."""

    @staticmethod
    def forward(ctx, x, W, targets, rows):
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        learning = any(ctx.needs_input_grad)
        dx = torch.empty_like(x) if learning else None
        dW = torch.zeros_like(W, dtype=torch.float32) if learning else None
        for i in range(0, len(targets), rows):
            x_, t = x[i : i + rows], targets[i : i + rows, None]
            counts = t != IGNORED
            t = t.where(counts, 0)
            logits = F.linear(x_, W).float()
            total = logits.logsumexp(-1, keepdim=True)
            loss += ((total - logits.gather(1, t)) * counts).sum()
            if dx is not None and dW is not None:
                slope = (logits - total).exp_()
                slope.scatter_add_(1, t, torch.full_like(total, -1.0))
                slope = (slope * counts).to(x.dtype)
                dx[i : i + rows] = slope @ W
                dW += slope.mT @ x_
        if dW is not None:
            ctx.save_for_backward(dx, dW.to(W.dtype))
        return loss

    @staticmethod
    def backward(ctx, grad):
        dx, dW = ctx.saved_tensors
        return dx * grad.to(dx.dtype), dW * grad.to(dW.dtype), None, None
