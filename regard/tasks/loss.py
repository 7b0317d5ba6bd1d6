"""Cross-entropy of logits that are never stored whole.

Shapes: N positions, V vocabulary, D width.
"""

import importlib.util

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100  # a target that does not count
LOGITS_AT_ONCE = 2**27  # logits; above this number, chunks cost no speed and save gigabytes
FUSED = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
FUSED_AT_ONCE = 2**28  # of 16 bits
FUSED_VOCAB = 1024  # words; with fewer, logits are no larger than the layers' activations
ROUND = 128  # words; GPU matrix units want round sizes: 50257 were a tenth slower than 50304


def cross_entropy(
    x: Tensor,
    W: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """-Σ log p[target] over the positions that count, p = softmax(x Wᵀ + bias); the caller takes the mean.

    With smoothing ε, a target has 1-ε, and every word ε/V (Szegedy et al. 2016, section 7):
    -Σ [(1-ε) log p[target] + ε/V Σ_v log p[v]]. Without W, x are the logits.
    With `weights`, each position has its own.
    """
    x, targets = x.flatten(0, -2), targets.flatten()  # (N, D), (N,)
    weights = None if weights is None else weights.flatten()  # (N,)
    fused = FUSED and x.is_cuda and W is not None and len(W) >= FUSED_VOCAB
    multiple = ROUND if x.is_cuda else 1
    if W is not None and (fused or len(targets) * len(W) > LOGITS_AT_ONCE):
        rows = max(1, (FUSED_AT_ONCE if fused else LOGITS_AT_ONCE) // len(W))
        return chunked_cross_entropy(x, W, targets, rows, multiple, smoothing, bias, weights, fused)
    if W is not None and bias is not None:
        # The bias as a column of W: sums and gradients round as before, and old runs resume bit for bit.
        x, W = F.pad(F.pad(x, (0, 1), value=1.0), (0, 7)), torch.cat([W, F.pad(bias[:, None], (0, 7))], dim=1)
    logits = x if W is None else round_product(x, W, multiple)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    how = {"ignore_index": IGNORED, "label_smoothing": smoothing}
    if weights is None:
        return F.cross_entropy(logits, targets, reduction="sum", **how)  # type: ignore[arg-type]
    return (F.cross_entropy(logits, targets, reduction="none", **how) * weights).sum()  # type: ignore[arg-type]


def round_product(x: Tensor, W: Tensor, multiple: int) -> Tensor:
    """x Wᵀ, for a W with rows of zeros below, so that their number is a multiple of `multiple`."""
    V = len(W)
    if V % multiple == 0:
        return F.linear(x, W)
    return F.linear(x, F.pad(W, (0, 0, 0, -V % multiple)))[:, :V]


def token_losses(x: Tensor, W: Tensor, targets: Tensor, bias: Tensor | None = None) -> Tensor:
    """-log p[target] of each position (N,), without gradients; 0 where a target does not count."""
    x, targets = x.flatten(0, -2), targets.flatten()  # (N, D), (N,)
    rows = max(1, LOGITS_AT_ONCE // len(W))
    losses = []
    for i in range(0, len(targets), rows):
        logits = F.linear(x[i : i + rows], W, bias)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        part = F.cross_entropy(logits, targets[i : i + rows], ignore_index=IGNORED, reduction="none")
        losses.append(part)
    return torch.cat(losses)


def chunked_cross_entropy(
    x: Tensor,
    W: Tensor,
    targets: Tensor,
    rows: int,
    multiple: int = 1,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
    fused: bool = False,
) -> Tensor:
    """Compute the cross-entropy for `rows` positions at a time: only this many rows of logits exist at once.

    The vocabulary is padded to a multiple of `multiple` with words of probability 0, which smoothing
    ignores. If `fused`, a kernel turns logits into their slopes in place.
    """
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, W, bias = x.to(dtype), W.to(dtype), None if bias is None else bias.to(dtype)
    V = len(W)
    W = F.pad(W, (0, 0, 0, -V % multiple))
    bias = None if bias is None else F.pad(bias, (0, -V % multiple))
    function = _Fused if fused else _Chunked
    loss: Tensor = function.apply(x, W, bias, targets, weights, V, rows, smoothing, torch.is_grad_enabled())
    return loss


class _Chunked(torch.autograd.Function):
    """Gradients are computed while a chunk's logits exist.

    d loss / d logits = softmax - (1-ε) one-hot - ε/V
    """

    @staticmethod
    def forward(ctx, x, W, bias, targets, weights, V, rows, smoothing, learning):
        wide = torch.promote_types(x.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=x.device)
        learning = learning and any(ctx.needs_input_grad)  # torch.no_grad() does not change these
        dx, dW = [], torch.zeros_like(W, dtype=wide) if learning else None
        db = torch.zeros_like(W[:, 0], dtype=wide)
        beyond = torch.arange(len(W), device=x.device) >= V
        even, all_words = smoothing / V, W.sum(0)  # smoothing subtracts this from every word's slope
        # Nothing is changed in place: torch 2.11 compiled an earlier form, which did, to gradients of zero.
        for i in range(0, len(targets), rows):
            x_, t = x[i : i + rows], targets[i : i + rows, None]
            counts = t != IGNORED
            t = t.where(counts, 0)
            counts = counts if weights is None else counts * weights[i : i + rows, None]
            logits = F.linear(x_, W, bias).to(wide)
            logits = logits.masked_fill(beyond, -torch.inf) if V < len(W) else logits
            total, aim = logits.logsumexp(-1, keepdim=True), logits.gather(1, t)
            if smoothing:
                aim = aim.lerp(logits[:, :V].mean(-1, keepdim=True), smoothing)
            loss = loss + ((total - aim) * counts).sum()
            if dW is not None:
                slope = (logits - total).exp()
                slope = slope.scatter_add(1, t, torch.full_like(total, smoothing - 1.0))
                slope = (slope * counts).to(x.dtype)
                dx.append((slope @ W - counts * even * all_words).to(x.dtype))
                dW = dW + slope.mT @ x_ - even * (counts * x_).sum(0)
                db = db if bias is None else db + slope.sum(0) - even * counts.sum()
        if dW is not None:
            ctx.save_for_backward(torch.cat(dx), dW.to(W.dtype), None if bias is None else db.to(bias.dtype))
        return loss

    @staticmethod
    def backward(ctx, grad):
        dx, dW, db = (t if t is None else t * grad.to(t.dtype) for t in ctx.saved_tensors)
        return dx, dW, db, None, None, None, None, None, None


class _Fused(_Chunked):
    """The same; each chunk's logits become slopes in place."""

    @staticmethod
    def forward(ctx, x, W, bias, targets, weights, V, rows, smoothing, learning):
        from regard.tasks.fused_loss import loss_and_gradients

        counts = (targets != IGNORED).to(torch.float32)
        counts = counts if weights is None else counts * weights
        known = targets.where(targets != IGNORED, 0)
        learning = learning and any(ctx.needs_input_grad)
        loss, *gradients = loss_and_gradients(x, W, bias, known, counts, V, rows, smoothing, learning)
        if learning:
            ctx.save_for_backward(*gradients[:2], None if bias is None else gradients[2])
        return loss


def fused_agrees(device: torch.device) -> bool:
    """Check the kernel's loss and gradients against the reference, on a few random numbers."""
    generator = torch.Generator().manual_seed(0)
    x, W = (torch.randn(n, 64, generator=generator) / 8 for n in (67, FUSED_VOCAB + 7))
    targets = torch.randint(len(W), (len(x),), generator=generator)
    targets[5] = IGNORED
    results = []
    for fused in (False, True):
        a, b = (t.to(device, torch.bfloat16).requires_grad_() for t in (x, W))
        loss = chunked_cross_entropy(a, b, targets.to(device), 31, 128, 0.1, fused=fused)
        results.append([loss, *torch.autograd.grad(3 * loss, [a, b])])
    return all((a - b).abs().max() <= 0.02 * b.abs().max() for a, b in zip(*results, strict=True))
