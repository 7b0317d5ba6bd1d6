"""Random orders without a table: bijections, and every order and place equally likely."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from regard.data.shuffling import random_keys, shuffle_index


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 66, 256, 257, 1000, 4096, 4097])
def test_shuffling_is_a_bijection(n):
    keys = [random_keys(seed, np.array([epoch])) for seed in (0, -5) for epoch in (0, 1)]
    orders = [shuffle_index(np.arange(n), n, key) for key in keys]
    for order in orders:
        assert sorted(order.tolist()) == list(range(n))
    if n > 60:
        assert len({tuple(order.tolist()) for order in orders}) == len(orders)
        assert all((order == np.arange(n)).mean() < 0.2 for order in orders)


def surprise(counts, expected):
    """The chi-square statistic of these counts, in standard deviations from its mean."""
    freedom = len(counts) - 1
    return (sum((count - expected) ** 2 / expected for count in counts) - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [3, 4])
def test_every_order_of_few_is_as_likely(n):
    times = 5000
    key = random_keys(7, np.repeat(np.arange(times), n))
    places = shuffle_index(np.tile(np.arange(n), times), n, key)
    counts = Counter(map(tuple, places.reshape(times, n).tolist()))
    expected = times / math.factorial(n)
    assert abs(surprise([counts[order] for order in itertools.permutations(range(n))], expected)) < 5


@pytest.mark.parametrize("n", [65, 100, 1023])
def test_every_place_of_many_is_as_likely_even_in_pairs(n):
    times = 20_000
    key = random_keys(3, np.arange(times))
    first, second = (shuffle_index(np.full(times, index), n, key) for index in (0, 1))
    assert abs(surprise(np.bincount(first, minlength=n), times / n)) < 5
    bins = np.bincount(first * 8 // n * 8 + second * 8 // n, minlength=64)  # of about equal size
    sizes = np.bincount(np.arange(n) * 8 // n) / n
    expected = times * np.outer(sizes, sizes).ravel()
    assert (np.abs(bins - expected) < 6 * np.sqrt(expected)).all()


def test_shuffling_needs_no_memory_for_enormous_ranges():
    index = np.array([0, 1, 2**59, 2**60 - 1])
    places = shuffle_index(index, 2**60, random_keys(0, np.array([0])))
    assert len(set(places.tolist())) == 4
    assert places.min() >= 0
    assert places.max() < 2**60
