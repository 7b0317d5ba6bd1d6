"""The operations of `plain` as Triton kernels for a step that is captured in a CUDA graph.

A row's result has the same bits whatever the other rows are: every product is a chain of 16 x 8 x 16 tensor core
products along K, in segments whose number depends on the weights alone, and every row is attended to in fixed
chunks of keys. Grids depend on shapes only. On Hopper, a kernel starts while the one before it ends: it
prefetches its weights, which no kernel writes, then waits.

Shapes: R rows (tokens, each with its own position), D width, H heads, G key/value heads, d width of a head,
P pages of L tokens each, N pages of a row.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.decode.kernels.plain import Norm

CHUNK = 128  # keys of one program of paged_attention
COMBINED = 16  # chunks that are combined at once
LARGE = 8192  # outputs from which the norm is a kernel of its own, and K is not split
PROGRAMS = 96  # that a product is spread over at least, if it is large enough
COUNTERS = 1 << 20  # of rows x key/value heads in one call

NO_NORM, RMS_NORM, LAYER_NORM = (tl.constexpr(i) for i in range(3))


@triton.jit
def _begin(PDL: tl.constexpr):
    """Let the next kernel start, and wait for the end of the one before."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _row_stats(x, row, row_used, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr):
    """Mean (0 for RMSNorm) and 1 / deviation of rows; blocks are combined as by Chan et al. 1979."""
    mean = tl.zeros_like(row).to(tl.float32)
    squares = tl.zeros_like(row).to(tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = (at < WIDTH)[None, :]
        t = tl.load(x + row[:, None] * WIDTH + at[None, :], mask=row_used[:, None] & inside, other=0.0)
        t = t.to(tl.float32)
        if NORM == LAYER_NORM:
            n: tl.constexpr = min(BLOCK, WIDTH - start)
            block_mean = tl.sum(t, 1) / n
            t = tl.where(inside, t - block_mean[:, None], 0.0)
            change = block_mean - mean
            squares += change * change * (start * n / (start + n))
            mean += change * (n / (start + n))
        squares += tl.sum(t * t, 1)
    return mean, 1.0 / tl.sqrt(squares / WIDTH + eps)


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
def _prefetch(pointers, mask):
    """Bring the lines of these addresses into the L2 cache."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r", [pointers, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["R"])
def _linear_kernel(
    x, weight, bias, norm_weight, norm_bias, residual, out, R, M, eps,
    K: tl.constexpr, NORM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, RESIDUAL: tl.constexpr, S: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A tile (BLOCK_M, BLOCK_N) of x Wᵀ: K in S segments, one for each warp, unless S is 1.

    The norm is that of x (R, K), or with RESIDUAL that of the residual (R, M).
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_used, col_used = row < R, col < M
    if PDL:
        gdc_launch_dependents()
        if PREFETCH:
            LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
            line = tl.arange(0, PREFETCH) * LINE
            lines_used = col_used[:, None] & (line < K)[None, :]
            _prefetch(weight + col[:, None] * K + line[None, :], lines_used)
            if GATED:
                _prefetch(weight + (col[:, None] + M) * K + line[None, :], lines_used)
        gdc_wait()
    if NORM != NO_NORM:
        mean, scale = _row_stats(residual if RESIDUAL else x, row, row_used, eps, WIDTH, BLOCK_W, NORM)

    SEGMENT: tl.constexpr = (K + S * BLOCK_K - 1) // (S * BLOCK_K) * BLOCK_K
    if S == 1:
        k = tl.arange(0, BLOCK_K)[None, :]
        x_row, x_used, w_row, w_used = row[:, None], row_used[:, None], col[:, None], col_used[:, None]
        y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        if NORM != NO_NORM and not RESIDUAL:
            x_mean, x_scale = mean[:, None], scale[:, None]
    else:
        k = tl.arange(0, S)[:, None, None] * SEGMENT + tl.arange(0, BLOCK_K)[None, None, :]
        x_row, x_used, w_row, w_used = (
            row[None, :, None], row_used[None, :, None], col[None, :, None], col_used[None, :, None]
        )  # fmt: skip
        y = tl.zeros([S, BLOCK_M, BLOCK_N], tl.float32)
        if NORM != NO_NORM and not RESIDUAL:
            x_mean, x_scale = mean[None, :, None], scale[None, :, None]
    up = y
    for start in range(0, SEGMENT, BLOCK_K):
        at = k + start
        inside = at < K
        w = tl.load(weight + w_row * K + at, mask=w_used & inside, other=0.0)
        if GATED:
            w_up = tl.load(weight + (w_row + M) * K + at, mask=w_used & inside, other=0.0)
        a = tl.load(x + x_row * K + at, mask=x_used & inside, other=0.0)
        if NORM != NO_NORM and not RESIDUAL:
            gain = tl.load(norm_weight + at, mask=inside, other=0.0).to(tl.float32)
            a = (a.to(tl.float32) - x_mean) * x_scale
            if norm_bias is None:
                a = a * gain
            else:
                a = tl.fma(a, gain, tl.load(norm_bias + at, mask=inside, other=0.0).to(tl.float32))
        a = a.to(w.dtype)
        y = tl.dot(a, tl.trans(w) if S == 1 else tl.permute(w, (0, 2, 1)), y, input_precision="ieee")
        if GATED:
            up = tl.dot(
                a, tl.trans(w_up) if S == 1 else tl.permute(w_up, (0, 2, 1)), up, input_precision="ieee"
            )
    if S != 1:
        y = tl.sum(y, 0)
        if GATED:
            up = tl.sum(up, 0)

    used = row_used[:, None] & col_used[None, :]
    if bias is not None:
        y += tl.load(bias + col, mask=col_used, other=0.0).to(tl.float32)[None, :]
        if GATED:
            up += tl.load(bias + M + col, mask=col_used, other=0.0).to(tl.float32)[None, :]
    y = _activate(y, ACTIVATION)
    if GATED:
        y *= up
    if RESIDUAL:
        t = tl.load(residual + row[:, None] * M + col[None, :], mask=used, other=0.0)
        if NORM != NO_NORM:
            t = (t - mean[:, None]) * scale[:, None]
            t *= tl.load(norm_weight + col, mask=col_used, other=0.0).to(tl.float32)[None, :]
            if norm_bias is not None:
                t += tl.load(norm_bias + col, mask=col_used, other=0.0).to(tl.float32)[None, :]
        y += t
    tl.store(out + row[:, None] * M + col[None, :], y.to(out.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["R"])
def _norm_kernel(
    x, weight, bias, out, R, eps, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One row, normed."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    _begin(PDL)
    mean, scale = _row_stats(x, row, row < R, eps, WIDTH, BLOCK_W, NORM)
    for start in tl.static_range(0, WIDTH, BLOCK_W):
        at = start + tl.arange(0, BLOCK_W)[None, :]
        inside = at < WIDTH
        t = tl.load(x + row[:, None] * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
        t = (t - mean[:, None]) * scale[:, None]
        gain = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        if bias is None:
            t = t * gain
        else:
            t = tl.fma(t, gain, tl.load(bias + at, mask=inside, other=0.0).to(tl.float32))
        tl.store(out + row[:, None] * WIDTH + at, t.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _head(
    x, weight, bias, cos, sin, eps, position, NORM: tl.constexpr, d: tl.constexpr, BLOCK_D: tl.constexpr
):
    """A head's query or key (d,), normed and rotated, in x's dtype."""
    i = tl.arange(0, BLOCK_D)
    used = i < d
    HALF: tl.constexpr = d // 2
    partner = tl.where(i < HALF, i + HALF, i - HALF)
    t = tl.load(x + i, mask=used, other=0.0)
    other = tl.load(x + partner, mask=used, other=0.0)
    if NORM != NO_NORM:
        dtype = t.dtype
        mean = 0.0
        t, other = t.to(tl.float32), other.to(tl.float32)
        if NORM == LAYER_NORM:
            mean = tl.sum(t, 0) / d
        centered = tl.where(used, t - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 0) / d + eps)
        t = centered * scale * tl.load(weight + i, mask=used, other=0.0).to(tl.float32)
        other = (other - mean) * scale * tl.load(weight + partner, mask=used, other=0.0).to(tl.float32)
        if bias is not None:
            t += tl.load(bias + i, mask=used, other=0.0).to(tl.float32)
            other += tl.load(bias + partner, mask=used, other=0.0).to(tl.float32)
        t, other = t.to(dtype), other.to(dtype)
    if cos is not None:
        dtype = t.dtype
        at = position * HALF + tl.where(i < HALF, i, i - HALF)
        c, s = tl.load(cos + at, mask=used, other=0.0), tl.load(sin + at, mask=used, other=0.0)
        s = tl.where(i < HALF, -s, s)
        t = tl.fma(t.to(tl.float32), c, other.to(tl.float32) * s).to(dtype)
    return t


@triton.jit(do_not_specialize=["N"])
def _write_kernel(
    qkv, k_pages, v_pages, tables, positions, cos, sin, q_weight, q_bias, k_weight, k_bias, out, N, q_eps, k_eps,
    H: tl.constexpr, G: tl.constexpr, L: tl.constexpr, d: tl.constexpr, BLOCK_D: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one row: a query, a key or a value."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK_D)
    _begin(PDL)
    position = tl.load(positions + row)
    at = tl.maximum(position, 0)
    x = qkv + (row * (H + 2 * G) + head) * d
    if head < H:
        t = _head(x, q_weight, q_bias, cos, sin, q_eps, at, Q_NORM, d, BLOCK_D)
        tl.store(out + (row * H + head) * d + i, t, mask=i < d)
    else:
        page = tl.load(tables + row * N + at // L).to(tl.int64)
        cell = ((page * G + (head - H) % G) * L + at % L) * d + i
        used = (i < d) & (position >= 0)
        if head < H + G:
            t = _head(x, k_weight, k_bias, cos, sin, k_eps, at, K_NORM, d, BLOCK_D)
            tl.store(k_pages + cell, t.to(k_pages.dtype.element_ty), mask=used)
        else:
            t = tl.load(x + i, mask=used, other=0.0)
            tl.store(v_pages + cell, t.to(v_pages.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["N", "chunks", "distances", "window"])
def _attention_kernel(
    q, k_pages, v_pages, tables, lengths, bias, out, partial, totals, counters, N, chunks, distances, window, scale,
    H: tl.constexpr, G: tl.constexpr, L: tl.constexpr, d: tl.constexpr, BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr, COMBINED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of keys, and all queries of its key/value head. The last program of a row combines its chunks."""
    row, g, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = H // G
    i = tl.arange(0, BLOCK_D)
    inside = i < d
    _begin(PDL)
    length = tl.load(lengths + row)
    first = tl.maximum(length - 1 - window, 0) // CHUNK  # the first chunk with keys for this row
    last = (length - 1) // CHUNK if length > 0 else -1
    head = row * H + g * GROUP
    if (chunk == 0) & (length <= 0):
        for j in tl.static_range(GROUP):
            tl.store(out + (head + j) * d + i, tl.zeros([BLOCK_D], out.dtype.element_ty), mask=inside)
    if (chunk >= first) & (chunk <= last):
        t = chunk * CHUNK + tl.arange(0, CHUNK)
        distance = length - 1 - t
        allowed = (distance >= 0) & (distance <= window)
        page = tl.load(tables + row * N + t // L, mask=allowed, other=0).to(tl.int64)
        cell = ((page * G + g) * L + t % L)[:, None] * d + i[None, :]
        used = allowed[:, None] & inside[None, :]
        k = tl.load(k_pages + cell, mask=used, other=0.0)
        v = tl.load(v_pages + cell, mask=used, other=0.0)
        for j in tl.static_range(GROUP):
            query = tl.load(q + (head + j) * d + i, mask=inside, other=0.0).to(tl.float32)
            s = tl.sum(k.to(tl.float32) * query[None, :], 1) * scale
            if bias is not None:
                nearest = tl.minimum(tl.maximum(distance, 0), distances - 1)
                s += tl.load(bias + (g * GROUP + j) * distances + nearest, mask=allowed, other=0.0)
            s = tl.where(allowed, s, -float("inf"))
            highest = tl.max(s, 0)
            p = tl.exp(s - tl.where(highest == -float("inf"), 0.0, highest))
            total = tl.sum(p, 0)
            o = tl.sum(p[:, None] * v.to(tl.float32), 0)
            if first == last:
                o = o / tl.where(total == 0, 1.0, total)
                tl.store(out + (head + j) * d + i, o.to(out.dtype.element_ty), mask=inside)
            else:
                place = (head + j) * chunks + chunk
                tl.store(partial + place * d + i, o, mask=inside)
                tl.store(totals + place * 2, highest)
                tl.store(totals + place * 2 + 1, total)
        if first != last:
            tl.debug_barrier()  # all of this program's stores come before the count
            if tl.atomic_add(counters + row * G + g, 1, sem="acq_rel") == last - first:
                for j in tl.static_range(GROUP):
                    _combine(partial, totals, out, head + j, first, last, chunks, d, BLOCK_D, COMBINED)
                tl.store(counters + row * G + g, 0)


@triton.jit
def _combine(
    partial, totals, out, head, first, last, chunks, d: tl.constexpr, BLOCK_D: tl.constexpr, COMBINED: tl.constexpr
):  # fmt: skip
    """The result of a head from those of its chunks."""
    i = tl.arange(0, BLOCK_D)
    highest = -float("inf")
    total = 0.0
    o = tl.zeros([BLOCK_D], tl.float32)
    start = first
    while start <= last:
        c = start + tl.arange(0, COMBINED)
        used = c <= last
        place = head * chunks + c
        m = tl.load(totals + place * 2, mask=used, other=-float("inf"), cache_modifier=".cg")
        n = tl.load(totals + place * 2 + 1, mask=used, other=0.0, cache_modifier=".cg")
        part = tl.load(
            partial + place[:, None] * d + i[None, :], mask=used[:, None] & (i < d)[None, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        new = tl.maximum(highest, tl.max(m, 0))
        shift = tl.where(new == -float("inf"), 0.0, new)
        share = tl.exp(m - shift)
        old = tl.exp(highest - shift)
        total = total * old + tl.sum(n * share, 0)
        o = o * old + tl.sum(part * share[:, None], 0)
        highest = new
        start += COMBINED
    o = o / tl.where(total == 0, 1.0, total)
    tl.store(out + head * d + i, o.to(out.dtype.element_ty), mask=i < d)


# The operations


@functools.cache
def _overlaps(device: torch.device) -> bool:
    """Whether a kernel may start before the one ahead of it ends: programmatic dependent launch, Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def _counters(device: torch.device) -> Tensor:
    """One counter for each row and key/value head: 0 between kernels. One step runs at a time on a device."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def _start(
    kernel: triton.JITFunction, grid: tuple[int, ...], like: Tensor, *args: object, **options: object
) -> None:
    """Start a kernel on the device of `like`."""
    pdl = _overlaps(like.device)
    with torch.cuda.device_of(like):
        kernel[grid](*args, **options, PDL=pdl, **({"launch_pdl": True} if pdl else {}))


def _norm_arguments(norm: Norm | None) -> tuple[Tensor | None, Tensor | None, float, int]:
    """Weight, bias, ε and kind of a norm."""
    if norm is None:
        return None, None, 0.0, NO_NORM.value
    return norm.weight, norm.bias, norm.eps, (LAYER_NORM if norm.centered else RMS_NORM).value


def choose_tiles(R: int, M: int, dtype: torch.dtype, gated: bool = False) -> dict[str, int]:
    """Tiles of `_linear_kernel`. Only BLOCK_N, and without segments BLOCK_M, depend on the number of rows."""
    half = dtype != torch.float32
    if M >= LARGE:
        rows = 16 if R <= 16 else 32
        return dict(S=1, BLOCK_M=rows, BLOCK_N=64, BLOCK_K=64 if half else 16, num_warps=4, num_stages=4)
    sizes = (32 if gated else 64, 32, 16) if half else (16,)
    tiles = triton.cdiv(R, 16)
    cols = next((n for n in sizes if triton.cdiv(M, n) * tiles >= PROGRAMS), 8)
    return dict(S=8, BLOCK_M=16, BLOCK_N=cols, BLOCK_K=32 if half else 16, num_warps=8, num_stages=4)


def _start_linear(
    x: Tensor, norm: Norm | None, weight: Tensor, bias: Tensor | None, out: Tensor, activation: str | None = None,
    gated: bool = False, residual: Tensor | None = None
) -> Tensor:  # fmt: skip
    (R, K), M = x.shape, out.shape[1]
    norm_weight, norm_bias, eps, kind = _norm_arguments(norm)
    width = K if residual is None else M
    tiles = choose_tiles(R, M, weight.dtype, gated)
    _start(
        _linear_kernel, (triton.cdiv(R, tiles["BLOCK_M"]), triton.cdiv(M, tiles["BLOCK_N"])), x,
        x, weight, bias, norm_weight, norm_bias, residual, out, R, M, eps,
        K=K, NORM=kind, WIDTH=width, BLOCK_W=min(triton.next_power_of_2(width), 2048), ACTIVATION=activation,
        GATED=gated, RESIDUAL=residual is not None,
        PREFETCH=0 if M >= LARGE else triton.next_power_of_2(triton.cdiv(K * weight.element_size(), 128)), **tiles,
    )  # fmt: skip
    return out


def norm_linear(
    x: Tensor,
    norm: Norm | None,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    R, D = x.shape
    out = x.new_empty(R, weight.shape[0] // (1 + gated), dtype=out_dtype or weight.dtype)
    if norm is not None and out.shape[1] >= LARGE:  # so many programs would norm the row again
        weight_, bias_, eps, kind = _norm_arguments(norm)
        normed = torch.empty_like(x, dtype=weight.dtype)
        width = min(triton.next_power_of_2(D), 2048)
        _start(_norm_kernel, (R,), x, x, weight_, bias_, normed, R, eps, WIDTH=D, BLOCK_W=width, NORM=kind)
        x, norm = normed, None
    return _start_linear(x, norm, weight, bias, out, activation or ("silu" if gated else None), gated)


def linear_residual(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, norm: Norm | None = None
) -> Tensor:
    return _start_linear(x, norm, weight, bias, torch.empty_like(residual), residual=residual)


def write_pages(
    qkv: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    tables: Tensor,
    positions: Tensor,
    rotary: tuple[Tensor, Tensor] | None = None,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
) -> Tensor:
    G, L, d = k_pages.shape[1:]
    R, heads = qkv.shape[0], qkv.shape[1] // d
    H = heads - 2 * G
    q = qkv.new_empty(R, H, d)
    cos, sin = rotary or (None, None)
    q_weight, q_bias, q_eps, q_kind = _norm_arguments(q_norm)
    k_weight, k_bias, k_eps, k_kind = _norm_arguments(k_norm)
    _start(
        _write_kernel, (R, heads), qkv,
        qkv, k_pages, v_pages, tables, positions, cos, sin, q_weight, q_bias, k_weight, k_bias, q,
        tables.shape[1], q_eps, k_eps,
        H=H, G=G, L=L, d=d, BLOCK_D=triton.next_power_of_2(d), Q_NORM=q_kind, K_NORM=k_kind, num_warps=4,
    )  # fmt: skip
    return q


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    tables: Tensor,
    lengths: Tensor,
    bias: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    (R, H, d), (G, L), N = q.shape, k_pages.shape[1:3], tables.shape[1]
    if R * G > COUNTERS:
        raise ValueError(f"paged_attention: {R} rows x {G} key/value heads; at most {COUNTERS} at once")
    chunks = triton.cdiv(N * L, CHUNK)
    partial = torch.empty(R, H, chunks, d, dtype=torch.float32, device=q.device)
    totals = torch.empty(R, H, chunks, 2, dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    _start(
        _attention_kernel, (R, G, chunks), q,
        q, k_pages, v_pages, tables, lengths, bias, out, partial, totals, _counters(q.device), N, chunks,
        0 if bias is None else bias.shape[1], N * L if window is None else window, 1 / math.sqrt(d),
        H=H, G=G, L=L, d=d, BLOCK_D=triton.next_power_of_2(d), CHUNK=CHUNK, COMBINED=COMBINED, num_warps=4,
    )  # fmt: skip
    return out
