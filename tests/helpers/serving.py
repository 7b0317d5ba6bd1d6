"""Servers in a thread, for the page or for named models, and a client."""

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.types import ASGIApp

from helpers.waiting import wait_until
from regard.runs.model import Model
from regard.serve.app import create_app
from regard.serve.connections import ConnectionLimits
from regard.serve.log import LogWriter
from regard.serve.loop import ServingLoop
from regard.serve.page_app import page_app
from regard.serve.registry import ModelRegistry, ServerLimits
from regard.serve.security import SecurityConfig
from regard.serve.server import run_in_thread
from regard.viewer.session import Session


@dataclass
class Server:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """The status, headers and body of the response; a body is sent as JSON, unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        content_type = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(
                "GET" if body is None else "POST",
                path + (f"?{urlencode(query)}" if query else ""),
                data,
                content_type | (headers or {}),
            )
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def check_error(
        self, status: int, words: str, *request: Any, **query: Any
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Check the status of a request and that its error mentions the words; below /v1, also its format."""
        code, headers, data = self.ask(*request, **query)
        assert (code, words in data.decode()) == (status, True), data
        if request[0].startswith("/v1"):
            assert json.loads(data)["error"].keys() == {"message", "type", "param", "code"}
        return headers, data


@dataclass
class PageServer(Server):
    first: Session


@dataclass
class ModelServer(Server):
    registry: ModelRegistry


class Clock:
    """The time of servers that start from now on, which tests turn forward: a limit expires when they say so,
    and not before, however busy the machine is."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead, self.loops, begin = 0.0, list[ServingLoop](), ServingLoop.__init__

        def begin_with_this_clock(loop: Any) -> None:
            begin(loop)
            loop.time = lambda: time.monotonic() + self.ahead
            self.loops.append(loop)

        patch.setattr(ServingLoop, "__init__", begin_with_this_clock)

    def turn_forward(self, seconds: float) -> None:
        self.ahead += seconds
        for loop in self.loops:
            loop.call_soon_threadsafe(lambda: None)  # wakes it up


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What Regard has logged; asyncio may log at any time what became of an earlier test's tasks."""
    return [record for record in caplog.records if record.name.startswith("regard.")]


def wait_for_workers() -> None:
    """Until no server works in a thread: only one thread at a time may watch a model."""
    wait_until(lambda: all(thread.name != "worker" for thread in threading.enumerate()))


# What happens before the server of a port stops: tabs leave it, as a page asks for more at any time.
BEFORE_STOP: dict[int, set[Callable[[], None]]] = {}


@contextmanager
def serve_app(app: ASGIApp, connections: ConnectionLimits | None = None) -> Iterator[int]:
    """The port at which a server answers, until all tabs have left it."""
    with run_in_thread(app, connections) as port:
        BEFORE_STOP[port] = set()
        try:
            yield port
        finally:
            for leave in BEFORE_STOP.pop(port):
                leave()


@contextmanager
def serve_session(
    first: Session,
    compared_models: Sequence[Model] = (),
    limits: ServerLimits | None = None,
    connections: ConnectionLimits | None = None,
) -> Iterator[PageServer]:
    """The page of a session."""
    with serve_app(page_app(first.model, first, compared_models, limits), connections) as port:
        yield PageServer(port, first)


@contextmanager
def serve_models(
    models: dict[str, Model],
    limits: ServerLimits | None = None,
    log: bool = False,
    finish: bool = True,
    connections: ConnectionLimits | None = None,
    **security: Any,
) -> Iterator[ModelServer]:
    """Models by name; `finish`: whether running answers are finished at the end."""
    registry, writer = ModelRegistry(models, limits or ServerLimits()), LogWriter() if log else None
    try:
        with serve_app(create_app(registry, SecurityConfig(**security), writer), connections) as port:
            yield ModelServer(port, registry)
    finally:
        registry.close(finish)
        if writer is not None:
            writer.close()
