"""Cancellation: work whose result is not needed ends before the next call of a module, or while it waits for
a child process. Work can also pause there."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

POLL = 0.05  # seconds between two checks whether waiting work was cancelled
_event: ContextVar[threading.Event | None] = ContextVar("cancellation", default=None)
_pause: ContextVar[Callable[[], None] | None] = ContextVar("pause", default=None)
_lock: ContextVar["CancellableLock | None"] = ContextVar("lock", default=None)  # held by the present work


class Cancelled(BaseException):
    """The work was cancelled. Not an Exception, so that no handler of failures catches it and continues."""


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """Cancel the work in this block, also in threads that inherit its context, once the event is set."""
    token = _event.set(event)
    try:
        yield
    finally:
        _event.reset(token)


@contextmanager
def paused_by(pause: Callable[[], None]) -> Iterator[None]:
    """Call `pause` at every point where the work in this block could be cancelled: it may wait for others."""
    token = _pause.set(pause)
    try:
        yield
    finally:
        _pause.reset(token)


def check_cancelled(*_: object) -> None:
    """Raise Cancelled if the present work was cancelled. The arguments, of a hook, are ignored."""
    if (pause := _pause.get()) is not None:
        pause()
    event = _event.get()
    if event is not None and event.is_set():
        raise Cancelled
    lock = _lock.get()
    if lock is not None:
        lock.note_progress()


def make_cancellable(module: "nn.Module") -> None:
    """Check for cancellation before every call of a part of the module, and of copies of it."""
    for m in module.modules():
        if check_cancelled not in m._forward_pre_hooks.values():
            m.register_forward_pre_hook(check_cancelled)


class CancellableLock:
    """A lock that cancelled work does not wait for. Abandoning it cancels the work that has it or waits."""

    def __init__(self) -> None:
        self.lock, self.given_up = threading.Lock(), False
        self.last_progress = math.inf  # when its work last called a module; inf: it is free

    @property
    def idle(self) -> float:
        """Seconds since the work that holds it began or called a module; below 0 if there is none."""
        return time.monotonic() - self.last_progress

    def give_up(self) -> None:
        self.given_up = True

    def note_progress(self) -> None:
        if self.given_up:
            raise Cancelled
        self.last_progress = time.monotonic()

    def __enter__(self) -> None:
        check_cancelled()
        while not self.lock.acquire(timeout=POLL):
            check_cancelled()
            if self.given_up:
                raise Cancelled
        self.last_progress = time.monotonic()
        self.token = _lock.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _lock.reset(self.token)
        self.last_progress = math.inf
        self.lock.release()
