"""The fast filter of rows keeps what the readable ones keep, one after another."""

import math
from functools import reduce

import pytest
import torch

from regard.decode.filters import (
    SORTED,
    Filter,
    RowOptions,
    filter_alike,
    filter_by_row,
    min_p,
    top_k,
    top_p,
)

PS = (0.0, 1e-6, 0.11, 0.5, 0.903, 0.973, 0.9991, 1.0)  # of equal tokens, no whole number but of 0.5


def make_rows(V: int, generator: torch.Generator) -> torch.Tensor:
    """Smooth, steep, flat, tied, sorted either way, and with tokens that are ruled out."""
    x = torch.randn(9, V, generator=generator)
    x[1] *= 20
    x[2] = 0.0
    x[3] = (2 * x[3]).round()
    x[4] = x[4].sort().values
    x[5] = x[5].sort(descending=True).values
    x[6, torch.randperm(V, generator=generator)[: V // 2]] = -math.inf
    x[7, 1:] = -math.inf
    x[8] = (x[8] * 3).round().masked_fill(x[8] < 0, -math.inf)
    x[8, V // 3] = 4.0
    return x


def plainly(row: torch.Tensor, k: int, p: float, least: float) -> torch.Tensor:
    row = row[None] if not k else top_k(row[None], k)
    row = top_p(row, p) if p < 1 else row
    return min_p(row, least)[0]


@pytest.mark.parametrize("V", [1, 2, 31, 200, 1500])
def test_rows_keep_what_the_readable_filters_keep(V: int) -> None:
    generator = torch.Generator().manual_seed(V)
    for _ in range(12):
        logits = make_rows(V, generator)
        R = len(logits)
        ks = [(0, 1, 2, 9, V // 2, V - 1, V, 5000)[i] for i in torch.randint(8, (R,), generator=generator)]
        ps = [PS[i] for i in torch.randint(len(PS), (R,), generator=generator)]
        least = [(0.0, 0.02, 1.0)[i] for i in torch.randint(3, (R,), generator=generator)]
        options = RowOptions(torch.ones(R), *map(torch.tensor, (ks, ps, least)))
        expected = torch.stack([plainly(*row) for row in zip(logits, ks, ps, least, strict=True)])
        how = reduce(Filter.join, map(Filter.of, ks, ps))
        for each in {how, how._replace(summed=True), Filter(2**31, True)}:
            assert torch.equal(filter_by_row(logits, options, each), expected)
        for row in range(R):  # alone
            alone = filter_alike(logits[row : row + 1], ks[row], ps[row], least[row])
            assert torch.equal(alone[0], expected[row])


def test_few_tokens_are_sorted_and_all_are_summed_up_only_where_it_takes_that() -> None:
    few, more = SORTED
    assert [
        Filter.of(k, p) for k, p in ((0, 1.0), (few, 0.5), (few + 1, 1.0), (more + 1, 0.9), (0, 0.9))
    ] == [*((few, False), (few, False), (more, False), (2**31, False), (few, True))]


def test_rows_that_are_no_numbers_do_no_harm() -> None:
    """An index beyond a tensor would end a process on a GPU."""
    logits = torch.randn(4, 97)
    logits[0], logits[1, 3], logits[2, ::2], logits[3] = math.nan, math.nan, math.inf, -math.inf
    ks, ones = torch.tensor([0, 5, 0, 9]), torch.ones(4)
    for how in (Filter(), Filter(64, True)):
        assert filter_by_row(logits, RowOptions(ones, ks, 0.7 * ones, 0 * ones), how).shape == logits.shape
