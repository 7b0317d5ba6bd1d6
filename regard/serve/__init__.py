"""A model over HTTP, on this machine only: the page."""

import socket
import sys
import webbrowser
from collections.abc import Callable
from urllib.parse import urlencode

from regard.look.page import Shown
from regard.run import Model

from .app import application

PORT = 7447  # or any other that is free


def bound(port: int) -> socket.socket:
    """A socket of this machine's own address; any port if this one is taken."""
    for wanted in (port, 0):
        # named TCP, or asyncio would leave its small packets waiting for each other
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted))
        except OSError:
            listener.close()
            if not wanted:
                raise
        else:
            return listener
    raise AssertionError


def serve(
    model: Model,
    first: Shown,
    state: dict[str, str] | None = None,
    port: int = PORT,
    opens: Callable[[str], object] = webbrowser.open,
) -> None:
    """The page, until it is stopped (Ctrl-C); a browser opens it."""
    import uvicorn

    listener = bound(port)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/" + (f"#{urlencode(state)}" if state else "")
    options = uvicorn.Config(
        application(model, first), log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    listener.listen()  # from now on a browser is heard, if answered a moment later
    print(address, flush=True)
    print("Ctrl-C ends it", file=sys.stderr)
    opens(address)
    uvicorn.Server(options).run([listener])
