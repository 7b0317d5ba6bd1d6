"""Batches of similar length: every pair once an epoch, within the limits, and with little padding."""

import numpy as np
import pytest

from helpers.errors import user_error
from regard.data import bucketing
from regard.data.bucketing import Buckets, in_length_order
from regard.data.shuffling import random_keys


def some_lengths(n, seed=0):
    random = np.random.default_rng(seed)
    source = random.poisson(14, n) + 1
    return source, np.maximum(1, source + random.integers(-3, 4, n))


def epoch(buckets, number):
    return [buckets.rows(number * buckets.count + index) for index in range(buckets.count)]


def padded(batch, *lengths):
    return sum(len(batch) * (int(side[batch].max()) + 1) for side in lengths)


@pytest.mark.parametrize(
    "size", [{"rows": 1}, {"rows": 13}, {"rows": 5000}, {"tokens": 211}, {"tokens": 10**6}]
)
@pytest.mark.parametrize("n", [1, 2, 997])
@pytest.mark.parametrize("seed", [0, 3, -5])
def test_every_pair_once_an_epoch(n, size, seed):
    lengths = some_lengths(n)
    buckets = Buckets(*lengths, seed, **size)
    for number in (0, 1, 101):
        batches = epoch(buckets, number)
        assert sorted(np.concatenate(batches).tolist()) == list(range(n))
        if "rows" in size:
            assert all(len(batch) <= size["rows"] for batch in batches)
            assert len(batches) == -(-n // size["rows"])
        else:
            for batch in batches:
                assert len(batch) * (max(int(side[batch].max()) for side in lengths) + 1) <= size["tokens"]


def test_a_step_is_a_function_of_seed_and_step():
    lengths = some_lengths(997)
    buckets = Buckets(*lengths, 7, tokens=307)
    steps = [0, 5 * buckets.count + 3, 1, buckets.count, 10**9, 0]
    rows = [buckets.rows(step).tolist() for step in steps]
    assert rows[0] == rows[-1]
    assert rows == [Buckets(*lengths, 7, tokens=307).rows(step).tolist() for step in steps]
    other = Buckets(*lengths, 8, tokens=307)
    assert other.count == buckets.count
    assert sum(other.rows(step).tolist() == buckets.rows(step).tolist() for step in range(20)) == 0


@pytest.mark.parametrize("size", [{"rows": 13}, {"tokens": 211}])
def test_company_and_order_change(size):
    lengths = some_lengths(4999)
    buckets = Buckets(*lengths, 1, **size)
    together = [
        {frozenset((a, b)) for batch in epoch(buckets, e) for a in batch for b in batch if a < b}
        for e in (0, 1)
    ]
    assert len(together[0] & together[1]) < 0.3 * len(together[0])
    widths = [
        [max(int(side[batch].max()) for side in lengths) for batch in epoch(buckets, e)] for e in (0, 1)
    ]
    assert widths[0] != widths[1]
    for row in widths:  # short and long batches follow each other at random
        assert abs(np.corrcoef(np.arange(len(row)), row)[0, 1]) < 0.2


@pytest.mark.parametrize("size", [{"rows": 17}, {"tokens": 401}])
def test_padding(size):
    lengths = some_lengths(4999)
    buckets = Buckets(*lengths, 2, **size)
    buckets.rows(buckets.count)
    total = sum(padded(batch, *lengths) for batch in epoch(buckets, 0))
    used = sum(int((side + 1).sum()) for side in lengths)
    assert buckets.padding == pytest.approx(1 - used / total, abs=1e-12)
    assert 0 < buckets.padding < 0.1
    random = np.array_split(np.random.default_rng(0).permutation(4999), buckets.count)
    assert 1 - used / sum(padded(batch, *lengths) for batch in random) > 2 * buckets.padding
    assert Buckets(np.array([5, 5]), np.array([7, 7]), 0, rows=2).padding == 0


def test_full_batches():
    """With equal lengths, batches are as large as the token limit allows."""
    same = np.full(1009, 7)
    batches = epoch(Buckets(same, same - 2, 0, tokens=83), 0)
    assert sorted({len(batch) for batch in batches}) == [1009 % 10, 10]
    buckets = Buckets(*some_lengths(4999), 0, tokens=1009)
    assert buckets.count <= 1.1 * len(list(in_length_order(*some_lengths(4999), 1009)))


def test_what_is_longer_than_the_tokens_is_alone():
    source, target = np.array([3, 50, 3, 2, 61]), np.array([3, 2, 3, 70, 5])
    for batches in (epoch(Buckets(source, target, 0, tokens=8), 0), list(in_length_order(source, target, 8))):
        assert sorted(map(sorted, (batch.tolist() for batch in batches))) == [[0, 2], [1], [3], [4]]


def test_no_pairs():
    none = np.array([], dtype=np.int64)
    user_error(lambda: Buckets(none, none, 0, rows=3), "at least one pair")
    assert list(in_length_order(none, none, 5)) == []


@pytest.mark.parametrize("tokens", [53, 503, 10**6])
def test_in_length_order(tokens):
    lengths = some_lengths(997)
    batches = list(in_length_order(*lengths, tokens))
    assert sorted(np.concatenate(batches).tolist()) == list(range(997))
    longest = [max(int(side[batch].max()) for side in lengths) for batch in batches]
    assert longest == sorted(longest)
    assert all(len(b) * (width + 1) <= tokens for b, width in zip(batches, longest, strict=True))
    again = list(in_length_order(*lengths, tokens))
    assert all((a == b).all() for a, b in zip(again, batches, strict=True))


def test_threads_in_different_epochs_do_not_mix_them(monkeypatch):
    """As the trainer's, which reads ahead, and another one: here, it comes in the middle of a call."""
    lengths = np.arange(1, 61)
    buckets, alone = (Buckets(lengths, lengths, 3, 4, None) for _ in range(2))
    interrupted = [False]

    def keys(seed, numbers):
        if numbers[0] == 3 and not interrupted[0]:  # the key of the second epoch's batches
            interrupted[0] = True
            assert buckets.rows(2).tolist() == alone.rows(2).tolist()
        return random_keys(seed, numbers)

    expected = alone.rows(alone.count + 5).tolist()
    monkeypatch.setattr(bucketing, "random_keys", keys)
    assert buckets.rows(buckets.count + 5).tolist() == expected
    assert interrupted[0]
