"""Threads and the event loop: work in threads that can be cancelled, and outputs of the engines' threads."""

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from regard.cancel import CancellableLock, Cancelled, cancelled_by, paused_by
from regard.serve.batch import Outputs, deliver_outputs
from regard.serve.loop import ServingLoop

WATCH_INTERVAL = 1.0  # seconds between two checks of work that may hang
T = TypeVar("T")
MIN_REST = 0.0005  # seconds of work after which the event loop rests: its timers are not more precise
MAX_REST = 0.02  # seconds that outputs wait at most while it rests
log = logging.getLogger(__name__)


class WorkerThreads:
    """Runs blocking work in daemon threads, up to `places` at once; further work waits.

    When the caller is cancelled, so is the work. Its place is free when it has ended, so that no more
    threads compute. Work that has not ended `patience` seconds later hangs, and its place is freed.
    """

    def __init__(self, places: int, patience: float):
        self.places, self.patience = asyncio.Semaphore(places), patience
        self.running = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of the work. Work that is cancelled before its turn never runs."""
        await self.places.acquire()
        self.running += 1
        loop, cancelled, held = asyncio.get_running_loop(), threading.Event(), True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self.running -= 1
                self.places.release()

        def give_up() -> None:
            if held:
                log.error("cancelled work still runs after %g s; another thread takes over", self.patience)
                release()

        def compute() -> T:
            with cancelled_by(cancelled):
                return work()

        try:
            job = start_thread(compute)
        except RuntimeError:
            release()
            raise
        job.add_done_callback(lambda _: call_in_loop(loop, release))
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            cancelled.set()
            loop.call_later(self.patience, give_up)
            raise


class WorkHangs(Exception):
    """Work has called no module for longer than it may."""


class ExclusiveThreads:
    """Runs blocking work in daemon threads, one at a time.

    Work that calls no module for `limit` seconds hangs. Then it and all waiting work are
    given up: each raises WorkHangs, and the hung thread may keep its resources. Use a new object afterwards.
    """

    def __init__(self, limit: float):
        self.limit, self.lock = limit, CancellableLock()

    async def run(self, work: Callable[[], T]) -> T:
        def compute() -> T:
            with self.lock:
                return work()

        result = asyncio.wrap_future(start_thread(compute))
        try:
            while not (await asyncio.wait([result], timeout=WATCH_INTERVAL))[0]:
                if not self.lock.given_up and self.lock.idle > self.limit:
                    log.error("work hangs: it has called no module for %g s, and is given up", self.limit)
                    self.lock.give_up()
                if self.lock.given_up:
                    raise WorkHangs
            return result.result()
        except Cancelled:
            if self.lock.given_up:
                raise WorkHangs from None
            raise
        finally:
            result.cancel()  # its result is not needed any more


def start_thread(work: Callable[[], T]) -> Future[T]:
    """Run work in a daemon thread, in the present context. It lets the event loop catch up."""
    job, context, loop = Future[T](), contextvars.copy_context(), asyncio.get_running_loop()

    def pausing_work() -> T:
        with paused_by(partial(let_catch_up, loop)):
            return work()

    def compute() -> None:
        try:
            job.set_result(context.run(pausing_work))
        except BaseException as error:
            job.set_exception(error)

    job.set_running_or_notify_cancel()
    threading.Thread(target=compute, name="worker", daemon=True).start()
    return job


def let_catch_up(loop: asyncio.AbstractEventLoop | None) -> None:
    if isinstance(loop, ServingLoop):
        loop.let_catch_up()


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> bool:
    """Let the event loop call a function. Return False if it is closed: then nothing waits any more."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return False
    return True


class ThreadBridge:
    """Passes outputs of engine threads to the event loop; collected outputs are passed in one call.

    The receivers work on them right after that call. The next outputs are delivered at once, unless that work
    took long and they come before as much time has passed again: then the loop is behind, and they are
    collected until then, so that the engines and other requests have their turn.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.batches: deque[Outputs] = deque()
        self.scheduled = self.delivering = False
        self.began = 0.0  # processor time of the loop's thread when the last delivery began
        self.rests_until = 0.0  # time of the loop

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver in this event loop from now on."""
        if loop is not self.loop:
            self.loop, self.scheduled, self.delivering = loop, False, False

    def put(self, outputs: Outputs) -> None:
        """Let the event loop deliver outputs; called in an engine's thread."""
        self.batches.append(outputs)
        if not self.scheduled and self.loop is not None:
            self.scheduled = True
            if not call_in_loop(self.loop, self.deliver):
                self.scheduled = False
                self.batches.clear()

    def pause(self) -> None:
        """Let the event loop catch up, except on outputs; called in an engine's thread before a step."""
        if not self.delivering:
            let_catch_up(self.loop)

    def deliver(self) -> None:
        assert self.loop is not None
        if (rest := self.rests_until - self.loop.time()) > 0:
            self.loop.call_later(rest, self.deliver)
            return
        self.delivering, self.began = True, time.thread_time()
        collected: Outputs = []
        while self.batches:
            collected += self.batches.popleft()
        deliver_outputs(collected)
        self.loop.call_soon(self.rest)  # after all that wait for these outputs

    def rest(self) -> None:
        """Record the time that outputs took. Outputs that came meanwhile are delivered after a rest."""
        assert self.loop is not None
        worked, self.delivering = time.thread_time() - self.began, False
        if isinstance(self.loop, ServingLoop):
            self.loop.watched.busy_since = time.monotonic()  # with other work
        if worked > MIN_REST:
            self.rests_until = self.loop.time() + min(worked, MAX_REST)
        self.scheduled = False  # before the outputs are counted, so that none is left behind
        if self.batches:
            self.scheduled = True
            self.deliver()
