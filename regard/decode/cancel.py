"""Cancellation: work that nobody waits for ends before the next call of one of its model's modules."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from torch import nn

POLL = 0.05  # seconds between two looks at a lock that is taken
_event: ContextVar[threading.Event | None] = ContextVar("cancellation", default=None)


class Cancelled(BaseException):
    """The work was cancelled. It is no Exception, so that nothing takes it for a failure and goes on."""


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """Cancel what runs in this block, also in threads that inherit its context, once the event is set."""
    token = _event.set(event)
    try:
        yield
    finally:
        _event.reset(token)


def check_cancelled(*_: object) -> None:
    """Raise Cancelled if the present work was cancelled. Arguments, those of a hook, are ignored."""
    event = _event.get()
    if event is not None and event.is_set():
        raise Cancelled


def make_cancellable(module: nn.Module) -> None:
    """Check for cancellation before every call of a part of the module, and of copies of it."""
    for m in module.modules():
        m.register_forward_pre_hook(check_cancelled)


class CancellableLock:
    """A lock that cancelled work does not wait for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        check_cancelled()
        while not self.lock.acquire(timeout=POLL):
            check_cancelled()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
