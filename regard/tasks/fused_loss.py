"""Cross-entropy and its gradients by a Triton kernel, which turns a chunk of logits into slopes in place.

Shapes: N positions, R positions of a chunk, V vocabulary, C columns (V filled up), D width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 16  # columns at a time
ALIGNED = 128  # a multiple of the tiles of matrix units


@triton.jit
def slope_kernel(
    logits, targets, counts, losses, stride, smoothing,
    V: tl.constexpr, C: tl.constexpr, LEARN: tl.constexpr, SMOOTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """losses[r] = count (logsumexp - aim); then logits[r] = count (softmax - (1-ε) one-hot), 0 beyond V.

    Maxima and sums are kept for each column of two blocks, and combined at the end. Powers are of 2, which is
    what the hardware computes.
    """
    LOG2E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target, count = tl.load(targets + row), tl.load(counts + row)
    columns = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], -1e30, tl.float32)
    total, sums = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, 2 * BLOCK):
        i = start + columns
        a = tl.load(logits + i, mask=i < V, other=-float("inf")).to(tl.float32)
        b = tl.load(logits + i + BLOCK, mask=i + BLOCK < V, other=-float("inf")).to(tl.float32)
        before = largest
        largest = tl.maximum(largest, LOG2E * tl.maximum(a, b))
        more = tl.exp2(LOG2E * a - largest) + tl.exp2(LOG2E * b - largest)
        total = total * tl.exp2(before - largest) + more
        if SMOOTH:
            sums += tl.where(i < V, a, 0.0) + tl.where(i + BLOCK < V, b, 0.0)
    highest = tl.max(largest, 0)
    log2sum = highest + tl.log2(tl.sum(total * tl.exp2(largest - highest), 0))
    at_target = tl.load(logits + target).to(tl.float32)
    aim = at_target
    if SMOOTH:
        aim += smoothing * (tl.sum(sums, 0) / V - aim)
    tl.store(losses + row, (log2sum / LOG2E - aim) * count)
    if LEARN:
        tl.debug_barrier()  # the target's logit is read before it is overwritten
        for start in range(0, C, BLOCK):
            i = start + columns
            z = tl.load(logits + i, mask=i < V, other=-float("inf")).to(tl.float32)
            slope = tl.exp2(LOG2E * z - log2sum) * count
            tl.store(logits + i, slope.to(logits.dtype.element_ty), mask=i < C)
        tl.debug_barrier()  # the target's slope replaces the one of the loop
        slope = (tl.exp2(LOG2E * at_target - log2sum) - (1.0 - smoothing)) * count
        tl.store(logits + target, slope.to(logits.dtype.element_ty))


def split_evenly(N: int, limit: int) -> int:
    """The rows of a chunk, if all chunks are about as large and most of them fill whole tiles."""
    rows = -(-N // max(1, -(-N // limit)))
    return -(-rows // ALIGNED) * ALIGNED if rows > ALIGNED else max(1, rows)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b; on a GPU in one kernel, which does not round the product."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


@torch.library.custom_op("regard::cross_entropy", mutates_args=())
def loss_and_gradients(
    x: Tensor,  # (N, D)
    W: Tensor,  # (C, D), zeros beyond V
    bias: Tensor | None,  # (C,)
    targets: Tensor,  # (N,), 0 where they don't count
    counts: Tensor,  # (N,) float32, the weight of each position
    V: int,
    rows: int,
    smoothing: float,
    learning: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The summed loss, and if `learning` its gradients by x, W and bias: see `_Chunked`."""
    N, C = len(x), len(W)
    losses = torch.empty(N, device=x.device)
    dx = torch.empty_like(x) if learning else x.new_empty(0)
    dW = torch.zeros_like(W, dtype=torch.float32) if learning else x.new_empty(0)
    db = torch.zeros(C, device=x.device) if learning and bias is not None else x.new_empty(0)
    rows = split_evenly(N, rows)
    buffer = x.new_empty(min(rows, N), C)
    for i in range(0, N, rows):
        x_ = x[i : i + rows]
        logits = torch.mm(x_, W.mT, out=buffer[: len(x_)])  # (R, C)
        if bias is not None:
            logits += bias
        chunk = slice(i, i + len(x_))
        slope_kernel[(len(x_),)](
            *(logits, targets[chunk], counts[chunk], losses[chunk], logits.stride(0), smoothing),
            V=V,
            C=C,
            LEARN=learning,
            SMOOTH=smoothing > 0,
            BLOCK=min(BLOCK, triton.next_power_of_2(C)),
            num_warps=WARPS,
        )
        if learning:
            torch.mm(logits, W, out=dx[chunk])
            add_product(dW, logits.mT, x_)
            if bias is not None:
                db += logits.sum(0, dtype=torch.float32)
    if learning and smoothing:  # ε/V of every word
        even = smoothing / V
        dx -= (counts[:, None] * even * W.sum(0, dtype=torch.float32)).to(x.dtype)
        dW -= even * (counts @ x.float())
        if bias is not None:
            db -= even * counts.sum()
    return losses.sum(), dx, dW.to(W.dtype), db.to(W.dtype)


@loss_and_gradients.register_fake
def _(x, W, bias, targets, counts, V, rows, smoothing, learning):
    none = x.new_empty(0)
    db = none if bias is None or not learning else W.new_empty(len(W))
    gradients = (torch.empty_like(x), torch.empty_like(W)) if learning else (none, W.new_empty(0))
    return torch.empty((), device=x.device), *gradients, db
