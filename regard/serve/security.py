"""Who may use the server: allowed hosts, same-origin pages, and the API key.

A request is refused before its body is read if it names a foreign host (DNS rebinding), comes from another
website, or lacks the key. Every response gets the security headers.
"""

import base64
import binascii
import ipaddress
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.errors import UserError
from regard.serve.errors import APIError, error_response

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost"})
PUBLIC_PATHS = ("/health", "/ready")  # no key needed
ANY_ADDRESS = ("0.0.0.0", "::")  # listen at every address of the machine
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
DATA_HEADERS = ("X-Content-Type-Options", "Cache-Control")  # the characters that JSON needs
RAW_PAGE_HEADERS = [(name.lower().encode(), value.encode()) for name, value in PAGE_HEADERS.items()]
RAW_DATA_HEADERS = [(name.lower().encode(), PAGE_HEADERS[name].encode()) for name in DATA_HEADERS]


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """The rules for the requests that are answered."""

    host: str = "127.0.0.1"  # the address to listen at
    names: Collection[str] = ()  # further host names, for example those of a proxy
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is None:
            return
        if not self.key.strip():
            raise UserError("the API key is empty; give --api-key or REGARD_API_KEY a value, or unset it")
        if self.key != self.key.strip() or not self.key.isprintable():
            raise UserError(
                "the API key has spaces at its ends or control characters, which clients can't send"
            )

    def allows_host(self, host: str) -> bool:
        """Return whether a host name is accepted. If the server listens at all addresses, every IP address
        is: DNS can redirect only names."""
        if host in LOCAL_HOSTS or host == self.host or host in self.names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.host in ANY_ADDRESS

    def allows_key(self, authorization: str) -> bool:
        """Accept the key as a bearer token, or as the password that a browser asks for."""
        scheme, _, text = authorization.partition(" ")
        credentials = text.strip().encode("latin-1")  # as Starlette decodes headers
        if scheme.lower() == "basic":
            try:
                credentials = base64.b64decode(credentials, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return any(secrets.compare_digest(credentials, known) for known in self.encoded_keys)

    @cached_property
    def encoded_keys(self) -> list[bytes]:
        """The key in the encodings of clients, which differ in letters beyond ASCII."""
        key = self.key or ""
        return [key.encode(), key.encode("latin-1")] if max(key) < "\u0100" else [key.encode()]


class SecurityMiddleware:
    def __init__(self, app: ASGIApp, config: SecurityConfig):
        self.app, self.config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        extra = security_headers(path)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += extra
            await send(message)

        error = self.check(path, Headers(scope=scope))
        app = self.app if error is None else error_response(path, error)
        await app(scope, receive, send_with_headers)

    def check(self, path: str, headers: Headers) -> APIError | None:
        """Return the reason to refuse a request, if there is one."""
        config, host = self.config, headers.get("host", "")
        name = host_name(host)
        if not config.allows_host(name):
            names = " and ".join(sorted({*LOCAL_HOSTS, *config.names}))
            return APIError(421, f"this server answers requests to {names} only")
        origins = {f"http://{host}"}
        if name in config.names:  # behind a proxy that speaks TLS
            origins.add(f"https://{host}")
        same_origin = headers.get("origin") in (None, *origins)
        if not same_origin or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return APIError(403, "requests from other pages are not allowed")
        if config.key is None or path in PUBLIC_PATHS or config.allows_key(headers.get("authorization", "")):
            return None
        challenge = 'Bearer realm="regard"' if path.startswith("/v1/") else 'Basic realm="regard"'
        message = "a valid API key is needed: Authorization: Bearer KEY"
        return APIError(401, message, None, "invalid_api_key", {"WWW-Authenticate": challenge})


def security_headers(path: str) -> list[tuple[bytes, bytes]]:
    """The headers of all responses for this path."""
    return RAW_DATA_HEADERS if path.startswith("/v1/") else RAW_PAGE_HEADERS


def host_name(host: str) -> str:
    """A Host header without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rsplit(":", 1)[0].lower()
