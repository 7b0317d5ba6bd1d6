"""Cross-entropy of logits that are never stored whole.

Shapes: N positions, V vocabulary, D width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100  # a target that does not count
LOGITS_AT_ONCE = 2**27  # numbers; above this, chunks cost no speed and save gigabytes


def cross_entropy(x: Tensor, W: Tensor, targets: Tensor) -> Tensor:
    """-Σ log softmax(x Wᵀ)[target] over the positions that count; the mean is the caller's to take."""
    x, targets = x.flatten(0, -2), targets.flatten()  # (N, D), (N,)
    if len(targets) * len(W) > LOGITS_AT_ONCE:
        # GPU matrix units want round sizes: 50257 words were a tenth slower than 50304
        return chunked_cross_entropy(x, W, targets, max(1, LOGITS_AT_ONCE // len(W)), 64 if x.is_cuda else 1)
    logits = F.linear(x, W)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


def chunked_cross_entropy(x: Tensor, W: Tensor, targets: Tensor, rows: int, multiple: int = 1) -> Tensor:
    """The same by `rows` positions at a time: only so many rows of logits exist at any moment.

    The vocabulary is filled up to a multiple of `multiple` with words that are never likely.
    """
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, W = x.to(dtype), W.to(dtype)
    V = len(W)
    W = F.pad(W, (0, 0, 0, -V % multiple))
    loss: Tensor = _Chunked.apply(x, W, targets, V, rows, torch.is_grad_enabled())
    return loss


class _Chunked(torch.autograd.Function):
    """Gradients are made while a chunk's logits are at hand: d loss / d logits = softmax - one-hot."""

    @staticmethod
    def forward(ctx, x, W, targets, V, rows, learning):
        wide = torch.promote_types(x.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=x.device)
        learning = learning and any(ctx.needs_input_grad)  # which torch.no_grad() leaves as they are
        dx = torch.empty_like(x) if learning else None
        dW = torch.zeros_like(W, dtype=wide) if learning else None
        for i in range(0, len(targets), rows):
            x_, t = x[i : i + rows], targets[i : i + rows, None]
            counts = t != IGNORED
            t = t.where(counts, 0)
            logits = F.linear(x_, W).to(wide)
            logits[:, V:] = -torch.inf
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
        return dx * grad.to(dx.dtype), dW * grad.to(dW.dtype), None, None, None, None
