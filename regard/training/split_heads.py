"""Queries, keys and values of a joint product, split into heads and rotated by one Triton kernel.

The gradients go the other way by another kernel, which also sums them up for a bias. Attention's own kernels
leave them in three tensors, and torch would rotate, join and sum them one after the other.

Shapes: B batch, T tokens, N = B T rows, H heads, G key/value heads, d width of a head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, STEPS = 64, 8  # rows at a time; how many times, where they are summed up


@triton.jit
def rotate_halves(a, b, cos, sin, row, T, half, h: tl.constexpr, sign: tl.constexpr, ROTARY: tl.constexpr):
    """The halves (rows, h) of vectors, rotated by the angles of their positions, or back."""
    if ROTARY:
        where = (row % T)[:, None] * h + half[None, :]
        c, s = tl.load(cos + where).to(tl.float32), sign * tl.load(sin + where).to(tl.float32)
        x, y = a.to(tl.float32), b.to(tl.float32)
        a, b = (x * c - y * s).to(a.dtype), (y * c + x * s).to(b.dtype)
    return a, b


@triton.jit
def find(q, k, v, head, H: tl.constexpr, G: tl.constexpr):
    """The tensor that a head of the joint product belongs to, and its number in there."""
    if head < H:
        start, number = q, head
    elif head < H + G:
        start, number = k, head - H
    else:
        start, number = v, head - H - G
    return start, number


@triton.jit
def split_kernel(
    x, q, k, v, cos, sin, N, T, H: tl.constexpr, G: tl.constexpr, d: tl.constexpr, ROWS: tl.constexpr
):
    head = tl.program_id(1)
    row, half = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, d // 2)
    inside = (row < N)[:, None]
    source = x + row.to(tl.int64)[:, None] * ((H + 2 * G) * d) + head * d + half[None, :]
    a, b = tl.load(source, mask=inside, other=0.0), tl.load(source + d // 2, mask=inside, other=0.0)
    if head < H + G:
        a, b = rotate_halves(a, b, cos, sin, row, T, half, d // 2, 1.0, True)
    start, number = find(q, k, v, head, H, G)
    heads = H if head < H else G
    target = start + row.to(tl.int64)[:, None] * (heads * d) + number * d + half[None, :]
    tl.store(target, a, mask=inside)
    tl.store(target + d // 2, b, mask=inside)


@triton.jit
def join_kernel(
    q, k, v, x, sums, cos, sin, N, T, qb, qt, qh, kb, kt, kh, vb, vt, vh,
    H: tl.constexpr, G: tl.constexpr, d: tl.constexpr, ROTARY: tl.constexpr, SUM: tl.constexpr,
    ROWS: tl.constexpr, STEPS: tl.constexpr
):  # fmt: skip
    """Gradients by q, k and v, with these strides, as one by x; and their sums over the rows of a program."""
    head, half = tl.program_id(1), tl.arange(0, d // 2)
    start, number = find(q, k, v, head, H, G)
    if head < H:
        bs, ts, hs = qb, qt, qh
    elif head < H + G:
        bs, ts, hs = kb, kt, kh
    else:
        bs, ts, hs = vb, vt, vh
    start += number * hs
    total_a, total_b = tl.zeros([d // 2], tl.float32), tl.zeros([d // 2], tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < N)[:, None]
        place = (row // T).to(tl.int64) * bs + (row % T).to(tl.int64) * ts
        source = start + place[:, None] + half[None, :]
        a, b = tl.load(source, mask=inside, other=0.0), tl.load(source + d // 2, mask=inside, other=0.0)
        if head < H + G:
            a, b = rotate_halves(a, b, cos, sin, row, T, half, d // 2, -1.0, ROTARY)
        target = x + row.to(tl.int64)[:, None] * ((H + 2 * G) * d) + head * d + half[None, :]
        tl.store(target, a, mask=inside)
        tl.store(target + d // 2, b, mask=inside)
        if SUM:
            total_a += tl.sum(a.to(tl.float32), 0)
            total_b += tl.sum(b.to(tl.float32), 0)
    if SUM:
        target = sums + tl.program_id(0) * ((H + 2 * G) * d) + head * d + half
        tl.store(target, total_a)
        tl.store(target + d // 2, total_b)


@torch.library.custom_op("regard::split_heads", mutates_args=())
def split_rotated(
    x: Tensor,  # (B, T, (H + 2 G) d)
    cos: Tensor,  # (T, d/2)
    sin: Tensor,
    heads: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, T, H, d), keys and values (B, T, G, d); queries and keys rotated."""
    B, T, D = x.shape
    d = D // (heads + 2 * kv_heads)
    q, k, v = (x.new_empty(B, T, n, d) for n in (heads, kv_heads, kv_heads))
    grid = triton.cdiv(B * T, ROWS), heads + 2 * kv_heads
    split_kernel[grid](x, q, k, v, cos, sin, B * T, T, H=heads, G=kv_heads, d=d, ROWS=ROWS)
    return q, k, v


@split_rotated.register_fake
def _(x, cos, sin, heads, kv_heads):
    d = x.shape[2] // (heads + 2 * kv_heads)
    return tuple(x.new_empty(*x.shape[:2], n, d) for n in (heads, kv_heads, kv_heads))


@torch.library.custom_op("regard::join_heads", mutates_args=())
def join_gradients(
    dq: Tensor,  # (B, T, H, d)
    dk: Tensor,  # (B, T, G, d)
    dv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    summed: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient by the joint product; if `summed`, also its sum over all rows, of a bias."""
    (B, T, H, d), G = dq.shape, dk.shape[2]
    dq, dk, dv = (g if g.stride(3) == 1 else g.contiguous() for g in (dq, dk, dv))
    dx, steps = dq.new_empty(B, T, (H + 2 * G) * d), STEPS if summed else 1
    grid = triton.cdiv(B * T, ROWS * steps), H + 2 * G
    sums = torch.empty(grid[0] if summed else 0, dx.shape[2], device=dx.device)
    join_kernel[grid](
        *(dq, dk, dv, dx, sums, cos, sin, B * T, T),
        *(*dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3]),
        H=H, G=G, d=d, ROTARY=cos is not None, SUM=summed, ROWS=ROWS, STEPS=steps,
    )  # fmt: skip
    return dx, sums.sum(0)


@join_gradients.register_fake
def _(dq, dk, dv, cos, sin, summed):
    (B, T, H, d), G = dq.shape, dk.shape[2]
    dx = dq.new_empty(B, T, (H + 2 * G) * d)
    return dx, dx.new_empty(dx.shape[2], dtype=torch.float32)


class SplitHeads(torch.autograd.Function):
    """Queries (B, H, T, d), keys and values (B, G, T, d) of a joint product, whose bias is already in it.

    The gradient of the bias is computed here, from that of the product.
    """

    @staticmethod
    def forward(ctx, x, bias, cos, sin, heads, kv_heads):
        ctx.save_for_backward(cos, sin)
        ctx.summed = bias is not None
        if cos is None:
            d = x.shape[2] // (heads + 2 * kv_heads)
            q, k, v = x.unflatten(2, (-1, d)).split([heads, kv_heads, kv_heads], dim=2)
        else:
            q, k, v = torch.ops.regard.split_heads(x, cos, sin, heads, kv_heads)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    @staticmethod
    def backward(ctx, dq, dk, dv):
        cos, sin = ctx.saved_tensors
        gradients = (g.transpose(1, 2) for g in (dq, dk, dv))
        dx, sums = torch.ops.regard.join_heads(*gradients, cos, sin, ctx.summed)
        return dx, sums if ctx.summed else None, None, None, None, None
