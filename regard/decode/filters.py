"""Filters of the tokens that may be chosen: top_k, top_p and min_p.

Shapes: R rows, V vocabulary, K most likely tokens.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SORTED = 64, 1024  # most likely tokens, searched for the last one that top_k keeps; or all
UNIT = 2**44  # a likelihood of 1 as a whole number: the sum of 2 ** 18 of them fits into 64 bits
BITS = 24  # of a probability p
DIGITS = (21, 11), (10, 11), (0, 10)  # the parts of a float32: by how much they are shifted, and their bits


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most likely tokens, and tokens as likely as the last of them. Fan et al. 2018."""
    last = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < last, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens with probability p in total, the first of equals, Holtzman et al. 2020."""
    ascending, order = (x.flip(-1) for x in logits.sort(dim=-1, descending=True, stable=True))
    out = ascending.softmax(-1).cumsum(-1) <= 1 - p
    out[:, -1] = False
    return logits.masked_fill(out.scatter(1, order, out), -math.inf)


def min_p(logits: Tensor, p: float | Tensor) -> Tensor:
    """Keep the tokens at least p times as likely as the most likely one, Nguyen et al. 2024."""
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < p * probs.amax(-1, keepdim=True), -math.inf)


@dataclass(frozen=True)
class RowOptions:
    """The options of each row (R,), on its device."""

    temperature: Tensor
    top_k: Tensor  # 0 is off
    top_p: Tensor
    min_p: Tensor


class Filter(NamedTuple):
    """The work that filtering some rows needs."""

    sorted: int = SORTED[0]  # the number of most likely tokens that are sorted
    summed: bool = False  # top_p without top_k: the likelihoods of all tokens are summed up

    @classmethod
    def of(cls, k: int, p: float) -> "Filter":
        return cls(next((n for n in SORTED if k <= n), 2**31), p < 1 and not k)

    def join(self, other: "Filter") -> "Filter":
        return Filter(max(self.sorted, other.sorted), self.summed or other.summed)


def filter_alike(logits: Tensor, k: int, p: float, least: float) -> Tensor:
    """`filter_by_row` with the same numbers for all rows."""
    if p < 1:
        ones, k = torch.ones_like(logits[:, 0]), min(k, logits.shape[-1])
        options = RowOptions(ones, torch.full_like(ones, k, dtype=torch.long), p * ones, least * ones)
        return filter_by_row(logits, options, Filter.of(k, p))
    logits = top_k(logits, k) if k else logits
    return min_p(logits, least) if least else logits


def filter_by_row(logits: Tensor, options: RowOptions, how: Filter) -> Tensor:
    """top_k, then top_p, then min_p, with each row's own numbers.

    Likelihoods are summed up as whole numbers, so that which tokens are kept does not depend on their order.
    """
    k, p = options.top_k[:, None], options.top_p[:, None]
    K = min(how.sorted, logits.shape[-1])
    best, index = logits.topk(K)  # (R, K)
    last = best.gather(1, (k - 1).clamp(0, K - 1)).where(k > 0, -math.inf)  # (R, 1)
    likelihood = ((logits - best[:, :1]).exp() * UNIT).long().masked_fill(logits < last, 0)
    total, share = likelihood.sum(-1, keepdim=True), (p * 2**BITS).long()
    enough = ((total >> BITS) * share + ((total % 2**BITS) * share >> BITS)).clamp(min=1)  # p of the total
    if how.summed:
        least, left = find_least(logits, likelihood, enough)
    else:
        of_best = likelihood.gather(1, index)
        keeps = of_best.cumsum(-1) - of_best < enough
        least = best.masked_fill(~keeps, math.inf).amin(-1, keepdim=True)
        left = enough - of_best.masked_fill(best <= least, 0).sum(-1, keepdim=True)
    equal = logits == least
    first = (equal.cumsum(-1) - 1) * likelihood.masked_fill(~equal, 0) < left
    keeps = ((logits > least) | (equal & first) | (p >= 1)) & (logits >= last)
    return min_p(logits.masked_fill(~keeps, -math.inf), options.min_p[:, None])


def find_least(logits: Tensor, amounts: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest logit (R, 1) above which there is less than the limit (R, 1) of amounts (R, V), and how much
    less. Found digit by digit of the numbers' bits, from sums of the amounts that have each digit."""
    bits = (logits + 0.0).view(torch.int32).long()  # + 0.0: -0.0 is 0.0
    key = torch.where(bits < 0, bits + 2**32, 2**31 - 1 - bits)  # in the opposite order
    result = torch.zeros_like(limit)
    for shift, width in DIGITS:
        digit = key >> shift & 2**width - 1
        sums = limit.new_zeros(len(limit), 2**width).scatter_add(1, digit, amounts)
        above = sums.cumsum(-1) - sums
        d = ((above < limit).sum(-1, keepdim=True) - 1).clamp(min=0)
        limit, result = limit - above.gather(1, d), result << width | d
        amounts = amounts.masked_fill(digit != d, 0)
    bits = torch.where(result >= 2**31, result - 2**32, 2**31 - 1 - result)
    return bits.int().view(torch.float32), limit
