"""The operations of a step of generation, written plainly. Those of `fused` compute the same on a GPU.

Every row is computed by itself: the rest of the batch does not change it.

Shapes: R rows (tokens, each with its own position), D width, H heads, G key/value heads, d width of a head,
P pages of L tokens each, N pages of a row.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.attention import masked_softmax, repeat_heads
from regard.core.positions import rotate
from regard.decode.sampling import GREEDY, sample_tokens

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Norm:
    """LayerNorm, or RMSNorm (`centered` is False), which has no bias."""

    weight: Tensor  # (D,)
    bias: Tensor | None
    eps: float
    centered: bool


def apply_norm(x: Tensor, norm: Norm | None) -> Tensor:
    """The norm of the last dimension, in float32."""
    if norm is None:
        return x
    weight = norm.weight.float()
    if norm.centered:
        bias = None if norm.bias is None else norm.bias.float()
        return F.layer_norm(x.float(), weight.shape, weight, bias, norm.eps)
    return F.rms_norm(x.float(), weight.shape, weight, norm.eps)


def normalize(x: Tensor, norm: Norm) -> Tensor:
    """The normed residual stream (R, D) float32."""
    return apply_norm(x, norm)


def norm_linear(
    x: Tensor,  # (R, D) float32, the residual stream
    norm: Norm | None,
    weight: Tensor,  # (M, D), or (2 M, D) if gated: the gate's rows, then those of the other product
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """activation(norm(x) Wᵀ + b), gated: activation(gate) ⊙ up. (R, M), in the weights' dtype by default.

    The normed row is rounded to the weights' dtype; sums are float32, and so is the activation.
    """
    y = F.linear(apply_norm(x, norm).to(weight.dtype), weight).float()
    if bias is not None:
        y = y + bias.float()
    if gated:
        gate, up = y.chunk(2, dim=-1)
        y = ACTIVATIONS[activation or "silu"](gate) * up
    elif activation is not None:
        y = ACTIVATIONS[activation](y)
    return y.to(out_dtype or weight.dtype)


def linear_residual(
    x: Tensor,  # (R, K), in the weights' dtype
    weight: Tensor,  # (D, K)
    bias: Tensor | None,
    residual: Tensor,  # (R, D) float32
    norm: Norm | None = None,  # still to be applied to the residual stream, after a post-norm block
) -> Tensor:
    """norm(residual) + x Wᵀ + b, (R, D) in float32: the residual stream after one more branch."""
    y = F.linear(x, weight).float()
    if bias is not None:
        y = y + bias.float()
    return apply_norm(residual, norm) + y


def write_pages(
    qkv: Tensor,  # (R, (H + 2 G) d): queries, keys, values of each row
    k_pages: Tensor,  # (P, G, L, d)
    v_pages: Tensor,
    tables: Tensor,  # (R, N) int32: the pages of each row's text, in order
    positions: Tensor,  # (R,) int32: where a row writes its key and value; < 0: an unused row
    rotary: tuple[Tensor, Tensor] | None = None,  # cos and sin (context, d / 2), float32
    q_norm: Norm | None = None,  # of each head
    k_norm: Norm | None = None,
) -> Tensor:
    """Write each row's key and value to its page; return the queries (R, H, d), normed and rotated alike."""
    G, L, d = k_pages.shape[1:]
    heads = qkv.unflatten(-1, (-1, d))  # (R, H + 2 G, d)
    q, k, v = heads.split([heads.shape[1] - 2 * G, G, G], dim=1)
    used = positions >= 0
    at = positions.clamp(min=0).long()
    if q_norm is not None or k_norm is not None:
        q, k = apply_norm(q, q_norm).to(qkv.dtype), apply_norm(k, k_norm).to(qkv.dtype)
    if rotary is not None:
        angles = rotary[0][at][:, None], rotary[1][at][:, None]  # (R, 1, d / 2)
        q, k = (rotate(t.float(), angles).to(qkv.dtype) for t in (q, k))
    page = tables.long().gather(1, (at // L)[:, None])[:, 0]
    row = used.nonzero()[:, 0]
    k_pages[page[row], :, at[row] % L] = k[row].to(k_pages.dtype)
    v_pages[page[row], :, at[row] % L] = v[row].to(v_pages.dtype)
    return q.contiguous()


def paged_attention(
    q: Tensor,  # (R, H, d)
    k_pages: Tensor,  # (P, G, L, d)
    v_pages: Tensor,
    tables: Tensor,  # (R, N) int32
    lengths: Tensor,  # (R,) int32: how many first tokens of its text a row attends to; 0: the result is 0
    bias: Tensor | None = None,  # (H, distances) float32: added to a score by the distance of the key
    window: int | None = None,  # the largest distance of a key; default: all
) -> Tensor:
    """One query for each row over the keys and values of its pages: (R, H, d) in q's dtype.

    The query stands at the last of the `lengths` tokens. Scores, softmax and sums are float32.
    """
    H, d = q.shape[1:]
    L = k_pages.shape[2]
    pages = tables.long()
    k, v = (t[pages].transpose(1, 2).flatten(2, 3).float() for t in (k_pages, v_pages))  # (R, G, N L, d)
    k, v = repeat_heads(k, H), repeat_heads(v, H)
    scores = (q.float()[:, :, None] @ k.mT)[:, :, 0] / math.sqrt(d)  # (R, H, N L)
    distance = lengths[:, None] - 1 - torch.arange(pages.shape[1] * L, device=q.device)  # (R, N L)
    if bias is not None:
        scores = scores + bias.T[distance.clamp(0, bias.shape[1] - 1)].permute(0, 2, 1)
    allowed = distance >= 0 if window is None else (distance >= 0) & (distance <= window)
    weights = masked_softmax(scores.masked_fill(~allowed[:, None], -math.inf))
    v = v.masked_fill(~allowed[:, None, :, None], 0.0)  # a page may contain anything from its earlier use
    return (weights[:, :, None] @ v)[:, :, 0].to(q.dtype)


def write_and_attend(
    qkv: Tensor,  # (R, (H + 2 G) d), as of write_pages
    k_pages: Tensor,
    v_pages: Tensor,
    tables: Tensor,
    positions: Tensor,
    rotary: tuple[Tensor, Tensor] | None = None,
    q_norm: Norm | None = None,
    k_norm: Norm | None = None,
    bias: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """write_pages, then paged_attention up to the row's own token: (R, H, d). All rows' texts differ."""
    q = write_pages(qkv, k_pages, v_pages, tables, positions, rotary, q_norm, k_norm)
    return paged_attention(q, k_pages, v_pages, tables, positions + 1, bias, window)


def copy_pages(
    keys: Tensor,  # (layers, P, G, L, d)
    values: Tensor,
    source: Tensor,  # (R,) int32: pages, none of which is also a target of another row
    target: Tensor,  # (R,) int32
    lengths: Tensor,  # (R,) int32: how many first tokens of a page to copy
) -> None:
    """Copy the keys and values of pages, in all layers."""
    for pages in (keys, values):
        pages.index_copy_(1, target.long(), pages.index_select(1, source.long()))


def sample(
    logits: Tensor,  # (R, V) float32
    temperature: Tensor,  # (R,) float32, below GREEDY: always the most likely token
    uniform: Tensor,  # (R, LEVELS) float32, from 0 to 1
    suppressed: Tensor | None = None,  # (R, S) int64: tokens that are never chosen; -1: none
) -> tuple[Tensor, Tensor]:
    """Tokens (R,), and their log-probabilities (R,) before the temperature, among all tokens.

    The token of a row without finite highest logit is -1, and its log-probability is not a number.
    """
    logprobs = logits.log_softmax(-1)
    if suppressed is not None:
        bound = torch.where(suppressed >= 0, -math.inf, math.inf)
        logits = logits.scatter_reduce(1, suppressed.clamp(min=0), bound, "amin")
    highest = logits.amax(-1, keepdim=True)
    greedy = temperature < GREEDY
    scaled = (logits - highest) / temperature.masked_fill(greedy, 1.0)[:, None]
    tokens = torch.where(greedy, logits.argmax(-1), sample_tokens(scaled, uniform))
    logprobs = logprobs.gather(-1, tokens[:, None])[:, 0]
    finite = highest[:, 0].isfinite() & logprobs.isfinite()
    return tokens.where(finite, -1), logprobs.where(finite, math.nan)


Pages = tuple[Tensor, Tensor, Tensor]  # pages, those that they are copied to, and how many tokens of each


@dataclass(frozen=True)
class Beams:
    """The search for answers to B sentences with K beams: tensors that a step changes in place."""

    sums: Tensor  # (B, K) float32: the log-probabilities of the texts so far
    scores: Tensor  # (B, K) float32: those of the finished texts, best first
    texts: Tensor  # (B, K, T) int32
    finished: Tensor  # (B, K, T) int32
    steps: Tensor  # (B,) int64: tokens written
    over: Tensor  # (B,) bool: the sentence is finished, or its place is free
    ids: Tensor  # (B K,) int32: the last tokens
    positions: Tensor  # (B K,) int32: theirs; -1: over
    tables: Tensor  # (B K, N) int32: the pages of each beam
    own: Tensor  # (2, B K, N) int32: pages that no other beam writes to, by the parity of positions
    penalties: Tensor  # (T + 2,) float32: what a sum is divided by, by the number of tokens
    bounds: Tensor  # (T + 1,) float32: the same, at best, for a text that goes on
    ends: Tensor  # int64: tokens that end a text


def advance_beams(beams: Beams, logits: Tensor, totals: Tensor, tokens_of_page: int) -> Pages:
    """Add a token to every beam, given its logits (B K, V) and the logarithms (B K,) of their sums.

    Return the pages that are to be copied next, one for each beam.
    """
    (B, K), T, t = beams.sums.shape, beams.texts.shape[2], beams.steps + 1  # (B,)
    top, parents, tokens = best_candidates(beams, logits, totals)  # (B, C)
    ended = torch.isin(tokens, beams.ends) | (t == T)[:, None]  # (B, C)
    candidates = beams.texts.gather(1, parents[..., None].expand(-1, -1, T))  # (B, C, T)
    at = beams.steps.clamp(max=T - 1)[:, None, None].expand(-1, tokens.shape[1], 1)
    candidates = candidates.scatter(2, at, tokens[..., None].int())

    new_scores = (top / beams.penalties[t][:, None]).masked_fill(~ended, -math.inf)  # (B, C)
    new_scores[:, K:] = -math.inf  # the spare candidates may continue, but not finish
    scores, best = torch.cat([beams.scores, new_scores], dim=1).topk(K)  # (B, K)
    finished = torch.cat([beams.finished, candidates], dim=1)
    finished = finished.gather(1, best[..., None].expand(-1, -1, T))

    sums, live = top.masked_fill(ended, -math.inf).topk(K)  # (B, K)
    over = (sums[:, 0] / beams.bounds[t.clamp(max=T)] <= scores[:, -1]) | (t >= T) | beams.over
    was_over = beams.over[:, None]  # sentences that were finished before don't change
    beams.scores.copy_(beams.scores.where(was_over, scores))
    beams.finished.copy_(beams.finished.where(was_over[..., None], finished))
    beams.texts.copy_(candidates.gather(1, live[..., None].expand(-1, -1, T)))
    beams.sums.copy_(sums)
    beams.ids.copy_(tokens.gather(1, live).flatten())
    first = K * torch.arange(B, device=live.device)[:, None]
    rows = (first + parents.gather(1, live)).flatten()  # (B K,)
    tables, pages = follow_beams(beams.tables[rows], beams.own, beams.positions + 1, tokens_of_page)
    beams.tables.copy_(tables)
    beams.steps.add_((~over).long())
    beams.over.copy_(over)
    beams.positions.copy_(torch.where(over.repeat_interleave(K), -1, beams.positions + 1))
    return pages


def best_candidates(beams: Beams, logits: Tensor, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums, beams and new tokens (B, C) of the most likely texts with one more token.

    The best ones of each beam are selected first, as no beam has more than C of them.
    """
    (B, K), V = beams.sums.shape, logits.shape[-1]
    C = min(2 * K, K * V)
    each, tokens = logits.topk(min(C, V))  # (B K, C)
    log_p = (each - totals[:, None]).view(B, K, -1)
    top, index = (beams.sums[..., None] + log_p).flatten(1).topk(C)  # (B, C)
    return top, index // log_p.shape[-1], tokens.view(B, -1).gather(1, index)


def follow_beams(tables: Tensor, own: Tensor, positions: Tensor, tokens_of_page: int) -> tuple[Tensor, Pages]:
    """The tables (R, N) of beams that continue others, whose tables are given, and share all their pages
    except the last; and the pages to copy.

    Their next token is at `positions` (R,), in their own page (2, R, N), which is copied.
    """
    at, N = positions.clamp(min=0), tables.shape[1]
    page = (at // tokens_of_page).clamp(max=N - 1).long()[:, None]  # (R, 1)
    mine = own[1].where((at % 2 == 1)[:, None], own[0])
    pages = tables.gather(1, page)[:, 0], mine.gather(1, page)[:, 0], at % tokens_of_page
    return torch.where(torch.arange(N, device=at.device) < page, tables, mine), pages
