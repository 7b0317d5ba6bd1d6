"""Outputs of the engines' threads in the event loop: at once, or gathered while the loop is behind."""

import asyncio
import threading
import time

import pytest

from regard.decode.sampling import Sampling
from regard.serve import threads
from regard.serve.batch import GenerationRequest
from regard.serve.threads import ThreadBridge


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
    (record,) = caplog.records
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

    asyncio.run(asyncio.wait_for(deliver(), 20))


@pytest.mark.parametrize("work", [0.0, 0.003])
def test_outputs_gather_only_while_the_loop_is_behind(work, monkeypatch):
    """A receiver takes `work` seconds of processor time for outputs that come all at once; or none, for
    outputs of which each comes when the last is delivered."""
    bridge, calls, count = ThreadBridge(), [], 40
    deliver = threads.deliver_outputs
    monkeypatch.setattr(threads, "deliver_outputs", lambda outputs: calls[-1].append(deliver(outputs)))
    outputs = []

    def receive(output):
        outputs.append(output)
        end = time.thread_time() + work
        while time.thread_time() < end:
            pass

    async def main():
        bridge.attach(asyncio.get_running_loop())
        true, delivered = bridge.deliver, threading.Semaphore(0)

        def counted():
            calls.append([])
            true()
            delivered.release()

        bridge.deliver = counted
        receiver = request(receive)

        def generate():
            for id in range(count):
                bridge.put([(receiver, id)])
                if not work:
                    assert delivered.acquire(timeout=20)
                    time.sleep(0.002)

        thread = threading.Thread(target=generate)
        thread.start()
        while len(outputs) < count:
            await asyncio.sleep(0.001)
        thread.join()

    asyncio.run(main())
    assert outputs == list(range(count))
    sizes = [len(call) for call in calls if call]
    assert max(sizes) == 1 if not work else len(sizes) < count // 2
