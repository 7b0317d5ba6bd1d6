"""Attention over pages as Triton kernels: see `fused`.

Shapes: R rows (tokens, each with its own position), H heads, G key/value heads, d width of a head,
P pages of L tokens each, N pages of a row.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.decode.kernels.launch import (
    COUNTERS,
    LAYER_NORM,
    NO_NORM,
    begin_kernel,
    get_counters,
    norm_arguments,
    start_kernel,
)
from regard.decode.kernels.plain import Norm

CHUNK = 64  # keys of one program: a row's keys are always split in the same places
PROGRAMS = 1024  # as run at once: where there would be more, each has several of a row's chunks
FEW = 4  # up to this many rows, there are enough registers
COMBINED = 16  # chunks that are combined at once
WARPS = 2  # of every kernel that norms a head: its sums have one order


@triton.jit
def _normalize(t, mean, scale, weight, bias, i, used):
    t = (t - mean) * scale
    gain = tl.load(weight + i, mask=used, other=0.0).to(tl.float32)
    if bias is None:
        t = t * gain
    else:
        t = tl.fma(t, gain, tl.load(bias + i, mask=used, other=0.0).to(tl.float32))
    return t


@triton.jit
def _prepare_head(
    x, weight, bias, cos, sin, eps, position, NORM: tl.constexpr, d: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """A head's query or key (d,), normed and rotated, in x's dtype."""
    i = tl.arange(0, BLOCK_D)
    used = i < d
    HALF: tl.constexpr = d // 2
    partner = tl.where(i < HALF, i + HALF, i - HALF)
    t = tl.load(x + i, mask=used, other=0.0)
    other = tl.load(x + partner, mask=used, other=0.0)
    dtype: tl.constexpr = x.dtype.element_ty
    if NORM != NO_NORM:
        t, other = t.to(tl.float32), other.to(tl.float32)
        mean = 0.0
        if NORM == LAYER_NORM:
            mean = tl.sum(t, 0) / d
        centered = tl.where(used, t - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centered * centered, 0) / d + eps)
        t = _normalize(t, mean, scale, weight, bias, i, used).to(dtype)
        other = _normalize(other, mean, scale, weight, bias, partner, used).to(dtype)
    if cos is not None:
        at = position * HALF + tl.where(i < HALF, i, i - HALF)
        c, s = tl.load(cos + at, mask=used, other=0.0), tl.load(sin + at, mask=used, other=0.0)
        s = tl.where(i < HALF, -s, s)
        t = tl.fma(t.to(tl.float32), c, other.to(tl.float32) * s).to(dtype)
    return t


@triton.jit(do_not_specialize=["N"])
def _write_kernel(
    qkv, k_pages, v_pages, tables, positions, cos, sin, q_weight, q_bias, k_weight, k_bias, out, N,
    q_eps, k_eps,
    H: tl.constexpr, G: tl.constexpr, L: tl.constexpr, d: tl.constexpr, BLOCK_D: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one row: a query, a key or a value."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK_D)
    begin_kernel(PDL)
    position = tl.load(positions + row)
    at = tl.maximum(position, 0)
    x = qkv + (row * (H + 2 * G) + head) * d
    if head < H:
        t = _prepare_head(x, q_weight, q_bias, cos, sin, q_eps, at, Q_NORM, d, BLOCK_D)
        tl.store(out + (row * H + head) * d + i, t, mask=i < d)
    else:
        page = tl.load(tables + row * N + at // L).to(tl.int64)
        cell = ((page * G + (head - H) % G) * L + at % L) * d + i
        used = (i < d) & (position >= 0)
        if head < H + G:
            t = _prepare_head(x, k_weight, k_bias, cos, sin, k_eps, at, K_NORM, d, BLOCK_D)
            tl.store(k_pages + cell, t.to(k_pages.dtype.element_ty), mask=used)
        else:
            t = tl.load(x + i, mask=used, other=0.0)
            tl.store(v_pages + cell, t.to(v_pages.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["P"])
def _copy_kernel(
    keys, values, source, target, lengths, P, G: tl.constexpr, WIDTH: tl.constexpr, d: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one layer in one page: WIDTH numbers, of which the first tokens are copied."""
    row, layer, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    begin_kernel(PDL)
    read = ((layer * P + tl.load(source + row)) * G + head) * WIDTH
    write = ((layer * P + tl.load(target + row)) * G + head) * WIDTH
    i = tl.arange(0, BLOCK)
    used = (i < tl.load(lengths + row) * d) & (read != write)
    k, v = tl.load(keys + read + i, mask=used), tl.load(values + read + i, mask=used)
    tl.store(keys + write + i, k, mask=used)
    tl.store(values + write + i, v, mask=used)


def copy_pages(keys: Tensor, values: Tensor, source: Tensor, target: Tensor, lengths: Tensor) -> None:
    layers, P, G, L, d = keys.shape
    start_kernel(
        _copy_kernel, (len(source), layers, G), keys, keys, values, source, target, lengths, P,
        G=G, WIDTH=L * d, d=d, BLOCK=triton.next_power_of_2(L * d), num_warps=4,
    )  # fmt: skip


@triton.jit
def _locate_chunk(
    tables, N, chunk, own, window, g, i, inside, G: tl.constexpr, L: tl.constexpr, d: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The distances of a chunk's keys, which of them the row attends to, their places in the pages, and a
    mask of these."""
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    page = tl.load(tables + at // L, mask=at // L < N, other=0, cache_modifier=".cg").to(tl.int64)
    distance = own - at
    earlier = (distance > 0) & (distance <= window)
    cell = ((page * G + g) * L + at % L)[:, None] * d + i[None, :]
    return distance, earlier, cell, earlier[:, None] & inside[None, :]


@triton.jit(do_not_specialize=["N", "chunks", "distances", "window", "added"])
def _attention_kernel(
    q, k_pages, v_pages, tables, lengths, cos, sin, q_weight, q_bias, k_weight, k_bias, bias,
    out, partial, totals, counters, N, chunks, distances, window, added, scale, q_eps, k_eps,
    H: tl.constexpr, G: tl.constexpr, L: tl.constexpr, d: tl.constexpr, BLOCK_D: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, WRITE: tl.constexpr, EARLY: tl.constexpr,
    CHUNK: tl.constexpr, COMBINED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """All queries of a key/value head, for every n-th chunk of a row's keys, where n programs share them. The
    last of these programs combines the chunks.

    A row attends to its first lengths + added tokens. With WRITE, q has queries, keys and values, and the
    last of these tokens is the row's own: its key and value are written to their page first. With EARLY,
    each chunk has a program, and the other keys are loaded before the kernel ahead has ended, which may write
    none of them, nor tables and lengths; this takes registers.
    """
    row, g, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = H // G
    i = tl.arange(0, BLOCK_D)
    inside = i < d
    if PDL and not EARLY:
        gdc_wait()
    length = tl.load(lengths + row, cache_modifier=".cg") + added
    own = tl.maximum(length - 1, 0)  # the last token, whose key is not in a page yet with WRITE
    first, last = tl.maximum(own - window, 0) // CHUNK, own // CHUNK  # the chunks with keys for this row
    tables += row * N
    programs = tl.num_programs(2)
    sharing = tl.minimum(programs, last - first + 1)
    if EARLY:
        distance, earlier, cell, used = _locate_chunk(
            tables, N, chunk, own, window, g, i, inside, G, L, d, CHUNK
        )
        k = tl.load(k_pages + cell, mask=used, other=0.0)
        v = tl.load(v_pages + cell, mask=used, other=0.0)
        if PDL:
            gdc_wait()
        chunk = tl.where(chunk < first, last + 1, chunk)
    else:
        chunk += first
    head = row * H + g * GROUP
    if (tl.program_id(2) == 0) & (length <= 0):
        for j in tl.static_range(GROUP):
            tl.store(out + (head + j) * d + i, tl.zeros([BLOCK_D], out.dtype.element_ty), mask=inside)
    if (chunk <= last) & (length > 0):
        own_page = tl.load(tables + own // L).to(tl.int64)
        own_cell = ((own_page * G + g) * L + own % L) * d + i
        if WRITE:
            x = q + row * (H + 2 * G) * d
            own_k = x + (H + g) * d
            own_v = tl.load(own_k + G * d + i, mask=inside, other=0.0).to(v_pages.dtype.element_ty)
            own_k = _prepare_head(own_k, k_weight, k_bias, cos, sin, k_eps, own, K_NORM, d, BLOCK_D)
            own_k = own_k.to(k_pages.dtype.element_ty)
            writes = (last - chunk) % programs == 0
            tl.store(k_pages + own_cell, own_k, mask=inside & writes)
            tl.store(v_pages + own_cell, own_v, mask=inside & writes)
            q_row = x + g * GROUP * d
        else:
            own_k = tl.load(k_pages + own_cell, mask=inside, other=0.0)
            own_v = tl.load(v_pages + own_cell, mask=inside, other=0.0)
            q_row = q + head * d
        while chunk <= last:
            if not EARLY:
                distance, earlier, cell, used = _locate_chunk(
                    tables, N, chunk, own, window, g, i, inside, G, L, d, CHUNK
                )
                k = tl.load(k_pages + cell, mask=used, other=0.0)
                v = tl.load(v_pages + cell, mask=used, other=0.0)
            for j in tl.static_range(GROUP):
                if WRITE:
                    query = _prepare_head(
                        q_row + j * d, q_weight, q_bias, cos, sin, q_eps, own, Q_NORM, d, BLOCK_D
                    ).to(tl.float32)
                else:
                    query = tl.load(q_row + j * d + i, mask=inside, other=0.0).to(tl.float32)
                s = tl.sum(k.to(tl.float32) * query[None, :], 1) * scale
                own_s = tl.sum(own_k.to(tl.float32) * query, 0) * scale
                if bias is not None:
                    by_distance = bias + (g * GROUP + j) * distances
                    s += tl.load(by_distance + tl.minimum(distance, distances - 1), mask=earlier, other=0.0)
                    own_s += tl.load(by_distance)
                s = tl.where(earlier, s, -float("inf"))
                own_s = tl.where(chunk == last, own_s, -float("inf"))
                highest = tl.maximum(tl.max(s, 0), own_s)
                shift = tl.where(highest == -float("inf"), 0.0, highest)
                p, own_p = tl.exp(s - shift), tl.exp(own_s - shift)
                total = tl.sum(p, 0) + own_p
                o = tl.sum(p[:, None] * v.to(tl.float32), 0) + own_p * own_v.to(tl.float32)
                if first == last:
                    o = o / tl.where(total == 0, 1.0, total)
                    tl.store(out + (head + j) * d + i, o.to(out.dtype.element_ty), mask=inside)
                else:
                    place = (head + j) * chunks + chunk
                    tl.store(partial + place * d + i, o, mask=inside)
                    tl.store(totals + place * 2, highest)
                    tl.store(totals + place * 2 + 1, total)
            chunk += programs
        if PDL:
            gdc_launch_dependents()
        if first != last:
            tl.debug_barrier()  # all of this program's stores come before the count
            if tl.atomic_add(counters + row * G + g, 1, sem="acq_rel") == sharing - 1:
                for j in tl.static_range(GROUP):
                    _combine(partial, totals, out, head + j, first, last, chunks, d, BLOCK_D, COMBINED)
                tl.store(counters + row * G + g, 0)


@triton.jit
def _combine(
    partial, totals, out, head, first, last, chunks, d: tl.constexpr, BLOCK_D: tl.constexpr,
    COMBINED: tl.constexpr,
):  # fmt: skip
    """Combine the results of a head's chunks."""
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


Rotation = tuple[Tensor, Tensor]


def write_pages(
    qkv: Tensor, k_pages: Tensor, v_pages: Tensor, tables: Tensor, positions: Tensor,
    rotary: Rotation | None = None, q_norm: Norm | None = None, k_norm: Norm | None = None
) -> Tensor:  # fmt: skip
    G, L, d = k_pages.shape[1:]
    R, heads, tables = qkv.shape[0], qkv.shape[1] // d, tables.contiguous()
    H = heads - 2 * G
    q = qkv.new_empty(R, H, d)
    q_weight, q_bias, q_eps, q_kind = norm_arguments(q_norm)
    k_weight, k_bias, k_eps, k_kind = norm_arguments(k_norm)
    start_kernel(
        _write_kernel, (R, heads), qkv,
        qkv, k_pages, v_pages, tables, positions, *(rotary or (None, None)), q_weight, q_bias, k_weight,
        k_bias, q, tables.shape[1], q_eps, k_eps,
        H=H, G=G, L=L, d=d, BLOCK_D=triton.next_power_of_2(d), Q_NORM=q_kind, K_NORM=k_kind, num_warps=WARPS,
    )  # fmt: skip
    return q


def _attend(
    q: Tensor, H: int, k_pages: Tensor, v_pages: Tensor, tables: Tensor, lengths: Tensor, added: int,
    rotary: Rotation | None, q_norm: Norm | None, k_norm: Norm | None, bias: Tensor | None, window: int | None
) -> Tensor:  # fmt: skip
    R, (G, L, d), N, tables = q.shape[0], k_pages.shape[1:], tables.shape[1], tables.contiguous()
    if R * G > COUNTERS:
        raise ValueError(
            f"attention of {R} rows with {G} key/value heads: at most {COUNTERS} of both at once"
        )
    chunks = triton.cdiv(N * L, CHUNK)
    partial, totals = (torch.empty(R, H, chunks, n, dtype=torch.float32, device=q.device) for n in (d, 2))
    out = q.new_empty(R, H, d)
    q_weight, q_bias, q_eps, q_kind = norm_arguments(q_norm)
    k_weight, k_bias, k_eps, k_kind = norm_arguments(k_norm)
    early = added > 0 and R <= FEW
    programs = chunks if early else max(1, min(chunks, PROGRAMS // (R * G)))
    start_kernel(
        _attention_kernel, (R, G, programs), q,
        q, k_pages, v_pages, tables, lengths, *(rotary or (None, None)), q_weight, q_bias, k_weight, k_bias,
        bias, out, partial, totals, get_counters(q.device), N, chunks, 0 if bias is None else bias.shape[1],
        N * L if window is None else window, added, 1 / math.sqrt(d), q_eps, k_eps,
        H=H, G=G, L=L, d=d, BLOCK_D=triton.next_power_of_2(d), Q_NORM=q_kind, K_NORM=k_kind, WRITE=added > 0,
        EARLY=early, CHUNK=CHUNK, COMBINED=COMBINED, num_warps=WARPS,
    )  # fmt: skip
    return out


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, tables: Tensor, lengths: Tensor, bias: Tensor | None = None,
    window: int | None = None
) -> Tensor:  # fmt: skip
    return _attend(q, q.shape[1], k_pages, v_pages, tables, lengths, 0, None, None, None, bias, window)


def write_and_attend(
    qkv: Tensor, k_pages: Tensor, v_pages: Tensor, tables: Tensor, positions: Tensor,
    rotary: Rotation | None = None, q_norm: Norm | None = None, k_norm: Norm | None = None,
    bias: Tensor | None = None, window: int | None = None
) -> Tensor:  # fmt: skip
    H = qkv.shape[1] // k_pages.shape[3] - 2 * k_pages.shape[1]
    return _attend(qkv, H, k_pages, v_pages, tables, positions, 1, rotary, q_norm, k_norm, bias, window)
