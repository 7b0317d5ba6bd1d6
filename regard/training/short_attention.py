"""Attention over short rows by two Triton kernels, one for all gradients: a head fits into registers.

Queries, keys and values are read from the output of a joint product, and rotated on the way; gradients are
written in the same layout. So nothing is copied in between.

Shapes: B batch, H heads, T queries, S keys, d width of a head, h = d / 2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def load_rows(start, index, count, stride, column):
    """Load (rows, columns) of a matrix, with zeros beyond `count` rows."""
    where = start + index[:, None] * stride + column[None, :]
    return tl.load(where, mask=(index < count)[:, None], other=0.0)


@triton.jit
def store_rows(start, index, count, stride, column, value):
    where = start + index[:, None] * stride + column[None, :]
    tl.store(where, value.to(start.dtype.element_ty), mask=(index < count)[:, None])


@triton.jit
def rotate_pair(a, b, cos, sin, index, count, column, h: tl.constexpr, sign: tl.constexpr):
    """The halves of vectors, rotated by their angles, or back if the sign is negative."""
    c = load_rows(cos, index, count, h, column).to(tl.float32)
    s = sign * load_rows(sin, index, count, h, column).to(tl.float32)
    return a * c - b * s, b * c + a * s


@triton.jit
def load_halves(start, cos, sin, index, count, stride, column, h: tl.constexpr, ROTARY: tl.constexpr):
    """Load both halves of queries or keys, (rows, h) each, rotated."""
    a = load_rows(start, index, count, stride, column)
    b = load_rows(start + h, index, count, stride, column)
    if ROTARY:
        dtype = a.dtype
        a, b = rotate_pair(a.to(tl.float32), b.to(tl.float32), cos, sin, index, count, column, h, 1.0)
        a, b = a.to(dtype), b.to(dtype)
    return a, b


@triton.jit
def product(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def softmax_weights(
    qa, qb, ka, kb, keys, row, t, s, T, S, scale, CAUSAL: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """softmax(q·k / √d) (T, S); 0 where a query may attend to nothing."""
    scores = (product(qa, tl.trans(ka)) + product(qb, tl.trans(kb))) * scale
    allowed = (s < S)[None, :] & (t < T)[:, None]
    if CAUSAL:
        allowed &= s[None, :] <= t[:, None] + (S - T)
    if MASKED:
        allowed &= (tl.load(keys + row * S + s, mask=s < S, other=0) != 0)[None, :]
    scores = tl.where(allowed, scores, -float("inf"))
    top = tl.max(scores, 1)
    e = tl.exp(scores - tl.where(top == -float("inf"), 0.0, top)[:, None])
    total = tl.sum(e, 1)
    return e / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def mix(x):
    """A random-looking number for each number: a 32-bit hash by multiplications and shifts."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def is_kept(seed, program, t, s, BS: tl.constexpr, threshold):
    """Which weights (T, S) dropout keeps: the same ones in both kernels."""
    key = mix(tl.load(seed).to(tl.uint32) + mix(program.to(tl.uint32)))
    return mix(key + (t[:, None] * BS + s[None, :]).to(tl.uint32)) >= threshold.to(tl.uint32)


@triton.jit
def forward_kernel(
    q, k, v, out, cos, sin, keys, seed, q_stride, kv_stride, T, S, scale, threshold, raised,
    H: tl.constexpr, d: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    ROTARY: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    row, head = (program // H).to(tl.int64), program % H
    q += row * T * q_stride + head * d
    k += row * S * kv_stride + head * d
    v += row * S * kv_stride + head * d
    t, s, half, column = tl.arange(0, BT), tl.arange(0, BS), tl.arange(0, d // 2), tl.arange(0, d)
    qa, qb = load_halves(q, cos, sin, t, T, q_stride, half, d // 2, ROTARY)
    ka, kb = load_halves(k, cos, sin, s, S, kv_stride, half, d // 2, ROTARY)
    weights = softmax_weights(qa, qb, ka, kb, keys, row, t, s, T, S, scale, CAUSAL, MASKED)
    if DROPOUT:
        weights = tl.where(is_kept(seed, program, t, s, BS, threshold), weights * raised, 0.0)
    values = load_rows(v, s, S, kv_stride, column)
    y = product(weights.to(values.dtype), values)
    store_rows(out + row * T * H * d + head * d, t, T, H * d, column, y)


@triton.jit
def backward_kernel(
    grad, q, k, v, dq, dk, dv, cos, sin, keys, seed, q_stride, kv_stride, T, S, scale, threshold, raised,
    H: tl.constexpr, d: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    ROTARY: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    row, head = (program // H).to(tl.int64), program % H
    query, key = row * T * q_stride + head * d, row * S * kv_stride + head * d
    t, s, half, column = tl.arange(0, BT), tl.arange(0, BS), tl.arange(0, d // 2), tl.arange(0, d)
    qa, qb = load_halves(q + query, cos, sin, t, T, q_stride, half, d // 2, ROTARY)
    ka, kb = load_halves(k + key, cos, sin, s, S, kv_stride, half, d // 2, ROTARY)
    weights = softmax_weights(qa, qb, ka, kb, keys, row, t, s, T, S, scale, CAUSAL, MASKED)
    dy = load_rows(grad + row * T * H * d + head * d, t, T, H * d, column)
    slopes = product(dy, tl.trans(load_rows(v + key, s, S, kv_stride, column)))  # by the weights (T, S)
    used = weights
    if DROPOUT:
        keep = is_kept(seed, program, t, s, BS, threshold)
        used, slopes = tl.where(keep, weights * raised, 0.0), tl.where(keep, slopes * raised, 0.0)
    store_rows(dv + key, s, S, kv_stride, column, product(tl.trans(used.to(dy.dtype)), dy))
    slopes = weights * (slopes - tl.sum(weights * slopes, 1)[:, None]) * scale  # by the scores
    slopes = slopes.to(dy.dtype)
    da, db = product(slopes, ka), product(slopes, kb)
    if ROTARY:
        da, db = rotate_pair(da, db, cos, sin, t, T, half, d // 2, -1.0)
    store_rows(dq + query, t, T, q_stride, half, da)
    store_rows(dq + query + d // 2, t, T, q_stride, half, db)
    slopes = tl.trans(slopes)
    da, db = product(slopes, qa), product(slopes, qb)
    if ROTARY:
        da, db = rotate_pair(da, db, cos, sin, s, S, half, d // 2, -1.0)
    store_rows(dk + key, s, S, kv_stride, half, da)
    store_rows(dk + key + d // 2, s, S, kv_stride, half, db)


def parts(x: Tensor, source: Tensor | None, D: int) -> tuple[Tensor, Tensor, Tensor]:
    """The addresses of the first query, key and value."""
    x, source = x.view(-1), None if source is None else source.view(-1)
    return (x, x[D:], x[2 * D :]) if source is None else (x, source, source[D:])


class Launch:
    """The numbers and constants of a kernel."""

    def __init__(
        self, x: Tensor, source: Tensor | None, cos: Tensor | None, keys: Tensor | None, seed: Tensor | None,
        heads: int, causal: bool, dropout: float
    ):  # fmt: skip
        T, S = x.shape[1], x.shape[1] if source is None else source.shape[1]
        d = x.shape[2] // (3 * heads if source is None else heads)
        self.D = heads * d
        BT, BS = (max(16, triton.next_power_of_2(n)) for n in (T, S))
        strides = x.shape[2], (x if source is None else source).shape[2]
        self.numbers = *strides, T, S, d**-0.5, round(dropout * 2**32), 1 / (1 - dropout)
        self.constants = {"H": heads, "d": d, "BT": BT, "BS": BS, "ROTARY": cos is not None}
        self.constants |= {"CAUSAL": causal, "MASKED": keys is not None, "DROPOUT": seed is not None}
        self.constants["num_warps"] = max(1, min(8, BT * BS // 1024))


@torch.library.custom_op("regard::short_attention", mutates_args=())
def attend_short(
    x: Tensor,  # (B, T, 3 * H * d), queries, keys and values; or with a source (B, T, H * d), queries
    source: Tensor | None,  # (B, S, 2 * H * d), keys and values
    cos: Tensor | None,  # (T, d/2), of the angles of queries and keys
    sin: Tensor | None,
    keys: Tensor | None,  # (B, S), the keys that may be attended to
    seed: Tensor | None,  # (1,) of dropout
    heads: int,
    causal: bool,
    dropout: float,
) -> Tensor:
    """The outputs of the heads (B, T, H * d)."""
    launch = Launch(x, source, cos, keys, seed, heads, causal, dropout)
    out = x.new_empty(*x.shape[:2], launch.D)
    forward_kernel[(len(x) * heads,)](
        *(*parts(x, source, launch.D), out, cos, sin, keys, seed), *launch.numbers, **launch.constants
    )
    return out


@attend_short.register_fake
def _(x, source, cos, sin, keys, seed, heads, causal, dropout):
    return x.new_empty(x.shape[0], x.shape[1], x.shape[2] // (3 if source is None else 1))


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def short_gradients(
    grad: Tensor,  # (B, T, H * d)
    x: Tensor,
    source: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor | None,
    seed: Tensor | None,
    heads: int,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The gradients by x and by the source, which is empty if there is none."""
    launch = Launch(x, source, cos, keys, seed, heads, causal, dropout)
    dx, d_source = torch.empty_like(x), None if source is None else torch.empty_like(source)
    backward_kernel[(len(x) * heads,)](
        *(grad.contiguous(), *parts(x, source, launch.D), *parts(dx, d_source, launch.D)),
        *(cos, sin, keys, seed, *launch.numbers),
        **launch.constants,
    )
    return dx, x.new_empty(0) if d_source is None else d_source


@short_gradients.register_fake
def _(grad, x, source, cos, sin, keys, seed, heads, causal, dropout):
    return torch.empty_like(x), x.new_empty(0) if source is None else torch.empty_like(source)


def keep_inputs(ctx, inputs, output):
    *tensors, ctx.heads, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)


def differentiate(ctx, grad):
    x, source, *rest = ctx.saved_tensors
    how = ctx.heads, ctx.causal, ctx.dropout
    dx, d_source = torch.ops.regard.short_attention_backward(grad, x, source, *rest, *how)
    return dx, None if source is None else d_source, *[None] * 7


attend_short.register_autograd(differentiate, setup_context=keep_inputs)
