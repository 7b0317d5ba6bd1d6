"""The operations of `plain` as Triton kernels for a step that is captured in a CUDA graph.

A row's result has the same bits for any other rows: every product is a chain of tensor core products
of 16 numbers along K, in segments whose number depends on the weights alone; a row is normed by itself, and
it attends to fixed chunks of keys. Grids depend on shapes only. On Hopper, wgmma, which takes 64 rows at a
time, and mma.sync give the same bits (tests compare them on a GPU).

On Hopper, a kernel starts while the previous one still runs, and waits for its end: no more than two run at
once. With one row, it loads its weights before it waits. So does write_and_attend with few rows: tables,
positions, and the keys and values of earlier steps, which the product ahead of it does not write.

Shapes: R rows (tokens, each with its own position), D width, H heads, G key/value heads, d width of a head,
P pages of L tokens each, N pages of a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.decode.kernels.fused_attention import copy_pages, paged_attention, write_and_attend, write_pages
from regard.decode.kernels.fused_beams import advance_beams
from regard.decode.kernels.fused_sampling import sample
from regard.decode.kernels.launch import (
    LAYER_NORM,
    NO_NORM,
    begin_kernel,
    is_hopper,
    norm_arguments,
    start_kernel,
)
from regard.decode.kernels.plain import Norm

__all__ = [
    "advance_beams",
    "copy_pages",
    "linear_residual",
    "norm_linear",
    "normalize",
    "paged_attention",
    "sample",
    "write_and_attend",
    "write_pages",
]

LARGE = 4096  # from this many outputs on, there are enough programs without splitting K
PROGRAMS = 70  # of wide tiles: fewer leave too much of a GPU idle
REGISTERS = 25_000  # weights that a program holds in registers at once
UNIT = tl.constexpr(64)  # of wide tiles: each segment of K is a multiple, as with `_linear_kernel`
WARPS = 4  # of all products that norm a row, and of the norm: it has the same bits in each


@triton.jit
def _row_stats(x, eps, NORM: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Mean (0 for RMSNorm) and 1 / deviation of one row, in an order that depends on D and warps alone."""
    i = tl.arange(0, BLOCK_D)
    t = tl.load(x + i, mask=i < D, other=0.0).to(tl.float32)
    mean = 0.0
    if NORM == LAYER_NORM:
        mean = tl.sum(t, 0) / D
        t = tl.where(i < D, t - mean, 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(t * t, 0) / D + eps)


@triton.jit
def _normalize(t, mean, scale, gain, bias):
    t = (t.to(tl.float32) - mean) * scale
    return t * gain.to(tl.float32) if bias is None else tl.fma(t, gain.to(tl.float32), bias.to(tl.float32))


@triton.jit
def _activate(y, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        y = tl.maximum(y, 0.0)
    elif ACTIVATION == "gelu":
        y = 0.5 * y * (1.0 + tl.math.erf(y * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # tanh(u) = 2 sigmoid(2 u) - 1
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    elif ACTIVATION == "silu":
        y = y * tl.sigmoid(y)
    return y


@triton.jit
def _load_weights(weight, row, used, k, K: tl.constexpr, start):
    """A block (S, rows, BLOCK_K) of the weights."""
    return tl.load(weight + row * K + k + start, mask=used & (k + start < K), other=0.0)


@triton.jit
def _pin(w):
    """w, in registers until here: otherwise the compiler moves it to shared memory as soon as a load ends,
    and the next load waits for that."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [w], dtype=w.dtype, is_pure=False, pack=2)


@triton.jit
def _add_product(y, a, w, S: tl.constexpr):
    """y + a wᵀ"""
    return tl.dot(a, tl.trans(w) if S == 1 else tl.permute(w, (0, 2, 1)), y, input_precision="ieee")


@triton.jit(do_not_specialize=["R"])
def _linear_kernel(
    x, norm_weight, norm_bias, weight, bias, residual, out, R, M, eps, K: tl.constexpr, NORM: tl.constexpr,
    BLOCK_D: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, S: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ONE_ROW: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile (BLOCK_M, BLOCK_N) of x Wᵀ: K in S segments, one for each warp, unless S is 1.

    With ONE_ROW, R is 1: all weights of the tile are loaded before the kernel ahead has ended, and the row is
    normed here; more rows are normed by `_norm_kernel`.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_used, col_used = row < R, col < M
    SEGMENT: tl.constexpr = (K + S * BLOCK_K - 1) // (S * BLOCK_K) * BLOCK_K
    if S == 1:
        k = tl.arange(0, BLOCK_K)[None, :]
        x_row, x_used, w_row, w_used = row[:, None], row_used[:, None], col[:, None], col_used[:, None]
        y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    else:
        k = tl.arange(0, S)[:, None, None] * SEGMENT + tl.arange(0, BLOCK_K)[None, None, :]
        x_row, x_used = row[None, :, None], row_used[None, :, None]
        w_row, w_used = col[None, :, None], col_used[None, :, None]
        y = tl.zeros([S, BLOCK_M, BLOCK_N], tl.float32)
    up = y
    at = row[:, None] * M + col[None, :]
    used = row_used[:, None] & col_used[None, :]
    if bias is not None:
        y_bias = tl.load(bias + col, mask=col_used, other=0.0).to(tl.float32)
        if GATED:
            up_bias = tl.load(bias + M + col, mask=col_used, other=0.0).to(tl.float32)
    if ONE_ROW:
        blocks, parts, gains, shifts = tl.tuple([]), tl.tuple([]), tl.tuple([]), tl.tuple([])
        for start in tl.static_range(0, SEGMENT, BLOCK_K):
            blocks = blocks + (_load_weights(weight, w_row, w_used, k, K, start),)
            if GATED:
                blocks = blocks + (_load_weights(weight, w_row + M, w_used, k, K, start),)
            if norm_weight is not None:
                gains = gains + (tl.load(norm_weight + k + start, mask=k + start < K, other=0.0),)
            if norm_bias is not None:
                shifts = shifts + (tl.load(norm_bias + k + start, mask=k + start < K, other=0.0),)
        begin_kernel(PDL)
        if residual is not None:
            before = tl.load(residual + at, mask=used, other=0.0)
        for start in tl.static_range(0, SEGMENT, BLOCK_K):
            parts = parts + (tl.load(x + k + start, mask=k + start < K, other=0.0),)
        if NORM != NO_NORM:
            mean, scale = _row_stats(x, eps, NORM, K, BLOCK_D)
        for start in tl.static_range(0, SEGMENT, BLOCK_K):
            a = parts[start // BLOCK_K]
            if NORM != NO_NORM:
                shift = None if norm_bias is None else shifts[start // BLOCK_K]
                a = _normalize(a, mean, scale, gains[start // BLOCK_K], shift)
            a = tl.where(x_used, a, 0.0).to(weight.dtype.element_ty)
            w = blocks[start // BLOCK_K * (1 + GATED)]
            y = _add_product(y, a, _pin(w) if PDL else w, S)
            if GATED:
                w_up = blocks[start // BLOCK_K * 2 + 1]
                up = _add_product(up, a, _pin(w_up) if PDL else w_up, S)
    else:
        if PDL:
            gdc_wait()
        if residual is not None:
            before = tl.load(residual + at, mask=used, other=0.0)
        for start in range(0, SEGMENT, BLOCK_K):
            a = tl.load(x + x_row * K + k + start, mask=x_used & (k + start < K), other=0.0)
            a = a.to(weight.dtype.element_ty)
            y = _add_product(y, a, _load_weights(weight, w_row, w_used, k, K, start), S)
            if GATED:
                up = _add_product(up, a, _load_weights(weight, w_row + M, w_used, k, K, start), S)
        if PDL:
            gdc_launch_dependents()
    if S != 1:
        y = tl.sum(y, 0)
        if GATED:
            up = tl.sum(up, 0)
    if bias is not None:
        y += y_bias[None, :]
        if GATED:
            up += up_bias[None, :]
    y = _activate(y, ACTIVATION)
    if GATED:
        y *= up
    if residual is not None:
        y += before
    tl.store(out + at, y.to(out.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["R"])
def _wide_kernel(
    x, weight, bias, residual, out, R, M, K: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
    S: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The same tile for many rows, which Hopper's tensor cores take 64 at a time: the S segments of K have a
    sum each, and these are added up as by `_linear_kernel`."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_used, col_used = row < R, col < M
    SEGMENT: tl.constexpr = (K + S * UNIT - 1) // (S * UNIT) * UNIT
    k = tl.arange(0, BLOCK_K)[None, :]
    if PDL:
        gdc_wait()
    sums, ups = tl.tuple([]), tl.tuple([])
    for _ in tl.static_range(S):
        sums = sums + (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)
        ups = ups + (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)
    for start in range(0, SEGMENT, BLOCK_K):
        new, new_ups = tl.tuple([]), tl.tuple([])
        for s in tl.static_range(S):
            at = s * SEGMENT + start + k
            a = tl.load(x + row[:, None] * K + at, mask=row_used[:, None] & (at < K), other=0.0)
            a = a.to(weight.dtype.element_ty)
            w = _load_weights(weight, col[:, None], col_used[:, None], at, K, 0)
            new = new + (_add_product(sums[s], a, w, 1),)
            if GATED:
                w = _load_weights(weight, col[:, None] + M, col_used[:, None], at, K, 0)
                new_ups = new_ups + (_add_product(ups[s], a, w, 1),)
            else:
                new_ups = new_ups + (ups[s],)
        sums, ups = new, new_ups
    if PDL:
        gdc_launch_dependents()
    y = _add_up(sums, S)
    if bias is not None:
        y += tl.load(bias + col, mask=col_used, other=0.0).to(tl.float32)[None, :]
    y = _activate(y, ACTIVATION)
    if GATED:
        up = _add_up(ups, S)
        if bias is not None:
            up += tl.load(bias + M + col, mask=col_used, other=0.0).to(tl.float32)[None, :]
        y *= up
    at = row[:, None] * M + col[None, :]
    used = row_used[:, None] & col_used[None, :]
    if residual is not None:
        y += tl.load(residual + at, mask=used, other=0.0)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=used)


@triton.jit
def _add_up(sums, S: tl.constexpr):
    """The sum of all segments, in the order in which `tl.sum` adds those of four warps."""
    return sums[0] if S == 1 else (sums[0] + sums[2]) + (sums[1] + sums[3])


@triton.jit
def _norm_kernel(
    x, weight, bias, out, eps, NORM: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One row, normed."""
    begin_kernel(PDL)
    row = tl.program_id(0).to(tl.int64) * D
    mean, scale = _row_stats(x + row, eps, NORM, D, BLOCK_D)
    i = tl.arange(0, BLOCK_D)
    t = tl.load(x + row + i, mask=i < D, other=0.0)
    gain = tl.load(weight + i, mask=i < D, other=0.0)
    t = _normalize(t, mean, scale, gain, None if bias is None else tl.load(bias + i, mask=i < D, other=0.0))
    tl.store(out + row + i, t.to(out.dtype.element_ty), mask=i < D)


def choose_tiles(R: int, M: int, K: int, dtype: torch.dtype, gated: bool = False) -> dict[str, int]:
    """Tiles of `_linear_kernel`. The order of a sum depends on S, and on BLOCK_K if S is not 1: these do not
    depend on the number of rows."""
    half = dtype != torch.float32
    rows, k = 16 if R <= 16 else 32, 64 if half else 16
    tiles = {"S": 4, "BLOCK_M": rows, "BLOCK_N": rows if half else 16, "BLOCK_K": k, "ONE_ROW": 0}
    tiles |= {"num_warps": WARPS, "num_stages": 3 if gated else 4}
    if M >= LARGE:
        wide = {"BLOCK_N": 128} if R > 16 and half else {"BLOCK_N": 64, "BLOCK_K": 2 * k}
        return tiles | {"S": 1} | wide
    if R == 1 and half:
        for cols in (16, 8) if M * (1 + gated) >= 2048 else (8,):
            if cols * K * (1 + gated) <= REGISTERS:
                return tiles | {"BLOCK_N": cols, "ONE_ROW": 1, "num_stages": 1}
    return tiles


def choose_wide_tiles(R: int, M: int, K: int, dtype: torch.dtype, gated: bool) -> dict[str, int] | None:
    """Tiles of `_wide_kernel`, or None where `_linear_kernel` is faster. S is that of `choose_tiles`."""
    if R <= 16 or dtype == torch.float32:
        return None
    tiles = {"BLOCK_M": 64, "BLOCK_K": UNIT.value, "num_warps": WARPS}
    if M >= LARGE:
        return tiles | {"S": 1, "BLOCK_N": 32 if gated else 64, "num_stages": 4}
    widths = (32, 16) if gated else (64, 32, 16)
    cols = next((n for n in widths if triton.cdiv(R, 64) * triton.cdiv(M, n) >= PROGRAMS), 16)
    return tiles | {"S": 4, "BLOCK_N": cols, "num_stages": 4 if cols == 16 and K >= 2048 else 3}


def _normalize_rows(x: Tensor, norm: Norm, dtype: torch.dtype) -> Tensor:
    (R, D), out = x.shape, torch.empty_like(x, dtype=dtype)
    weight, bias, eps, kind = norm_arguments(norm)
    block = triton.next_power_of_2(D)
    start_kernel(
        _norm_kernel, (R,), x, x, weight, bias, out, eps, NORM=kind, D=D, BLOCK_D=block, num_warps=WARPS
    )  # fmt: skip
    return out


def _multiply(
    x: Tensor, norm: Norm | None, weight: Tensor, bias: Tensor | None, out: Tensor,
    activation: str | None = None, gated: bool = False, residual: Tensor | None = None
) -> Tensor:  # fmt: skip
    (R, K), M = x.shape, out.shape[1]
    tiles = choose_tiles(R, M, K, weight.dtype, gated)
    if norm is not None and not tiles["ONE_ROW"]:
        x, norm = _normalize_rows(x, norm, weight.dtype), None
    wide = choose_wide_tiles(R, M, K, weight.dtype, gated) if is_hopper(x.device) else None
    if wide is not None:
        start_kernel(
            _wide_kernel, (triton.cdiv(R, wide["BLOCK_M"]), triton.cdiv(M, wide["BLOCK_N"])), x,
            x, weight, bias, residual, out, R, M, K=K, ACTIVATION=activation, GATED=gated, **wide,
        )  # fmt: skip
        return out
    norm_weight, norm_bias, eps, kind = norm_arguments(norm)
    start_kernel(
        _linear_kernel, (triton.cdiv(R, tiles["BLOCK_M"]), triton.cdiv(M, tiles["BLOCK_N"])), x,
        x, norm_weight, norm_bias, weight, bias, residual, out, R, M, eps, K=K, NORM=kind,
        BLOCK_D=triton.next_power_of_2(K), ACTIVATION=activation, GATED=gated, **tiles,
    )  # fmt: skip
    return out


def normalize(x: Tensor, norm: Norm) -> Tensor:
    return _normalize_rows(x, norm, torch.float32)


def norm_linear(
    x: Tensor,
    norm: Norm | None,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    out = x.new_empty(len(x), weight.shape[0] // (1 + gated), dtype=out_dtype or weight.dtype)
    return _multiply(x, norm, weight, bias, out, activation or ("silu" if gated else None), gated)


def linear_residual(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, norm: Norm | None = None
) -> Tensor:
    if norm is not None:
        residual = _normalize_rows(residual, norm, torch.float32)
    return _multiply(x, None, weight, bias, torch.empty_like(residual), residual=residual)
