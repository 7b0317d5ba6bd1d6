"""Connections with limits: their number, the time that each may keep the server waiting, and strict framing.

The server waits for a client that has sent no complete request, or does not read its answer. If there are too
many connections, the one that the server has waited for the longest is closed. A connection whose request is
complete is never closed for another one.
"""

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from regard.serve.loop import ServingLoop

PART = 2**16  # bytes of a response that are written at a time
MIN_RATE = 2**16  # bytes a second at which a large response is read, at least
DRAIN_SECONDS = 5.0  # for the rest of an unread body, so that the client sees the answer
Refuse = Callable[[bytes], tuple[Response, int] | None]  # see QuickRefusals.refuse
HEAD_END = re.compile(rb"\n\r?\n")
BUSY = b"all connections are in use; try again in a moment"
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(BUSY), BUSY)
)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    connections: int = 1024
    header_bytes: int = 16 * 2**10  # of the request line and all headers
    header_seconds: float = 10.0  # until they are complete
    idle_seconds: float = 30.0  # between two requests
    send_seconds: float = 30.0  # for a client to read a response; large ones have more, see MIN_RATE
    kept_seconds: float = math.inf  # after which a connection is closed with the next response


class StrictConnection(h11.Connection):
    """Refuses requests with an ambiguous end, and long headers."""

    def __init__(self, header_bytes: int):
        super().__init__(h11.SERVER, header_bytes)
        self.header_bytes = header_bytes  # h11 limits only incomplete headers

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            data, _ = self.trailing_data
            if end := HEAD_END.search(data):
                if end.start() > self.header_bytes:
                    raise h11.RemoteProtocolError("too long headers", 431)
                check_framing(data[: end.start()])
        return super().next_event()


def check_framing(head: bytes) -> None:
    """Check the headers that define the end of a request."""
    lines = head.split(b"\n")[1:]
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (x.partition(b":") for x in lines)]
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise h11.RemoteProtocolError("a header that is continued on the next line")
    ends = [value for name, value in headers if name in (b"content-length", b"transfer-encoding")]
    if len(ends) > 1 or any(not value.isalnum() for value in ends):
        raise h11.RemoteProtocolError("the headers do not say where the body ends")


def is_chunked(scope: Scope, start: Message) -> bool:
    """Return whether h11 sends the body of a response in chunks."""
    has_body = scope["method"] in ("GET", "POST") and start["status"] == 200
    named = any(name in (b"content-length", b"transfer-encoding") for name, _ in start["headers"])
    return has_body and not named and scope["http_version"] == "1.1"


class JoinedWrites:
    """A transport that can join several writes into one: fewer system calls and packets."""

    def __init__(self, transport: asyncio.Transport):
        self.transport, self.joins, self.parts = transport, False, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        if self.joins:
            self.parts.append(data)
        else:
            self.transport.write(data)

    def flush(self) -> None:
        self.joins = False
        if self.parts:
            self.transport.write(b"".join(self.parts))
            self.parts.clear()

    def close(self) -> None:
        self.flush()
        self.transport.close()


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with limits for slow clients, and for the number of connections."""

    def __init__(self, *args: Any, limits: ConnectionLimits, refuse: Refuse | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.limits, self.timeout_keep_alive = limits, limits.idle_seconds  # type: ignore[assignment]
        self.conn = StrictConnection(limits.header_bytes)
        self.inner_app: Any = self.app
        self.app: Any = self.call_app
        self.refuse = refuse
        self.answered = False  # a response has been sent
        self.unread = 0  # bytes of the body of a request that was refused
        self.held = b""  # the beginning of a request that may be refused
        self.waits_for: str | None = None  # None: the server works on a request
        self.since = 0.0  # when the server began to wait
        self.opened = self.loop.time()
        self.timer: asyncio.TimerHandle | None = None

    # The state that the server waits in

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport: Any = JoinedWrites(transport)
        self.update()
        self.make_room()

    def data_received(self, data: bytes) -> None:
        data, self.unread = data[self.unread :], max(0, self.unread - len(data))
        if self.held:
            self.held += data
        elif data and self.may_refuse(data):
            self.held = data
            # Not now: requests that end at this moment give their places back first.
            self.loop.call_soon(self.decide)
        elif data:
            super().data_received(data)
        self.update()

    def on_response_complete(self) -> None:
        self.answered = True
        super().on_response_complete()
        self.update()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.update()

    def shutdown(self) -> None:
        super().shutdown()
        self.update()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.wait_for(None)

    def update(self) -> None:
        """Note what the server waits for now, and restart the time limit if that has changed."""
        state = self.conn.their_state
        answered = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing():
            self.wait_for("reader", self.limits.send_seconds)  # the end of the last response
        elif self.held:
            self.wait_for(None)
        elif self.unread:
            self.wait_for("rest", DRAIN_SECONDS)
        elif state is h11.SEND_BODY:
            # The application limits the time for a body that it reads.
            self.wait_for("rest", DRAIN_SECONDS) if answered else self.wait_for("body")
        elif state is not h11.IDLE:
            self.wait_for(None)
        elif self.answered and not self.conn.trailing_data[0]:
            self.wait_for("request")  # uvicorn limits the time
        else:
            self.wait_for("headers", self.limits.header_seconds)

    def wait_for(self, what: str | None, seconds: float | None = None) -> None:
        if what == self.waits_for:
            return
        self.waits_for, self.since = what, self.loop.time()
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def make_room(self) -> None:
        """If there are too many connections, close the one that the server waits for the longest."""
        if len(self.connections) <= self.limits.connections:
            return
        other_connections: list[Any] = [
            c for c in self.connections if c is not self and not c.transport.is_closing()
        ]
        if len(other_connections) < self.limits.connections:
            return
        waiting = [c for c in other_connections if c.waits_for is not None]
        if waiting:
            min(waiting, key=lambda c: c.since).transport.abort()
        else:
            self.transport.write(REFUSAL)
            self.transport.close()
            self.update()

    # Responses

    def may_refuse(self, data: bytes) -> bool:
        """Whether this data could begin a request of a flood, to be refused without h11."""
        if self.refuse is None or not isinstance(self.loop, ServingLoop) or not self.loop.is_flooded():
            return False
        between_requests = self.conn.their_state is self.conn.our_state is h11.IDLE
        if not between_requests or self.conn.trailing_data[0]:
            return False
        return not self.flow.write_paused and len(data) <= self.limits.header_bytes

    def decide(self) -> None:
        """Refuse the request that was held back, or have it parsed."""
        data, self.held = self.held, b""
        if not self.transport.is_closing() and not self.refuse_request(data):
            super().data_received(data)
        self.update()

    def refuse_request(self, data: bytes) -> bool:
        assert self.refuse is not None
        refusal = self.refuse(data)
        if refusal is None:
            return False
        response, self.unread = refusal
        self._unset_keepalive_if_required()
        headers = (*self.server_state.default_headers, *response.raw_headers)
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        start = b"HTTP/1.1 %d %b\r\n" % (response.status_code, STATUS_PHRASES[response.status_code])
        self.transport.write(start + lines + b"\r\n" + response.body)
        self.on_response_complete()
        return True

    async def call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application. Its responses are sent in parts as the client reads them, in limited time."""
        cycle, chunked = self.cycle, False
        start: Message | None = None  # is sent with the first part of the body

        def write_part(data: bytes) -> bool:
            """Write the next part of a body that has begun, if the client keeps up."""
            if not (chunked and 0 < len(data) <= PART) or self.flow.write_paused or cycle.disconnected:
                return False
            # As h11 writes it, whose state does not change; it takes several times as long.
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
            return True

        async def send_parts(message: Message) -> None:
            nonlocal chunked, start
            if message["type"] == "http.response.start":
                start = message
                if self.loop.time() - self.opened > self.limits.kept_seconds:
                    start["headers"].append((b"connection", b"close"))
                return
            data = message.get("body", b"")
            if len(data) > PART or self.flow.write_paused:
                await send_slowly(message, memoryview(data))
            elif not (message.get("more_body") and write_part(data)):
                self.transport.joins = True
                try:
                    await send_start()
                    await send(message)
                finally:
                    self.transport.flush()

        async def send_start() -> None:
            nonlocal chunked, start
            if start is not None:
                await send(start)
                chunked, start = is_chunked(scope, start), None

        async def send_slowly(message: Message, body: memoryview) -> None:
            timer = self.loop.call_later(
                self.limits.send_seconds + len(body) / MIN_RATE, self.transport.abort
            )
            try:
                await send_start()
                for begin in range(0, len(body) - PART, PART):
                    await send({**message, "body": body[begin : begin + PART], "more_body": True})
                rest = (len(body) - 1) // PART * PART
                await send({**message, "body": body[rest:]} if len(body) else message)
            finally:
                timer.cancel()

        scope["write_part"] = write_part  # for streams: past all layers, which look at the start alone
        await self.inner_app(scope, receive, send_parts)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:  # the application's client has left
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # the response to the request has begun
            self.transport.abort()
