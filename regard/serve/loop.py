"""An event loop that detects floods of requests, and for which computing threads wait when it is behind.

They share the interpreter's lock. The loop's thread releases it at every system call, and gets it back after
each of the others had its turn: with many connections, it would wait for most of the time.
"""

import asyncio
import math
import selectors
import time

MANY = 8  # connections with something to read at once, which are a flood
LASTS = 0.1  # seconds that a flood counts, if no more come
BEHIND = 0.001  # seconds of work without a rest after which the loop is behind
MAX_PAUSE = 0.1  # seconds that threads wait for it
TURN = 0.05  # seconds that they compute then, however busy it is
NAP = 0.0005  # seconds between two checks


class ServingLoop(asyncio.SelectorEventLoop):
    """The event loop of a server."""

    def __init__(self) -> None:
        self.watched = WatchedSelector()
        super().__init__(self.watched)
        self.no_pause_until = 0.0

    def is_flooded(self) -> bool:
        """Return whether many requests have just come at once."""
        return time.monotonic() - self.watched.flooded_at < LASTS

    def is_behind(self) -> bool:
        """Return whether the loop has worked for a while without rest."""
        began = self.watched.busy_since
        return began is not None and time.monotonic() - began > BEHIND

    def let_catch_up(self) -> None:
        """If the loop is behind, wait until it has caught up; called in a computing thread."""
        now = time.monotonic()
        if now < self.no_pause_until or not self.is_behind():
            return
        until = now + MAX_PAUSE
        while self.watched.busy_since is not None:
            time.sleep(NAP)
            if (now := time.monotonic()) > until:
                self.no_pause_until = now + TURN
                return


class WatchedSelector(selectors.DefaultSelector):
    """Records since when the loop has been busy, and the time of the last flood."""

    busy_since: float | None = None  # None: it waits for events
    flooded_at = -math.inf

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.busy_since = None
        events = super().select(timeout)
        now = time.monotonic()
        if self.busy_since is None:
            self.busy_since = now
        if len(events) >= MANY:
            self.flooded_at = now
        return events
