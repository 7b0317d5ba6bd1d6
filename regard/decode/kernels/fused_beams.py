"""A step of beam search as Triton kernels: see `plain.advance_beams`.

Shapes: B sentences, K beams, R = B K rows, V vocabulary, P parts of a vocabulary, C candidates, T the most
tokens of an answer, N pages of a beam.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.decode.kernels import plain
from regard.decode.kernels.launch import begin_kernel, start_kernel
from regard.decode.kernels.plain import Beams

PART = 2048  # columns of logits of one program
LIMIT = 16384  # candidates of a sentence that one program compares
ONE_WARP = 1024  # candidates that one warp compares, which waits for no other
COLUMNS = 64  # of texts and tables that are copied at once


@triton.jit
def _take_highest(x, i, SIZE: tl.constexpr):
    """The highest of x, and the first place that has it."""
    highest = tl.max(x, 0)
    return highest, tl.minimum(tl.min(tl.where(x == highest, i, SIZE), 0), SIZE - 1)


@triton.jit(do_not_specialize=["V"])
def _top_kernel(logits, values, tokens, V, C: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr):
    """The C highest logits in a part of a row."""
    begin_kernel(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, PART)
    x = tl.load(logits + row * V + part * PART + i, mask=part * PART + i < V, other=-float("inf"))
    x = tl.where(x == x, x, -float("inf"))
    out = (row * tl.num_programs(1) + part) * C
    for c in tl.static_range(C):
        highest, at = _take_highest(x, i, PART)
        tl.store(values + out + c, highest)
        tl.store(tokens + out + c, tl.minimum(part * PART + at, V - 1))
        x = tl.where(i == at, -float("inf"), x)


@triton.jit
def _pick(x, i, at):
    """x[at], of an integer vector."""
    return tl.sum(tl.where(i == at, x, 0), 0)


@triton.jit
def _find_candidates(
    values, tokens, totals, sums, b, PER, K: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The C highest sums of a sentence with one more token, their beams and tokens (WIDTH,)."""
    i, c = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    inside = i < K * PER
    logprob = tl.load(values + b * K * PER + i, mask=inside, other=0.0)
    logprob -= tl.load(totals + b * K + i // PER, mask=inside, other=0.0)
    x = tl.load(sums + b * K + i // PER, mask=inside, other=0.0) + logprob
    x = tl.where(inside, tl.where(x == x, x, -float("inf")), -float("inf"))
    token = tl.load(tokens + b * K * PER + i, mask=inside, other=0)
    top = tl.full([WIDTH], -float("inf"), tl.float32)
    parents, chosen = tl.zeros([WIDTH], tl.int32), tl.zeros([WIDTH], tl.int32)
    for n in tl.static_range(C):
        highest, at = _take_highest(x, i, SIZE)
        top = tl.where(c == n, highest, top)
        parents = tl.where(c == n, tl.minimum(at // PER, K - 1), parents)
        chosen = tl.where(c == n, _pick(token, i, at), chosen)
        x = tl.where(i == at, -float("inf"), x)
    return top, parents, chosen


@triton.jit
def _rank_finished(old, new, parents, chosen, K: tl.constexpr, WIDTH: tl.constexpr):
    """The K best of the finished texts, of which those already known come first, and of the candidates that
    end: their scores, whether they are new, places among the old, parents and last tokens of the new; and
    the lowest of the scores."""
    c = tl.arange(0, WIDTH)
    scores = tl.full([WIDTH], -float("inf"), tl.float32)
    is_new, place = tl.zeros([WIDTH], tl.int32), tl.zeros([WIDTH], tl.int32)
    parent, token = tl.zeros([WIDTH], tl.int32), tl.zeros([WIDTH], tl.int32)
    lowest = -float("inf")
    for n in tl.static_range(K):
        old_highest, old_at = _take_highest(old, c, WIDTH)
        new_highest, new_at = _take_highest(new, c, WIDTH)
        take_new = new_highest > old_highest
        lowest = tl.maximum(old_highest, new_highest)
        scores = tl.where(c == n, lowest, scores)
        is_new = tl.where(c == n, tl.where(take_new, 1, 0), is_new)
        place = tl.where(c == n, tl.minimum(old_at, K - 1), place)
        parent = tl.where(c == n, _pick(parents, c, new_at), parent)
        token = tl.where(c == n, _pick(chosen, c, new_at), token)
        old = tl.where(c == tl.where(take_new, WIDTH, old_at), -float("inf"), old)
        new = tl.where(c == tl.where(take_new, new_at, WIDTH), -float("inf"), new)
    return scores, is_new, place, parent, token, lowest


@triton.jit
def _rank_going(going, parents, chosen, K: tl.constexpr, WIDTH: tl.constexpr):
    """The K best of the candidates that go on: their sums, beams and tokens."""
    c = tl.arange(0, WIDTH)
    sums = tl.full([WIDTH], -float("inf"), tl.float32)
    parent, token = tl.zeros([WIDTH], tl.int32), tl.zeros([WIDTH], tl.int32)
    for n in tl.static_range(K):
        highest, at = _take_highest(going, c, WIDTH)
        sums = tl.where(c == n, highest, sums)
        parent = tl.where(c == n, _pick(parents, c, at), parent)
        token = tl.where(c == n, _pick(chosen, c, at), token)
        going = tl.where(c == at, -float("inf"), going)
    return sums, parent, token


@triton.jit(do_not_specialize=["rows", "N", "T", "longest", "PER"])
def _advance_kernel(
    values, tokens, totals, sums, scores, texts, finished, steps, over, ids, positions, tables, own,
    penalties, bounds, ends, sources, targets, lengths, rows, N, T, longest, PER,
    K: tl.constexpr, C: tl.constexpr, L: tl.constexpr, ENDS: tl.constexpr, SIZE: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One sentence: its candidates are PER of each beam. SIZE holds all of them, WIDTH the best."""
    begin_kernel(PDL)
    b = tl.program_id(0).to(tl.int64)
    c, beam = tl.arange(0, WIDTH), b * K + tl.arange(0, WIDTH)
    is_beam = c < K
    t = tl.load(steps + b) + 1
    top, parents, chosen = _find_candidates(values, tokens, totals, sums, b, PER, K, C, SIZE, WIDTH)
    ended = (c >= C) | (t == T)
    for n in tl.static_range(ENDS):
        ended = ended | (chosen == tl.load(ends + n))
    old = tl.load(scores + beam, mask=is_beam, other=-float("inf"))
    new = tl.where(ended & is_beam, top / tl.load(penalties + t), -float("inf"))
    new_scores, is_new, place, end_parent, end_token, lowest = _rank_finished(
        old, new, parents, chosen, K, WIDTH
    )
    going = tl.where(ended, -float("inf"), top)
    new_sums, parent, token = _rank_going(going, parents, chosen, K, WIDTH)
    was_over = tl.load(over + b) != 0
    highest = tl.max(going, 0) / tl.load(bounds + tl.minimum(t, T))
    is_over = (highest <= lowest) | (t >= T) | was_over
    before = tl.load(positions + beam, mask=is_beam, other=0)
    at = tl.maximum(before + 1, 0)
    page = tl.minimum(at // L, N - 1)
    parent_row, mine = (b * K + parent) * N, ((at % 2) * rows + beam) * N
    tl.store(sources + beam, tl.load(tables + parent_row + page, mask=is_beam, other=0), mask=is_beam)
    tl.store(targets + beam, tl.load(own + mine + page, mask=is_beam, other=0), mask=is_beam)
    tl.store(lengths + beam, at % L, mask=is_beam)
    start = 0
    while start < longest:  # everything that is overwritten is read before
        j = start + tl.arange(0, COLUMNS)[None, :]
        in_text, in_table = is_beam[:, None] & (j < T), is_beam[:, None] & (j < N)
        text = tl.load(texts + (b * K + parent)[:, None] * T + j, mask=in_text, other=0)
        text = tl.where(j == t - 1, token[:, None], text)
        ending = tl.load(texts + (b * K + end_parent)[:, None] * T + j, mask=in_text, other=0)
        ending = tl.where(j == t - 1, end_token[:, None], ending)
        former = tl.load(finished + (b * K + place)[:, None] * T + j, mask=in_text, other=0)
        former = tl.where(is_new[:, None] == 1, ending, former)
        table = tl.load(tables + parent_row[:, None] + j, mask=in_table, other=0)
        table = tl.where(j < page[:, None], table, tl.load(own + mine[:, None] + j, mask=in_table, other=0))
        tl.debug_barrier()
        tl.store(texts + beam[:, None] * T + j, text, mask=in_text)
        tl.store(finished + beam[:, None] * T + j, former, mask=in_text & (was_over == 0))
        tl.store(tables + beam[:, None] * N + j, table, mask=in_table)
        start += COLUMNS
    tl.store(scores + beam, new_scores, mask=is_beam & (was_over == 0))
    tl.store(sums + beam, new_sums, mask=is_beam)
    tl.store(ids + beam, token, mask=is_beam)
    tl.store(positions + beam, tl.where(is_over, -1, before + 1), mask=is_beam)
    tl.store(steps + b, tl.where(is_over, t - 1, t))
    tl.store(over + b, is_over)


def advance_beams(beams: Beams, logits: Tensor, totals: Tensor, tokens_of_page: int) -> plain.Pages:
    (R, V), K = logits.shape, beams.sums.shape[1]
    C, parts = 2 * K, triton.cdiv(V, PART)
    if V < C or K * parts * C > LIMIT:
        return plain.advance_beams(beams, logits, totals, tokens_of_page)
    values = logits.new_empty(R, parts * C)
    tokens = torch.empty_like(values, dtype=torch.int32)
    start_kernel(_top_kernel, (R, parts), logits, logits, values, tokens, V, C=C, PART=PART, num_warps=1)
    sources, targets, lengths = (torch.empty_like(beams.ids) for _ in range(3))
    T, N, size = beams.texts.shape[2], beams.tables.shape[1], triton.next_power_of_2(K * parts * C)
    start_kernel(
        _advance_kernel, (len(beams.sums),), logits,
        values, tokens, totals, beams.sums, beams.scores, beams.texts, beams.finished, beams.steps,
        beams.over, beams.ids, beams.positions, beams.tables, beams.own, beams.penalties, beams.bounds,
        beams.ends, sources, targets, lengths, R, N, T, max(T, N), parts * C,
        K=K, C=C, L=tokens_of_page, ENDS=len(beams.ends), SIZE=size, WIDTH=triton.next_power_of_2(C),
        COLUMNS=COLUMNS, num_warps=1 if size <= ONE_WARP else 4,
    )  # fmt: skip
    return sources, targets, lengths
