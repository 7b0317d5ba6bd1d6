"""Threads and the event loop: work in threads that can be cancelled, and outputs of the engines' threads."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from regard.decode.cancel import cancelled_by
from regard.serve.batch import Output, OutputCallback, describe_error

T = TypeVar("T")
log = logging.getLogger(__name__)


class WorkerThreads:
    """Runs blocking work in daemon threads, up to `places` at once; more work waits for its turn.

    When the caller is cancelled, so is the work. Its place is free when it has ended, so that never more
    threads compute. If it has not ended `patience` seconds later, it hangs, and its place is free anyway.
    """

    def __init__(self, places: int, patience: float):
        self.places, self.patience = asyncio.Semaphore(places), patience
        self.running = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of the work. Work that is cancelled before its turn never runs."""
        await self.places.acquire()
        self.running += 1
        loop, cancelled, job, held = asyncio.get_running_loop(), threading.Event(), Future[T](), True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self.running -= 1
                self.places.release()

        def give_up() -> None:
            if held:
                log.error("cancelled work has not ended after %g s; another thread goes on", self.patience)
                release()

        def compute() -> None:
            try:
                with cancelled_by(cancelled):
                    job.set_result(work())
            except BaseException as error:
                job.set_exception(error)

        job.set_running_or_notify_cancel()
        job.add_done_callback(lambda _: call_in_loop(loop, release))
        try:
            threading.Thread(target=compute, name="worker", daemon=True).start()
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            cancelled.set()
            loop.call_later(self.patience, give_up)
            raise
        except RuntimeError:  # perhaps no thread could be started
            if not job.done():
                release()
            raise


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> bool:
    """Have the event loop call a function. Return False if it is closed: then nobody waits any more."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return False
    return True


class ThreadBridge:
    """Passes outputs of engine threads to the event loop, all that have gathered in one call."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.outputs: deque[tuple[OutputCallback, Output]] = deque()
        self.scheduled = False

    def put(self, callback: OutputCallback, output: Output) -> None:
        """Called in an engine's thread: have the event loop call `callback` with an output."""
        self.outputs.append((callback, output))
        if not self.scheduled and self.loop is not None:
            self.scheduled = True
            if not call_in_loop(self.loop, self.deliver):
                self.scheduled = False
                self.outputs.clear()

    def deliver(self) -> None:
        self.scheduled = False  # before the outputs are read, so that none is left behind
        while self.outputs:
            callback, output = self.outputs.popleft()
            try:
                callback(output)
            except Exception as error:  # the others still get their outputs
                log.error("an output is lost, its callback failed: %s", describe_error(error))
