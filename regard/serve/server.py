"""Run an application: sockets, threads and shutdown."""

import gc
import math
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.types import ASGIApp

from regard.errors import UserError
from regard.runs.model import Model
from regard.serve.app import ModelApp, create_app
from regard.serve.connections import ConnectionLimits, LimitedProtocol
from regard.serve.log import log_in_background
from regard.serve.page_app import page_app
from regard.serve.peers import Peers
from regard.serve.registry import ModelRegistry, ServerLimits
from regard.serve.security import SecurityConfig
from regard.viewer.session import Session

PORT = 7447  # the default; another is taken if it is in use
BACKLOG = 2048  # connections that the system queues until they are accepted
SEND_BUFFER = 2**18  # bytes of a response that the system buffers for a slow client
MAX_FILES = 8192  # open files that are requested; few systems allow less, but many begin with 1024
RESERVED_FILES = 64  # files other than connections
KEPT_SECONDS = 5.0  # for a connection to one of several workers: the next one may go to a less busy worker
DRAIN = 10  # seconds beyond the timeout of an answer, after which a server that got a signal is ended
SWITCH_INTERVAL = 0.0002  # seconds until the event loop's thread and the engines' threads take turns


def bind_socket(port: int, host: str = "127.0.0.1", exact: bool = False) -> socket.socket:
    """A socket that listens at an address of this machine; unless `exact`, another port may be taken."""
    if not 0 <= port < 2**16:
        raise UserError(f"--port {port}: give a number from 0 to 65535")
    for number in (port,) if exact else (port, 0):
        try:
            kind, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError):
            raise UserError(
                f"--host {host}: not an address of this machine; 127.0.0.1 is the usual one"
            ) from None
        # With the protocol named, asyncio turns off Nagle's algorithm, which would delay small packets.
        listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)  # before that, another server could bind the same port
        except OSError as e:
            listener.close()
            if exact or not number:
                raise UserError(f"--host {host} --port {number}: {e.strerror or e}; choose another") from None
        else:
            if number != port:
                print(f"port {port} is in use; this server takes another", file=sys.stderr)
            return listener
    raise AssertionError


def uvicorn_config(app: ASGIApp, limits: ConnectionLimits | None = None, **options: Any) -> Any:
    refuse = app.refuse if isinstance(app, ModelApp) else None
    protocol: Any = partial(LimitedProtocol, limits=limits or ConnectionLimits(), refuse=refuse)
    return uvicorn.Config(
        app,
        http=protocol,
        loop="regard.serve.loop:ServingLoop",
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        **options,
    )


def allow_connections(wanted: int) -> ConnectionLimits:
    """Raise the system's limit of open files for the connections; if that fails, limit these."""
    try:
        import resource
    except ImportError:  # not Unix: no such limit
        return ConnectionLimits(connections=wanted)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    limit = MAX_FILES if hard == unlimited else min(hard, MAX_FILES)
    if soft != unlimited and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    # Half of them: asyncio accepts all waiting connections before it reports the first.
    return ConnectionLimits(
        connections=wanted if soft == unlimited else min(wanted, (soft - RESERVED_FILES) // 2)
    )


@contextmanager
def run_in_thread(app: ASGIApp, limits: ConnectionLimits | None = None) -> Iterator[int]:
    """Serve an application in a thread; yields its port."""
    listener = bind_socket(0)
    server = uvicorn.Server(uvicorn_config(app, limits))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def keep_objects() -> None:
    """Objects that exist by now stay, those of torch and of the model: if the garbage collector scanned them
    again and again, it would pause a server for a tenth of a second each time."""
    gc.freeze()


def serve_page(
    model: Model,
    first: Session,
    state: dict[str, str] | None = None,
    port: int = PORT,
    open_browser: Callable[[str], object] = webbrowser.open,
    compared_models: Sequence[Model] = (),
) -> None:
    """Serve the page until Ctrl-C and open it in a browser; `compared_models` can be compared with it."""
    listener = bind_socket(port)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/" + (f"#{urlencode(state)}" if state else "")
    limits = allow_connections(ConnectionLimits.connections)
    app = page_app(model, first, compared_models)
    server = uvicorn.Server(uvicorn_config(app, limits, timeout_graceful_shutdown=DRAIN))
    print(url, flush=True)
    print("Ctrl-C ends it", file=sys.stderr)
    keep_objects()
    open_browser(url)  # clients can already connect, even if the answer takes a moment
    with log_in_background():
        server.run([listener])


class DrainingServer(uvicorn.Server):
    """The first signal lets running answers finish, for `bound` seconds at the longest; a second ends it."""

    def __init__(self, config: uvicorn.Config, bound: float):
        super().__init__(config)
        self.bound = bound

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)
        start_timer(self.bound, lambda: end_process(sig, self.bound))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # uvicorn raises the signal again: now as an exception, so that the log is written to its end
        signal.signal(signal.SIGHUP, lambda sig, _: sys.exit(128 + sig))


def listen(security: SecurityConfig, port: int | None) -> tuple[socket.socket, SecurityConfig]:
    """A socket at the server's address, which becomes one of its accepted host names."""
    listener = bind_socket(PORT if port is None else port, security.host, port is not None)
    return listener, replace(security, names={*security.names, listener.getsockname()[0]})


def print_address(listener: socket.socket) -> None:
    host, number = listener.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{number}/", flush=True)
    print("Ctrl-C ends it", file=sys.stderr, flush=True)


def serve_models(
    models: dict[str, Model],
    security: SecurityConfig,
    limits: ServerLimits,
    port: int | None = None,
    log: bool = False,
) -> None:
    """Serve models by name until a signal comes. The first lets running answers finish."""

    listener, security = listen(security, port)
    with open_server(models, security, limits, log) as config:
        server = DrainingServer(config, limits.timeout + DRAIN)
        print_address(listener)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # set by nohup
            signal.signal(signal.SIGHUP, server.handle_exit)  # uvicorn handles the others
        server.run([listener])


@contextmanager
def open_server(
    models: dict[str, Model],
    security: SecurityConfig,
    limits: ServerLimits,
    log: bool,
    peers: Peers | None = None,
) -> Iterator[uvicorn.Config]:
    """Start the engines of models; yields the configuration of a server. `peers`: see create_app."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    with log_in_background(pid=peers is not None) as writer:
        registry = ModelRegistry(models, limits)
        # Connections that are not closed for others
        busy = registry.limits.requests + limits.page_places + limits.page_queue
        connections = allow_connections(max(ConnectionLimits.connections, 2 * busy))
        if peers is not None:
            connections = replace(connections, kept_seconds=KEPT_SECONDS)
        config = uvicorn_config(
            create_app(registry, security, writer if log else None, peers),
            connections,
            timeout_graceful_shutdown=math.ceil(limits.timeout) + DRAIN - 2,
        )
        gc.collect()
        keep_objects()
        try:
            yield config
        finally:
            registry.close(finish=False)  # everything that could be finished is finished


def start_timer(seconds: float, function: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def end_process(sig: int, seconds: float) -> None:
    """End the process, even if its threads hang."""
    start_timer(1.0, lambda: os._exit(128 + sig))  # if standard error is not read, writing blocks
    print(f"not shut down within {seconds:g} s of the signal; ended", file=sys.stderr, flush=True)
    os._exit(128 + sig)
