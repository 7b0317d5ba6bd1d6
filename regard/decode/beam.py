"""Beam search: find the most likely answers as a whole, not the most likely next token.

Shapes: B rows still being searched, K beams, C candidates, V vocabulary, t tokens written so far.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decode.cpu_beams import branch
from regard.errors import UserError

NO_TOKEN = -1  # after the end of a finished hypothesis
GROUPED = 32  # numbers, of which the highest one is looked at first
MAX_EXPONENT = 80.0  # exp of it and of its negative are normal numbers in float32


# From log-probabilities (B, K, V), the beams' texts (B, K, t) and the numbers of their rows (B,)
LogitsProcessor = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Hypothesis:
    """A finished text without its end token, and its score: log-probability / length ** length_penalty."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def beam_search(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    logits: Tensor,
    state: Any,
    *,
    beams: int,
    end: int | Collection[int],
    max_new_tokens: int,
    length_penalty: float = 1.0,
    process: LogitsProcessor | None = None,
    vocab: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses for each row, best first, from the result of `model.start`; `step` is the
    model's, whose logits may be changed.

    A hypothesis' length counts its end token. One that reaches max_new_tokens without an end counts as
    finished. A row is finished when none of its live beams can still beat the worst of its finished
    hypotheses. `process` may change the log-probabilities (B, K, V) of the next tokens of texts (B, K, t) of
    the rows (B,). `vocab` (V,) are the tokens of the logits, if these are not all tokens.
    """
    end_ids = [end] if isinstance(end, int) else list(end)
    ends = torch.tensor(end_ids, dtype=torch.long, device=logits.device)
    (B, V), K = logits.shape, beams
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(B)]
    rows = torch.arange(B, device=logits.device)  # the indices of the remaining rows
    state = branch(state, K, rows)
    sums = torch.full((B, K), -math.inf, device=logits.device)  # (B, K)
    sums[:, 0] = 0.0  # at first, all beams are the same
    log_p = logits.float().log_softmax(-1)[:, None].expand(B, K, V)  # (B, K, V)
    texts = torch.empty(B, K, 0, dtype=torch.long, device=logits.device)  # (B, K, t)
    finished, scores = texts, torch.full_like(sums, -math.inf)
    for t in range(1, max_new_tokens + 1):
        if process is not None:
            log_p = process(log_p, texts, rows)
        top, parents, tokens = best_candidates(sums, log_p)  # (B, C)
        tokens = tokens if vocab is None else vocab[tokens]
        candidates = torch.cat([gather_rows(texts, parents), tokens[..., None]], dim=-1)  # (B, C, t)
        ended = torch.isin(tokens, ends)  # (B, C)
        if t == max_new_tokens:
            ended = torch.ones_like(ended)

        new_scores = (top / penalize_length(t, length_penalty)).masked_fill(~ended, -math.inf)  # (B, C)
        new_scores[:, K:] = -math.inf  # the spare candidates may continue, but not finish
        scores, best = torch.cat([scores, new_scores], dim=1).topk(K)  # (B, K)
        finished = torch.cat([F.pad(finished, (0, 1), value=NO_TOKEN), candidates], dim=1)
        finished = gather_rows(finished, best)  # (B, K, t)

        sums, live = top.masked_fill(ended, -math.inf).topk(min(K, top.shape[1]))  # (B, K)
        texts, parents = gather_rows(candidates, live), parents.gather(1, live)  # (B, K, t)
        # Sums only fall: at best, a beam keeps its sum until the length at which its score is highest.
        longest = max_new_tokens if length_penalty > 0 else t + 1
        bound = sums[:, 0] / penalize_length(longest, length_penalty)
        over = (bound <= scores[:, -1]) | (t == max_new_tokens)
        for b in over.nonzero()[:, 0].tolist():
            hypotheses[int(rows[b])] = make_hypotheses(finished[b], scores[b], end_ids)
        if over.all():
            break
        left = (~over).nonzero()[:, 0]
        state.reorder((left[:, None] * K + parents[left]).flatten())
        rows, sums, texts, finished, scores = (x[left] for x in (rows, sums, texts, finished, scores))
        logits, state = step(texts[:, :, -1].reshape(-1, 1), state)
        log_p = log_softmax(logits.float()).view(len(left), K, V)
    if not all(hypotheses):
        raise UserError("the model's weights gave NaN or infinite logits: it cannot be used as it is")
    return hypotheses


def log_softmax(logits: Tensor) -> Tensor:
    """On a CPU in the logits' memory: fresh memory takes longer than the work."""
    return torch.log_softmax(logits, -1, out=logits if logits.device.type == "cpu" else None)


def best_candidates(sums: Tensor, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums, beams and new tokens (B, C) of the most likely texts with one more token.

    There are twice as many as beams, so that enough are left if half of them end here. Each beam's best ones
    are chosen first, as few numbers have to be added to its sum then.
    """
    K, V = log_p.shape[1:]
    best, tokens = highest(log_p, min(2 * K, V))  # (B, K, 2 K)
    top, index = (sums[:, :, None] + best).flatten(1).topk(min(2 * K, K * V))  # (B, C)
    return top, index // best.shape[2], tokens.flatten(1).gather(1, index)


def highest(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`x.topk(n)` of long rows (..., V): the highest numbers are in the n groups with the highest maxima."""
    m = x.shape[-1] // GROUPED  # groups; group j has the numbers j, j + m, ...
    if m <= 2 * n:
        return x.topk(n)
    groups = x[..., : GROUPED * m].unflatten(-1, (GROUPED, m)).amax(-2).topk(n).indices  # (..., n)
    rest = torch.arange(GROUPED * m, x.shape[-1], device=x.device).expand(*x.shape[:-1], -1)
    members = groups[..., None] + torch.arange(0, GROUPED * m, m, device=x.device)  # (..., n, GROUPED)
    index = torch.cat([members.flatten(-2), rest], -1)
    best, places = x.gather(-1, index).topk(n)
    return best, index.gather(-1, places)


def make_hypotheses(texts: Tensor, scores: Tensor, ends: Sequence[int]) -> list[Hypothesis]:
    """The finished hypotheses of one row, from texts (K, t) and scores (K,)."""
    return [
        Hypothesis([i for i in text if i not in (*ends, NO_TOKEN)], score)
        for text, score in zip(texts.tolist(), scores.tolist(), strict=True)
        if score > -math.inf
    ]


def penalize_length(length: int, penalty: float) -> float:
    """length ** penalty, limited to the range of float32."""
    exponent = penalty * math.log(length)
    if abs(exponent) > MAX_EXPONENT:
        return math.exp(math.copysign(MAX_EXPONENT, exponent))
    return float(length) ** penalty


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """The entries of each row of x (B, M, t) at index (B, N): (B, N, t)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
