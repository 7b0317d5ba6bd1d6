"""Requests between the processes of one server: each listens at its own socket for the others.

Any process may get a request that concerns all of them, or the page, whose traces are in the first one.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.endpoint import until_disconnect
from regard.serve.errors import APIError

PAGE_WORKER = 0  # the worker that has the page
PATIENCE = 6.0  # seconds for a worker to answer: more than it takes to notice that an engine is stuck
MAX_HEAD = 2**20  # bytes of a request's head as JSON
PART = 2**16  # bytes of a response that are passed on at a time
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")  # a line of Prometheus' text format
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Peers:
    """The workers of a server: the number of this one, and the paths of all sockets."""

    index: int
    paths: Sequence[str]

    @contextlib.asynccontextmanager
    async def call(self, index: int, scope: Scope, body: bytes = b"") -> AsyncIterator[Connection]:
        """Send a request to a worker. Its answer is a line of JSON, status and headers, and then the body."""
        reader, writer = await asyncio.open_unix_connection(self.paths[index], limit=MAX_HEAD)
        try:
            headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
            query = scope["query_string"].decode("latin-1")
            head = [scope["method"], scope["path"], query, headers, len(body)]
            writer.write(json.dumps(head).encode() + b"\n" + body)
            await writer.drain()
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, index: int, path: str) -> tuple[int, str] | None:
        """Return the status and the text of a worker's answer; None if it does not answer in time."""
        scope = {"method": "GET", "path": path, "query_string": b"", "headers": []}
        try:
            async with asyncio.timeout(PATIENCE), self.call(index, scope) as (reader, _):
                status, _ = json.loads(await reader.readline())
                return status, (await reader.read()).decode()
        except (OSError, TimeoutError, ValueError):  # it is being replaced
            return None

    async def ask_all(self, path: str) -> list[tuple[int, str] | None]:
        return await asyncio.gather(*(self.ask(index, path) for index in range(len(self.paths))))


def answer_peers(app: ASGIApp) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a handler of connections from other workers: each brings one request to the application."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError),
            contextlib.closing(writer),
        ):
            method, path, query, headers, length = json.loads(await reader.readline())
            messages: list[Message] = [{"type": "http.request", "body": await reader.readexactly(length)}]

            async def receive() -> Message:
                if not messages:
                    await reader.read(1)  # no data: the other worker has closed
                return messages.pop() if messages else {"type": "http.disconnect"}

            async def send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    pairs = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in message["headers"]]
                    writer.write(json.dumps([message["status"], pairs]).encode() + b"\n")
                else:
                    writer.write(message.get("body", b""))
                    await writer.drain()

            scope: Scope = {
                "type": "http",
                "http_version": "1.1",
                "scheme": "http",
                "method": method,
                "path": path,
                "query_string": query.encode("latin-1"),
                "headers": [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers],
            }
            await app(scope, receive, send)

    return handle


class PeersMiddleware:
    """Answers for all workers: passes the page's requests to the worker that has it, and asks all workers
    for metrics and readiness. `is_page` returns whether a method and a path belong to the page."""

    def __init__(self, app: ASGIApp, peers: Peers, is_page: Callable[[str, str], bool]):
        self.app, self.peers, self.is_page = app, peers, is_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, path, method = self.app, scope["path"], scope["method"]
        if self.peers.index != PAGE_WORKER and self.is_page(method, path):
            app = self.pass_on
        elif method == "GET" and path == "/metrics":
            app = await self.collect_metrics()
        elif method == "GET" and path == "/ready":
            app = await self.find_refusal() or self.app
        await app(scope, receive, send)

    async def collect_metrics(self) -> Response:
        answers = await self.peers.ask_all("/metrics")
        texts = {n: answer[1] for n, answer in enumerate(answers) if answer is not None}
        return PlainTextResponse(merge_metrics(texts), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def find_refusal(self) -> Response | None:
        """Return the answer of a worker that is not ready, if there is one. A worker that is being replaced
        does not count: the others answer meanwhile."""
        refusals = [answer for answer in await self.peers.ask_all("/ready") if answer and answer[0] != 200]
        return PlainTextResponse(refusals[0][1], refusals[0][0]) if refusals else None

    async def pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await until_disconnect(receive, self.forward(scope, body, send))

    async def forward(self, scope: Scope, body: bytes, send: Send) -> None:
        begun = False
        try:
            async with self.peers.call(PAGE_WORKER, scope, body) as (reader, _):
                status, pairs = json.loads(await reader.readline())
                headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in pairs]
                begun = True
                await send({"type": "http.response.start", "status": status, "headers": headers})
                length, sent = dict(headers).get(b"content-length"), 0
                while part := await reader.read(PART):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    sent += len(part)
                if length is None or sent == int(length):  # or else that worker has died
                    await send({"type": "http.response.body", "body": b""})
        except (OSError, ValueError):
            if not begun:
                message = "the process that has the page is being replaced; reload it in a moment"
                raise APIError(503, message, code="crashed", headers={"Retry-After": "1"}) from None


def merge_metrics(texts: dict[int, str]) -> str:
    """The metrics of all workers in one text, each sample with its worker's number as a label."""
    families: dict[str, list[str]] = {}
    for index, text in texts.items():
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split()[2]
                lines = families.setdefault(name, [])
                if line not in lines:
                    lines.append(line)
            elif match := SAMPLE.fullmatch(line):
                labels = f'worker="{index}"' + (f",{match[2]}" if match[2] else "")
                lines.append(f"{match[1]}{{{labels}}} {match[3]}")
    return "\n".join(line for lines in families.values() for line in lines) + "\n"
