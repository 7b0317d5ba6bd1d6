"""Outputs of the engines' threads in the event loop: at once, or gathered while the loop is behind."""

import asyncio

import pytest

from helpers.serving import own_records
from regard.decode.sampling import Sampling
from regard.serve import threads
from regard.serve.batch import GenerationRequest, deliver_outputs
from regard.serve.threads import MAX_REST, ThreadBridge


def request(callback):
    return GenerationRequest([1], Sampling(), callback, None, 0, None, 9, lambda _: None)


def test_bridge_delivers_after_a_callback_failed_and_after_a_loop_was_closed(caplog):
    bridge, outputs = ThreadBridge(), []

    def fail(output):
        raise RuntimeError("no\nspace")

    async def deliver():
        bridge.attach(asyncio.get_running_loop())
        bridge.put([(request(fail), "stop"), (request(outputs.append), "length")])
        while not outputs:
            await asyncio.sleep(0.001)

    asyncio.run(deliver())
    (record,) = own_records(caplog)
    assert "RuntimeError: no space" in record.message
    bridge.put([(request(outputs.append), "lost")])  # the loop is closed
    outputs.clear()
    asyncio.run(deliver())
    assert outputs == ["length"]


def test_bridge_of_a_loop_that_ended_in_the_middle_goes_on_in_another():
    bridge, outputs = ThreadBridge(), []

    async def schedule():
        bridge.attach(asyncio.get_running_loop())
        bridge.put([(request(outputs.append), 1)])

    asyncio.run(schedule())
    outputs.clear()

    async def deliver():
        await schedule()
        while not outputs:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(deliver(), 60))


def test_outputs_gathered_from_several_steps_keep_their_order_and_end_with_the_result():
    first, second = [], []
    one, two = request(first.append), request(second.append)
    deliver_outputs([(one, 1), (two, 2), (one, 3), (two, "stop"), (one, "length"), (two, 4), (one, "stop")])
    assert first == [1, 3, "length"]
    assert second == [2, "stop"]


class FakeLoop:
    """An event loop whose time stands still unless a test sets it."""

    def __init__(self):
        self.now, self.soon, self.later = 0.0, [], []

    def time(self):
        return self.now

    def call_soon(self, function):
        self.soon.append(function)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds, function):
        self.later.append((seconds, function))

    def run(self):
        soon, self.soon = self.soon, []
        for function in soon:
            function()


@pytest.mark.parametrize(("worked", "rest"), [(0.0001, None), (0.003, pytest.approx(0.003)), (9.0, MAX_REST)])
def test_outputs_gather_only_while_the_loop_is_behind(worked, rest, monkeypatch):
    """Receivers work for a while after a delivery; the next outputs come right after that."""
    bridge, loop, outputs, used = ThreadBridge(), FakeLoop(), [], [0.0]
    monkeypatch.setattr(threads.time, "thread_time", lambda: used[0])
    receiver = request(outputs.append)
    bridge.attach(loop)
    bridge.put([(receiver, 0)])
    loop.run()
    assert outputs == [0]
    used[0] += worked
    loop.run()  # after the receivers
    for id in (1, 2):
        bridge.put([(receiver, id)])
    assert len(loop.soon) == 1  # the loop is woken once for all
    loop.run()
    if rest is not None:
        assert outputs == [0]
        ((seconds, deliver),) = loop.later
        assert seconds == rest
        loop.now += seconds
        bridge.put([(receiver, 3)])
        deliver()
    assert outputs == [0, 1, 2, 3][: 3 + (rest is not None)]
    used[0] += worked
    bridge.put([(receiver, 4)])  # while the receivers work: delivered when they are done, or later
    loop.run()
    assert (outputs[-1] == 4) == (rest is None)
    assert len(loop.later) == (0 if rest is None else 2)
