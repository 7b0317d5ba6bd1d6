"""A model over HTTP: its page, on this machine only; or, for programs, everything that it can do."""

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
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.types import ASGIApp

from regard.errors import Mistake
from regard.look.page import Shown
from regard.run import Model

from .app import application

if TYPE_CHECKING:
    from .guard import Manners
    from .house import Limits

PORT = 7447  # or any other that is free
WAITING = 2048  # connections that the system keeps until they are heard
SWITCH = 0.001  # seconds that one thread may keep the others from running: an answer's and the engine's


def bound(port: int, host: str = "127.0.0.1", only: bool = False) -> socket.socket:
    """A socket of this machine's own address, or of another of its; any port if this one is taken, unless
    `only` this one will do."""
    for wanted in (port,) if only else (port, 0):
        try:
            kind, _, _, _, address = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError, OverflowError):
            raise Mistake(f"--host {host}: no address of this machine; 127.0.0.1 is the usual one") from None
        # named TCP, or asyncio would leave its small packets waiting for each other
        listener = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except (OSError, OverflowError) as e:
            listener.close()
            if only or not wanted:
                why = getattr(e, "strerror", None) or e
                raise Mistake(f"--host {host} --port {wanted}: {why}; choose another") from None
        else:
            return listener
    raise AssertionError


@contextmanager
def listening(app: ASGIApp) -> Iterator[int]:
    """An application behind a port of this machine's, served by a thread meanwhile."""
    import uvicorn

    listener = bound(0)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")
    )
    listener.listen()
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def serve(
    model: Model,
    first: Shown,
    state: dict[str, str] | None = None,
    port: int = PORT,
    opens: Callable[[str], object] = webbrowser.open,
    against: Sequence[Model] = (),
) -> None:
    """The page, until it is stopped (Ctrl-C); a browser opens it. `against`: models to compare with."""
    import uvicorn

    listener = bound(port)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/" + (f"#{urlencode(state)}" if state else "")
    options = uvicorn.Config(
        application(model, first, against), log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    listener.listen()  # from now on a browser is heard, if answered a moment later
    print(address, flush=True)
    print("Ctrl-C ends it", file=sys.stderr)
    opens(address)
    uvicorn.Server(options).run([listener])


def open_house(
    models: dict[str, Model], manners: "Manners", limits: "Limits", port: int | None = None
) -> None:
    """Models by name behind one address, until it is stopped: a signal lets what is under way be finished, a
    second one does not."""
    import uvicorn

    from .api import serving
    from .house import House

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit:
                os._exit(128 + sig)
            super().handle_exit(sig, frame)

    listener = bound(PORT if port is None else port, manners.host, port is not None)
    manners = replace(manners, names={*manners.names, listener.getsockname()[0]})
    house = House(models, limits)
    options = uvicorn.Config(
        serving(house, manners),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=WAITING,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(limits.timeout) + 10,  # for those who do not read their answers
    )
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()  # what is there by now stays: looking through all of it again and again would stop everything
    listener.listen(WAITING)
    host, number = listener.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{number}/", flush=True)
    print("Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        Server(options).run([listener])
    finally:
        house.close()
