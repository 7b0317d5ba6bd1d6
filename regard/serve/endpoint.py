"""Endpoints with a time limit whose work stops when the client leaves: JSON, server-sent events, the page."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.cancel import Cancelled, cancelled_by
from regard.serve.errors import error_body, timed_out
from regard.serve.generation import Generation, count_tokens
from regard.serve.monitoring import CLIENT_CLOSED
from regard.serve.protocol import Json, to_json
from regard.serve.registry import ModelRegistry
from regard.serve.requests import content_type, file_field, parse_object, read_body
from regard.serve.schema import IGNORED, Schema, check

IGNORED_HEADER = "X-Regard-Ignored"  # the fields of a request that had no effect
LAST_EVENT_TIMEOUT = 5.0  # seconds for a client to take the end of a stream
DONE = b"data: [DONE]\n\n"
Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]
T = TypeVar("T")


def json_endpoint(
    registry: ModelRegistry, schema: Schema, handle: Handler, files: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """Read and check the body, then handle it within the time limit while the client waits.

    With `files`, an image or a recording may be sent directly instead of JSON.
    """
    limits = registry.limits

    def parse(data: bytes) -> Json:
        body = parse_object(data)
        check(body, schema)
        return body

    async def read(request: Request) -> Json:
        data = await read_body(request, files)
        request.scope["size"] = len(data)
        if (field := file_field(content_type(request))) is not None:
            return {field: data}
        return await registry.run_sized(len(data), lambda: parse(data))

    async def endpoint(request: Request) -> Response:
        loop = asyncio.get_running_loop()
        registry.bridge.attach(loop)
        request.scope["deadline"] = deadline = loop.time() + limits.timeout
        try:
            async with asyncio.timeout_at(deadline):
                body = await read(request)
                request.scope["ignored"] = [name for name in IGNORED if body.get(name) is not None]
                response = await until_disconnect(request.receive, handle(request, body))
        except TimeoutError:
            raise timed_out(limits.timeout) from None
        except ClientDisconnect:
            registry.metrics.clients_gone += 1
            return Response(status_code=CLIENT_CLOSED)  # the client has left
        if ignored := request.scope["ignored"]:
            response.headers[IGNORED_HEADER] = ", ".join(ignored)
        return response

    return endpoint


class EventStream(Response):
    """Server-sent events. If the stream fails, its last event is the error."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        registry: ModelRegistry,
        deadline: float,
        close: Callable[[], None],
    ):
        super().__init__()
        del self.headers["content-length"]
        self.events, self.registry, self.deadline, self.close = events, registry, deadline, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        write_part = scope.get("write_part", lambda part: False)  # see LimitedProtocol

        async def send_events() -> None:
            async for event in self.events:
                if not write_part(event):
                    await send({"type": "http.response.body", "body": event, "more_body": True})

        last = b""
        try:
            async with asyncio.timeout_at(self.deadline):
                await until_disconnect(receive, send_events())
        except ClientDisconnect:
            self.registry.metrics.clients_gone += 1
        except TimeoutError:
            last = encode_event(error_body(timed_out(self.registry.limits.timeout)))
        except HTTPException as error:
            last = encode_event(error_body(error))
        finally:
            self.close()
        with suppress(TimeoutError):  # don't wait for a client that does not read
            async with asyncio.timeout(LAST_EVENT_TIMEOUT):
                await send({"type": "http.response.body", "body": last, "more_body": False})


def stream_response(
    request: Request, registry: ModelRegistry, generation: Generation, events: AsyncIterator[bytes]
) -> EventStream:
    """Stream the events of a generation, which is closed and counted at the end."""

    def close() -> None:
        count_tokens(generation, request.scope["request_info"])
        generation.close()

    return EventStream(events, registry, request.scope["deadline"], close)


class CancellationMiddleware:
    """Cancels the work of a request in its threads when the client leaves, or after `timeout` seconds."""

    def __init__(self, app: ASGIApp, timeout: float | None = None):
        self.app, self.timeout = app, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cancelled, body_read = threading.Event(), asyncio.Event()

        async def receive_body() -> Message:
            message = await receive()
            if not message.get("more_body"):
                body_read.set()
            return message

        async def watch_client() -> None:
            if scope["method"] == "POST":
                await body_read.wait()
            await wait_for_disconnect(receive)
            cancelled.set()

        watcher = asyncio.create_task(watch_client())
        timer = None
        if self.timeout is not None:
            timer = asyncio.get_running_loop().call_later(self.timeout, cancelled.set)
        try:
            with cancelled_by(cancelled):
                await self.app(scope, receive_body, send)
        except ClientDisconnect:
            pass  # it left before its request was complete
        except Cancelled:
            if self.timeout is not None and not watcher.done():
                raise timed_out(self.timeout) from None
        finally:
            watcher.cancel()
            if timer is not None:
                timer.cancel()


def encode_event(data: object) -> bytes:
    return f"data: {to_json(data)}\n\n".encode()


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. If the client leaves, cancel the work and raise ClientDisconnect."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
