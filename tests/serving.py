"""A server of the page in a thread, and how to ask it."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from regard.look.page import Shown
from regard.run import Model
from regard.serve import listening
from regard.serve.app import application


@dataclass
class Server:
    port: int
    first: Shown

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """The status, the headers and the answer; a body is sent as JSON, unless it is bytes."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            line.request(
                "GET" if body is None else "POST",
                path + (f"?{urlencode(query)}" if query else ""),
                sent,
                kind | (headers or {}),
            )
            answer = line.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            line.close()


@contextmanager
def served(model: Model, first: Shown) -> Iterator[Server]:
    with listening(application(model, first)) as port:
        yield Server(port, first)
