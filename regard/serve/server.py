"""Run an application: sockets, threads and shutdown."""

import gc
import math
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp

from regard.errors import UserError
from regard.runs.model import Model
from regard.serve.app import create_app
from regard.serve.page import page_app
from regard.serve.registry import ModelRegistry, ServerLimits
from regard.serve.security import SecurityConfig
from regard.viewer.session import Session

PORT = 7447  # the default; `regard look` takes another if it is in use
BACKLOG = 2048  # connections that the system keeps until they are accepted
SWITCH_INTERVAL = 0.001  # seconds until the event loop's thread and the engines' threads take turns


def bind_socket(port: int, host: str = "127.0.0.1", exact: bool = False) -> socket.socket:
    """A socket at an address of this machine; unless `exact`, at any port if this one is in use."""
    for number in (port,) if exact else (port, 0):
        try:
            kind, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError, OverflowError):
            raise UserError(
                f"--host {host}: not an address of this machine; 127.0.0.1 is the usual one"
            ) from None
        # With the protocol named, asyncio turns off Nagle's algorithm, which would delay small packets.
        listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except (OSError, OverflowError) as e:
            listener.close()
            if exact or not number:
                reason = getattr(e, "strerror", None) or e
                raise UserError(f"--host {host} --port {number}: {reason}; choose another") from None
        else:
            return listener
    raise AssertionError


def uvicorn_config(app: ASGIApp, **options: Any) -> Any:
    import uvicorn

    return uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none", **options)


@contextmanager
def run_in_thread(app: ASGIApp) -> Iterator[int]:
    """Serve an application in a thread; yields its port."""
    import uvicorn

    listener = bind_socket(0)
    server = uvicorn.Server(uvicorn_config(app))
    listener.listen()
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def serve_page(
    model: Model,
    first: Session,
    state: dict[str, str] | None = None,
    port: int = PORT,
    open_browser: Callable[[str], object] = webbrowser.open,
    others: Sequence[Model] = (),
) -> None:
    """Serve the page until Ctrl-C and open it in a browser; `others` are models to compare with."""
    import uvicorn

    listener = bind_socket(port)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/" + (f"#{urlencode(state)}" if state else "")
    server = uvicorn.Server(uvicorn_config(page_app(model, first, others)))
    listener.listen()  # from now on the browser can connect, even if it is answered a moment later
    print(url, flush=True)
    print("Ctrl-C ends it", file=sys.stderr)
    open_browser(url)
    server.run([listener])


def serve_models(
    models: dict[str, Model],
    security: SecurityConfig,
    limits: ServerLimits,
    port: int | None = None,
    log: bool = False,
) -> None:
    """Serve models by name until a signal comes. The first lets running answers finish, a second does not."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:
                os._exit(128 + sig)
            super().handle_exit(sig, frame)

    listener = bind_socket(PORT if port is None else port, security.host, port is not None)
    security = replace(security, names={*security.names, listener.getsockname()[0]})
    registry = ModelRegistry(models, limits)
    config = uvicorn_config(
        create_app(registry, security, log),
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(limits.timeout) + 10,  # for clients that don't read
    )
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()  # what exists by now stays: scanning it again and again would pause the server
    listener.listen(BACKLOG)
    host, number = listener.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{number}/", flush=True)
    print("Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        Server(config).run([listener])
    finally:
        registry.close()
