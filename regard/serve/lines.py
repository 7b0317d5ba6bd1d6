"""Responses that come line by line, each a JSON object, while a thread computes them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.cancel import check_cancelled
from regard.errors import UserError
from regard.serve.protocol import Json, to_json
from regard.serve.threads import ExclusiveThreads, call_in_loop


class LineStream(Response):
    """JSON objects, line by line. If the work fails, the last one has the `error`."""

    media_type = "application/x-ndjson"

    def __init__(self, items: AsyncIterator[Json]):
        super().__init__()
        del self.headers["content-length"]
        self.items = items

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for item in self.items:
            line = f"{to_json(item)}\n".encode()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_lines(threads: ExclusiveThreads, compute: Callable[[], Iterator[Json]]) -> Response:
    """Stream the items of `compute`. Errors before the first item get their own HTTP status."""
    items = run_items(threads, compute)
    first = await anext(items, None)

    async def all_items() -> AsyncIterator[Json]:
        if first is not None:
            yield first
        try:
            async for item in items:
                yield item
        except UserError as error:
            yield {"error": str(error)}

    return LineStream(all_items())


async def run_items(threads: ExclusiveThreads, compute: Callable[[], Iterator[Json]]) -> AsyncIterator[Json]:
    """Run `compute` in a thread. If the request was cancelled, it ends before the next item."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Json | None]()

    def work() -> None:
        for item in compute():
            check_cancelled()
            call_in_loop(loop, lambda item=item: queue.put_nowait(item))  # type: ignore[misc]

    running = asyncio.create_task(threads.run(work))
    running.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await running
    finally:
        running.cancel()
