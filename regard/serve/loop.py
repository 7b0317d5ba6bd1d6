"""An event loop that threads which compute let catch up.

They share the interpreter's lock. The loop's thread gives it up at every system call, and gets it back after
a turn of each of the others: with many connections to serve, it would wait for most of the time.
"""

import asyncio
import selectors
import time

BEHIND = 0.001  # seconds of work without a rest after which the loop is behind
MAX_PAUSE = 0.05  # seconds that threads wait for it; then they compute for as long, however busy it is
NAP = 0.0005  # seconds between two looks at it


class ServingLoop(asyncio.SelectorEventLoop):
    """The event loop of a server."""

    def __init__(self) -> None:
        self.watched = WatchedSelector()
        super().__init__(self.watched)
        self.no_pause_until = 0.0

    def let_catch_up(self) -> None:
        """Called in a thread that computes: if the loop is behind, wait until it has done its work."""
        began, now = self.watched.busy_since, time.monotonic()
        if began is None or now - began < BEHIND or now < self.no_pause_until:
            return
        until = now + MAX_PAUSE
        while self.watched.busy_since is not None:
            time.sleep(NAP)
            if (now := time.monotonic()) > until:
                self.no_pause_until = now + MAX_PAUSE
                return


class WatchedSelector(selectors.DefaultSelector):
    """Notes since when the loop has something to do; None: it waits for events."""

    busy_since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.busy_since = None
        events = super().select(timeout)
        if self.busy_since is None:
            self.busy_since = time.monotonic()
        return events
