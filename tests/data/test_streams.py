"""Streams and windows: everything once per epoch, in an order that depends only on the seed."""

import itertools

import numpy as np
import pytest

from helpers.errors import user_error
from regard.data.streams import Stream, Windows, in_order


def test_a_stream_reads_across_its_parts():
    numbers = np.arange(23)
    narrow, wide = numbers.astype(np.uint16), numbers.astype(np.uint32)
    stream = Stream([narrow[:5], narrow[5:5], wide[5:6], numbers[6:]], bytes=99)
    assert len(stream) == 23
    assert stream.bytes == 99
    for start, stop in itertools.combinations(range(25), 2):
        ids = stream.read(start, stop)
        assert ids.dtype == np.int64
        assert ids.tolist() == numbers[start:stop].tolist()
    assert stream.describe() == "23 tokens"
    assert len(Stream([], 0)) == 0
    assert Stream([], 0).read(0, 3).tolist() == []


def test_a_fingerprint_tells_streams_apart():
    numbers = np.arange(5000)
    prints = {Stream([numbers[:cut], numbers[cut:]], 1).fingerprint() for cut in (0, 7, 4999)}
    assert len(prints) == 1  # however it lies in parts
    assert Stream([numbers[:-1]], 1).fingerprint() not in prints
    assert Stream([numbers[::-1]], 1).fingerprint() not in prints


def numbered_stream(n):
    return Stream([np.arange(n // 3, dtype=np.uint16), np.arange(n // 3, n, dtype=np.uint16)], n)


@pytest.mark.parametrize(("n", "context"), [(1009, 13), (53, 13), (27, 13), (26, 13), (1000, 7)])
def test_every_window_once_an_epoch(n, context):
    windows = Windows(numbered_stream(n), context, seed=11, size=4)
    offsets, orders = set(), set()
    for epoch in range(20):
        batch = windows.batch(np.arange(windows.count) + epoch * windows.count)
        assert batch.shape == (windows.count, context + 1)
        assert batch.dtype == np.int64
        assert (np.diff(batch, axis=1) == 1).all()  # consecutive tokens
        starts = sorted(batch[:, 0].tolist())
        assert np.diff(starts).tolist() == [context] * (windows.count - 1)  # each once, none shared
        offsets.add(starts[0])
        orders.add(tuple((batch[:, 0] - starts[0]).tolist()))
        assert starts[-1] + context < n
    assert windows.count == max(1, (n - 1) // context - 1)
    assert len(offsets) > 1 or windows.slack == 0
    if windows.count > 50:
        assert len(orders) == 20


def test_every_offset_comes():
    windows = Windows(
        numbered_stream(20), 7, seed=0, size=4
    )  # a single window: from 0 up to the last that fits
    assert {int(start) for start in windows.batch(np.arange(500))[:, 0]} == set(range(13))


def test_a_batch_depends_on_its_positions_only():
    windows, other = (Windows(numbered_stream(509), 11, seed=seed, size=4) for seed in (3, 4))
    positions = np.array([5000, 3, 17, 10**12, 3])
    batch = windows.batch(positions)
    windows.batch(np.arange(100))
    assert (Windows(numbered_stream(509), 11, seed=3, size=9).batch(positions) == batch).all()
    assert (windows.batch(positions[::-1]) == batch[::-1]).all()
    assert all((windows.batch(positions[i : i + 1])[0] == batch[i]).all() for i in range(5))
    assert (batch[1] == batch[4]).all()
    assert not (other.batch(np.arange(40)) == windows.batch(np.arange(40))).all()


@pytest.mark.parametrize("size", [1, 4, 100])
def test_steps_take_the_positions_one_after_another(size):
    """Steps have the same size across epochs: 45 windows."""
    windows = Windows(numbered_stream(509), 11, seed=3, size=size)
    rows = [windows.rows(step) for step in range(50)]
    assert np.concatenate(rows).tolist() == list(range(50 * size))
    assert (windows.rows(7) == rows[7]).all()  # at any time
    assert not windows.notes


@pytest.mark.parametrize("n", [2, 3, 5])
def test_windows_of_tiny_texts(n):
    windows = Windows(numbered_stream(n), 100, seed=0, size=4)
    assert windows.count == 1
    assert windows.batch(np.arange(3)).tolist() == [list(range(n))] * 3


@pytest.mark.parametrize("n", [0, 1])
def test_too_little_to_learn_from(n):
    user_error(lambda: Windows(Stream([np.arange(n)], n), 8, 0, 4), "at least two tokens")


@pytest.mark.parametrize("n", [1, 2, 8, 9, 15, 50, 57, 58])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_in_order_every_token_is_a_target_once(n, batch):
    context = 7
    rows = list(in_order(numbered_stream(n), context, batch))
    assert [t for _, targets in rows for t in targets.ravel().tolist()] == list(range(1, n))
    for inputs, targets in rows:
        assert inputs.shape == targets.shape
        assert inputs.dtype == targets.dtype == np.int64
        assert (inputs + 1 == targets).all()
        assert len(inputs) <= batch
        assert inputs.shape[1] == context or len(inputs) == 1
    assert all(inputs.shape[1] == context for inputs, _ in rows[:-1])
