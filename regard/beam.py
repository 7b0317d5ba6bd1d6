"""Beam search: the most likely whole answers, not the most likely next token.

Shapes: B rows still being searched, K beams, C candidates, V vocabulary, t tokens written so far.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .errors import Mistake

NOTHING = -1  # stands behind the end of a finished text


@dataclass(frozen=True)
class Hypothesis:
    """An answer without its end token, and its score: log-probability / length ** length_penalty."""

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
    allowed: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> list[list[Hypothesis]]:
    """The best answers for each row of what `model.start` gave, best first; `step` is the model's own.

    An answer's length counts its end token. One that reaches max_new_tokens without an end counts as it is.
    A row is over when none of its unfinished beams can still beat the worst of its finished ones.
    `allowed` may change the log-probabilities (B, K, V) of what follows texts (B, K, t) of the rows (B,).
    """
    ending = [end] if isinstance(end, int) else list(end)
    last = torch.tensor(ending, dtype=torch.long, device=logits.device)
    B, V = logits.shape
    K = beams
    found: list[list[Hypothesis]] = [[] for _ in range(B)]
    rows = torch.arange(B, device=logits.device)  # which of the first rows these are
    state.reorder(rows.repeat_interleave(K))
    sums = torch.full((B, K), -math.inf, device=logits.device)  # (B, K)
    sums[:, 0] = 0.0  # at first, all beams are the same one
    new = logits.float().log_softmax(-1)[:, None].expand(B, K, V)  # (B, K, V)
    texts = torch.empty(B, K, 0, dtype=torch.long, device=logits.device)  # (B, K, t)
    done, scores = texts, torch.full_like(sums, -math.inf)  # the finished ones
    for t in range(1, max_new_tokens + 1):
        if allowed is not None:
            new = allowed(new, texts, rows)
        # Twice as many candidates as beams, so that enough are left if half of them end here.
        top, place = (sums[:, :, None] + new).flatten(1).topk(min(2 * K, K * V))  # (B, C)
        parents, tokens = place // V, place % V  # (B, C)
        grown = torch.cat([pick(texts, parents), tokens[..., None]], dim=-1)  # (B, C, t)
        ends = torch.isin(tokens, last)  # (B, C)
        if t == max_new_tokens:
            ends = torch.ones_like(ends)

        ended = (top / t**length_penalty).masked_fill(~ends, -math.inf)  # (B, C)
        ended[:, K:] = -math.inf  # the spare ones are there to go on, not to win
        scores, best = torch.cat([scores, ended], dim=1).topk(K)  # (B, K)
        done = pick(torch.cat([F.pad(done, (0, 1), value=NOTHING), grown], dim=1), best)  # (B, K, t)

        sums, chosen = top.masked_fill(ends, -math.inf).topk(min(K, top.shape[1]))  # (B, K)
        texts, parents = pick(grown, chosen), parents.gather(1, chosen)  # (B, K, t)
        # Sums only fall, so a beam's best future is to get no less likely until its score is most favourable.
        hope = sums[:, 0] / (max_new_tokens if length_penalty > 0 else t + 1) ** length_penalty
        over = (hope <= scores[:, -1]) | (t == max_new_tokens)
        for b in over.nonzero()[:, 0].tolist():
            found[int(rows[b])] = [
                Hypothesis([i for i in text if i not in (*ending, NOTHING)], score)
                for text, score in zip(done[b].tolist(), scores[b].tolist(), strict=True)
                if score > -math.inf
            ]
        if over.all():
            break
        going = (~over).nonzero()[:, 0]
        state.reorder((going[:, None] * K + parents[going]).flatten())
        rows, sums, texts, done, scores = (x[going] for x in (rows, sums, texts, done, scores))
        logits, state = step(texts[:, :, -1].reshape(-1, 1), state)
        new = logits.float().log_softmax(-1).view(len(going), K, V)
    if not all(found):
        raise Mistake("the model's weights gave NaN or infinite logits: it cannot be used as it is")
    return found


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Of each row of x (B, M, t), the entries at index (B, N): (B, N, t)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
