"""The server's door: who may come in, how many at once, and what is written down about them.

A request that names a host that is not ours (DNS rebinding) or comes from another page is refused before
anything of it is read; so is one without the key, if there is one, and one for which there is no place.
"""

import base64
import binascii
import ipaddress
import json
import re
import secrets
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .app import HEADERS, HOSTS
from .errors import Wrong, answer, full
from .metrics import Metrics

OPEN = ("/health", "/ready")  # without a key
GONE = 499  # what is written down where nobody was left to be answered
EVERYWHERE = ("0.0.0.0", "::")  # to listen at every address of the machine
PLAIN = ("X-Content-Type-Options", "Cache-Control")  # of HEADERS, what data need: the rest is for pages
SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")  # a request's id that is given back


@dataclass(frozen=True, kw_only=True)
class Manners:
    """Who is answered."""

    host: str = "127.0.0.1"  # the address it listens at
    names: Collection[str] = ()  # that it answers to besides, behind a proxy for one
    key: str | None = None
    most: int = 160  # requests that are being answered or wait, at once
    log: bool = False  # a line of JSON for each request, on standard error

    def known(self, host: str) -> bool:
        """An address is always ours if we listen at all of them: only names can be made to point here."""
        if host in HOSTS or host == self.host or host in self.names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.host in EVERYWHERE

    def holds(self, given: str) -> bool:
        """The key, as a bearer's token; or as a password, which a browser asks for."""
        kind, _, rest = given.partition(" ")
        if kind.lower() == "basic":
            try:
                rest = base64.b64decode(rest, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                return False
        elif kind.lower() != "bearer":
            return False
        return secrets.compare_digest(rest.strip().encode(), (self.key or "").encode())


@dataclass
class Note:
    """What is known of a request while it is answered; handlers add to it."""

    id: str
    route: str = "other"
    status: int = 0
    model: str | None = None
    read: int = 0  # tokens
    written: int = 0
    began: float = field(default_factory=time.perf_counter)


class Door:
    def __init__(self, app: ASGIApp, manners: Manners, metrics: Metrics, routes: Collection[str]):
        self.app, self.manners, self.metrics, self.routes = app, manners, metrics, frozenset(routes)
        self.inside = 0  # requests that have a place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers, path = Headers(scope=scope), scope["path"]
        given = headers.get("x-request-id", "")
        note = Note(given if SANE.fullmatch(given) else secrets.token_hex(8))
        if path in self.routes:
            note.route = path
        elif path.startswith("/v1/models/"):
            note.route = "/v1/models/{model}"
        elif page(path):
            note.route = "page"
        scope["note"] = note

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note.status = message["status"]
                message["headers"] += FOR_DATA if path.startswith("/v1/") else FOR_PAGES
                message["headers"].append((b"x-request-id", note.id.encode()))
            await send(message)

        placed = scope["method"] == "POST"
        try:
            wrong = self.refusal(path, headers)
            if wrong is None and placed and self.inside >= self.manners.most:
                wrong = full()
            if wrong is not None:
                await answer(path, wrong)(scope, receive, noted)
                return
            self.inside += placed
            try:
                await self.app(scope, receive, noted)
            finally:
                self.inside -= placed
        finally:
            self.written_down(note, scope["method"])

    def refusal(self, path: str, headers: Headers) -> Wrong | None:
        m, at = self.manners, headers.get("host", "")
        if not m.known(named(at)):
            return Wrong(421, f"this server answers to {' and '.join(sorted({*HOSTS, *m.names}))} only")
        origin, ours = headers.get("origin"), {f"http://{at}"}
        if named(at) in m.names:
            ours.add(f"https://{at}")
        if origin is not None and origin not in ours:
            return Wrong(403, "other pages may not ask this server")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Wrong(403, "other pages may not ask this server")
        if m.key is not None and path not in OPEN and not m.holds(headers.get("authorization", "")):
            ask = 'Bearer realm="regard"' if path.startswith("/v1/") else 'Basic realm="regard"'
            said = "give the server's key: Authorization: Bearer KEY"
            return Wrong(401, said, None, "invalid_api_key", {"WWW-Authenticate": ask})
        return None

    def written_down(self, note: Note, method: str) -> None:
        """A request's line in the log. Never what was asked or answered."""
        status, seconds = note.status or GONE, time.perf_counter() - note.began
        self.metrics.request(note.route, status, seconds)
        if note.model is not None:
            self.metrics.spent(note.model, note.read, note.written)
        if not self.manners.log:
            return
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": note.id,
            "method": method,
            "route": note.route,
            "status": status,
            "ms": round(1000 * seconds, 1),
        }
        if note.model is not None:
            line |= {"model": note.model, "prompt_tokens": note.read, "completion_tokens": note.written}
        sys.stderr.write(json.dumps(line) + "\n")


FOR_PAGES = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
FOR_DATA = [(name.lower().encode(), HEADERS[name].encode()) for name in PLAIN]


def page(path: str) -> bool:
    return path == "/" or path.startswith(("/page/", "/api/", "/models/"))


def named(host: str) -> str:
    """A Host header without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rsplit(":", 1)[0].lower()
