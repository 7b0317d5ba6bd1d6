"""Sampling as a Triton kernel: see `fused`.

Shapes: R rows, V vocabulary.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.decode.kernels.launch import COUNTERS, begin_kernel, get_counters, start_kernel
from regard.decode.sampling import GREEDY, LEVELS


@triton.jit
def _choose_group(groups, i, u):
    """The first group at which the cumulative probability exceeds the share u; never one without any."""
    below = tl.where(groups > 0, tl.cumsum(groups, 0), 0.0)
    return tl.min(tl.where(below > u * tl.max(below, 0), i, 1 << 30), 0)


@triton.jit
def _suppress(t, tokens, suppressed, SUPPRESSED: tl.constexpr):
    """Logits t of tokens, -inf of those that are never chosen."""
    for i in tl.static_range(SUPPRESSED):
        t = tl.where(tokens == tl.load(suppressed + i), -float("inf"), t)
    return t


@triton.jit
def _choose_token(
    x, suppressed, groups, highest, factor, uniform, V,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, SUPPRESSED: tl.constexpr,
):  # fmt: skip
    """Choose one of the large groups, one of the WIDTH groups in it, and one of the WIDTH tokens in that."""
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    limit: tl.constexpr = 1 - 2.0**-23
    first = _choose_group(groups, i, tl.minimum(tl.load(uniform), limit)) * WIDTH * WIDTH
    tokens = first + i[:, None] * WIDTH + i[None, :]
    t = tl.load(x + tokens, mask=inside[:, None] & inside[None, :] & (tokens < V), other=-float("inf"))
    t = _suppress(t, tokens, suppressed, SUPPRESSED)
    sums = tl.sum(tl.exp((t - highest) * factor), 1)
    second = first + _choose_group(sums, i, tl.minimum(tl.load(uniform + 1), limit)) * WIDTH
    t = tl.load(x + second + i, mask=inside & (second + i < V), other=-float("inf"))
    t = _suppress(t, second + i, suppressed, SUPPRESSED)
    p = tl.exp((t - highest) * factor)
    return second + _choose_group(p, i, tl.minimum(tl.load(uniform + 2), limit))


@triton.jit
def _sample_kernel(
    logits, temperatures, uniform, suppressed, tokens, logprobs, parts, counters, V,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr, GREEDY: tl.constexpr,
    SUPPRESSED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One of the WIDTH large groups of a row's vocabulary; the last program of a row chooses its token."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin_kernel(PDL)
    x = logits + row * V
    suppressed += row * SUPPRESSED
    temperature = tl.load(temperatures + row)
    greedy = temperature < GREEDY
    factor = 1.0 / tl.where(greedy, 1.0, temperature)
    token = group * WIDTH * WIDTH + tl.arange(0, BLOCK_V)
    used = (tl.arange(0, BLOCK_V) < WIDTH * WIDTH) & (token < V)
    t = tl.load(x + token, mask=used, other=-float("inf"))
    highest = tl.max(t, 0)
    shift = tl.where(highest == -float("inf"), 0.0, highest)
    # Of each group: highest and sum of all; highest of those that may be chosen, its token, their sum.
    part = parts + (row * WIDTH + group) * 5
    tl.store(part, highest)
    tl.store(part + 1, tl.sum(tl.exp(t - shift), 0))
    t = _suppress(t, token, suppressed, SUPPRESSED)
    top = tl.max(t, 0) if SUPPRESSED else highest
    shift = tl.where(top == -float("inf"), 0.0, top)
    tl.store(part + 2, top)
    tl.store(part + 3, tl.min(tl.where(t == top, token, V - 1), 0).to(tl.float32))  # below 2^24: exact
    tl.store(part + 4, tl.sum(tl.exp((t - shift) * factor), 0))
    tl.debug_barrier()  # all of this program's stores come before the count
    if tl.atomic_add(counters + row, 1, sem="acq_rel") == WIDTH - 1:
        tl.store(counters + row, 0)
        i = tl.arange(0, BLOCK)
        all_parts = parts + (row * WIDTH + i) * 5
        all_tops = tl.load(all_parts, mask=i < WIDTH, other=-float("inf"), cache_modifier=".cg")
        plain_sums = tl.load(all_parts + 1, mask=i < WIDTH, other=0.0, cache_modifier=".cg")
        tops = tl.load(all_parts + 2, mask=i < WIDTH, other=-float("inf"), cache_modifier=".cg")
        best = tl.load(all_parts + 3, mask=i < WIDTH, other=0.0, cache_modifier=".cg").to(tl.int32)
        sums = tl.load(all_parts + 4, mask=i < WIDTH, other=0.0, cache_modifier=".cg")
        highest, top = tl.max(all_tops, 0), tl.max(tops, 0)
        total = tl.sum(tl.where(plain_sums > 0, plain_sums * tl.exp(all_tops - highest), plain_sums), 0)
        # Not if any logit is NaN or inf, or all that may be chosen are -inf.
        is_finite = (total > 0) & (total < float("inf")) & (top > -float("inf"))
        if is_finite & greedy:
            chosen = tl.min(tl.where(tops == top, best, V - 1), 0)
        elif is_finite:
            groups = tl.where(sums > 0, sums * tl.exp((tops - top) * factor), 0.0)
            chosen = _choose_token(
                x, suppressed, groups, top, factor, uniform + row * 3, V, WIDTH, BLOCK, SUPPRESSED
            )
        else:
            chosen = -1
        tl.store(tokens + row, chosen.to(tl.int64))
        value = tl.load(x + tl.maximum(chosen, 0))
        tl.store(logprobs + row, tl.where(is_finite, value - highest - tl.log(total), float("nan")))


def sample(
    logits: Tensor, temperature: Tensor, uniform: Tensor, suppressed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    R, V = logits.shape
    if R > COUNTERS:
        raise ValueError(f"samples of {R} rows: at most {COUNTERS} at once")
    width = math.ceil(V ** (1 / LEVELS))
    tokens = torch.empty(R, dtype=torch.int64, device=logits.device)
    logprobs, parts = logits.new_empty(R), logits.new_empty(R, width, 5)
    start_kernel(
        _sample_kernel, (R, width), logits,
        logits, temperature, uniform, tokens if suppressed is None else suppressed, tokens, logprobs, parts,
        get_counters(logits.device), V,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), BLOCK_V=triton.next_power_of_2(width**2),
        GREEDY=GREEDY, SUPPRESSED=0 if suppressed is None else suppressed.shape[1], num_warps=4,
    )  # fmt: skip
    return tokens, logprobs
