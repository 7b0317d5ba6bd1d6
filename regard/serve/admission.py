"""Admit requests: read each body within limits, then give the request a place.

The API and the page have separate places, so that neither can use up the other's. A request has no
place before its body is complete.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.endpoint import until_disconnect
from regard.serve.errors import APIError, error_response, queue_full
from regard.serve.registry import ServerLimits

SMALL_BODY = 2**16  # bytes that every request may send; more must fit into the memory for all bodies
Share = Literal["api", "page"]


class Places:
    """Requests that are answered at once; up to `queue` more wait for a place."""

    def __init__(self, places: int, queue: int):
        self.free, self.limit = asyncio.Semaphore(places), places + queue
        self.count = 0  # requests that have a place or wait

    @asynccontextmanager
    async def take(self, receive: Receive) -> AsyncIterator[None]:
        if self.count >= self.limit:
            raise queue_full()
        self.count += 1
        try:
            if self.free.locked():
                await until_disconnect(receive, self.free.acquire())
            else:
                await self.free.acquire()
            try:
                yield
            finally:
                self.free.release()
        finally:
            self.count -= 1


class AdmissionMiddleware:
    """`share` maps a method and a path to the kind of place that the request needs, or None.

    `is_full` returns whether a path has no place for any body: such requests are refused at once,
    so that a flood of them costs little.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ServerLimits,
        share: Callable[[str, str], Share | None],
        is_full: Callable[[str], bool] = lambda path: False,
    ):
        self.app, self.limits, self.share, self.is_full = app, limits, share, is_full
        self.places = {
            "api": Places(limits.requests, 0),
            "page": Places(limits.page_places, limits.page_queue),
        }
        self.memory = limits.body_memory  # bytes that are left for further bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        share = self.share(scope["method"], scope["path"])
        if share is None:
            await self.app(scope, receive, send)
            return
        places, reserved = self.places[share], Reservation(self)
        try:
            if (refusal := self.find_refusal(share, scope["path"])) is not None:
                raise refusal  # before the body is read
            body = b""
            if scope["method"] == "POST":
                body = await self.read_body(Headers(scope=scope), receive, reserved)
            async with places.take(receive):
                await self.app(scope, replay(body, receive), send)
        except HTTPException as error:
            await error_response(scope["path"], error)(scope, receive, send)
        except ClientDisconnect:
            pass  # the client has left; the monitoring counts it
        finally:
            reserved.release()

    def find_refusal(self, share: Share, path: str, begun: int = 0) -> APIError | None:
        """The error for a request without a place, for any body; None if there is a place.

        `begun` requests before it have not taken their places yet.
        """
        places = self.places[share]
        return queue_full() if places.count + begun >= places.limit or self.is_full(path) else None

    async def read_body(self, headers: Headers, receive: Receive, reserved: "Reservation") -> bytes:
        limit, data = self.limits.body, bytearray()
        too_large = APIError(413, f"the body is over {limit:,} bytes; send less")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > limit:
            raise too_large
        seconds = min(self.limits.body_seconds, self.limits.timeout)
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    data += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(data) > limit:
                        raise too_large
                    reserved.grow(len(data) - SMALL_BODY)
        except TimeoutError:
            raise APIError(408, f"the body was not complete within {seconds:g} s", code="timeout") from None
        return bytes(data)


class Reservation:
    """The part of the memory for bodies that one request has."""

    def __init__(self, owner: AdmissionMiddleware):
        self.owner, self.size = owner, 0

    def grow(self, size: int) -> None:
        more = max(0, size - self.size)
        if more > self.owner.memory:
            message = "the bodies of other requests take all the memory for them; try again in a moment"
            raise APIError(503, message, code="busy", headers={"Retry-After": "1"})
        self.owner.memory -= more
        self.size += more

    def release(self) -> None:
        self.owner.memory += self.size


def replay(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was already read, and then the following messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
