"""The page of a run that is being trained, in a process that the training starts and controls over pipes.

`regard.training.live` runs it with FOLDER [INPUT], at low priority, and defines the messages.
"""

import json
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from regard.cancel import make_cancellable
from regard.errors import UserError, first_line
from regard.runs.film import film_steps
from regard.runs.layout import published
from regard.runs.load import load, load_frame
from regard.runs.model import Model
from regard.serve.errors import APIError
from regard.serve.lazy_page import LazyPage
from regard.serve.page import PageRoutes
from regard.serve.page_app import protect_page
from regard.serve.protocol import Json
from regard.serve.registry import ServerLimits
from regard.serve.server import PORT, bind_socket, keep_objects, uvicorn_config
from regard.viewer.session import Session

MAX_RATE = 100.0  # times the schedule's learning rate
FIRST_FRAME = 600.0  # seconds that the page waits for the run's first frame
SHARE = 0.02  # of one core, at most, is used for pages that follow the training
IDLE_SHARE = 0.25  # the same while a core is idle
LOOK_SHARE = 0.005  # of the time, at most, is used to look at its log and its film


def is_core_idle() -> bool:
    """Whether the last minute left one of the cores without work, on average."""
    return os.getloadavg()[0] <= (os.cpu_count() or 1) - 1


class Follower:
    """What pages show that follow a training, so that they use a small share of the time: a newer frame once
    this process has worked little enough since the one before, and what the log has once the time since then
    is long against that of reading it."""

    def __init__(self) -> None:
        self.progress: Json = {}
        self.newest: int | None = None
        self.chosen_at = self.chosen_used = self.look_at = 0.0

    def look(self, session: Session, is_training: bool) -> Json:
        """The progress of the run, with the newest frame that pages should show."""
        now, used = time.monotonic(), time.process_time()
        if not is_training or now >= self.look_at:
            self.progress = session.progress()
            self.look_at = now + (time.process_time() - used) / LOOK_SHARE
        steps = [step for step, _ in self.progress["film"]]
        share = IDLE_SHARE if is_core_idle() else SHARE
        has_time = used - self.chosen_used <= share * (now - self.chosen_at)
        if not is_training or has_time or self.newest not in steps:
            self.newest, self.chosen_at, self.chosen_used = max(steps, default=None), now, used
        return self.progress | {"step": session.model.step, "newest": self.newest}


class Training:
    """The training that started this process: its progress, and requests to it."""

    def __init__(self, send: Callable[[Json], None]):
        self.send = send
        self.token = secrets.token_urlsafe(16)  # for requests to it; only the printed address has it
        self.state: Json = {"paused": False, "rate": 1.0, "ended": False}
        self.begun = threading.Event()  # there is a run to show
        self.on_end: Callable[[], None] = lambda: None

    def allows(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())

    def follow(self, lines: IO[bytes]) -> None:
        """Read the progress of the training until it ends."""
        for line in lines:
            self.state = json.loads(line)
            self.begun.set()
            if self.state["ended"]:
                self.on_end()


class LiveRoutes(PageRoutes):
    """The page, and the controls of the training."""

    def __init__(self, training: Training, model: Model, first: Session, timeout: float):
        super().__init__(model, first, step_timeout=timeout)
        self.training, self.follower = training, Follower()

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("/api/training", self.control, methods=["POST"])]

    def describe_progress(self, session: Session) -> Json:
        state = self.training.state
        is_training = not (state["paused"] or state["ended"])
        return self.follower.look(session, is_training) | {"control": state}

    def session_or_first(self, request: Request) -> Session:
        """Progress and log are the same for all sessions, also those that are no longer in memory."""
        return self.sessions.sessions.get(request.query_params.get("trace", ""), self.first)

    async def control(self, request: Request) -> Response:
        """Pause or continue the training, or change its learning rate. Other users of the machine, who can
        reach the page, have no token."""
        if not self.training.allows(request.headers.get("x-token", "")):
            raise APIError(
                403, "the token is missing; open the page by the address that the training printed"
            )
        body = await self.read_object(request)
        pause, rate = body.get("pause"), body.get("rate")
        if self.training.state["ended"]:
            raise APIError(409, "this training has ended")
        if pause is not None and not isinstance(pause, bool):
            raise APIError(400, "pause: give true or false")
        if rate is not None and not is_rate(rate):
            raise APIError(400, f"rate: give a number above 0, up to {MAX_RATE:g}")
        wanted = {"pause": pause, "rate": None if rate is None else float(rate)}
        asked = {name: value for name, value in wanted.items() if value is not None}
        if not asked:
            raise APIError(400, "give pause or rate")
        self.training.send(asked)
        return JSONResponse({"asked": asked})


def is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value <= MAX_RATE


def newest_model(folder: Path, training: Training, seconds: float = FIRST_FRAME) -> Model:
    """The model of a run: its newest frame; once training has ended, the final one."""
    if training.state["ended"] and published(folder).is_file():
        return load(folder, "cpu")
    until = time.monotonic() + seconds
    while not (steps := film_steps(folder)):
        if time.monotonic() > until:
            raise UserError(f"{folder}: the film of this run has no frame")
        time.sleep(0.1)
    return load_frame(folder, steps[-1])


def live_app(
    folder: Path, input: str | None, training: Training, limits: ServerLimits | None = None
) -> ASGIApp:
    """The application: the page during training, which is built again when training ends."""
    limits = limits or ServerLimits()

    def build() -> Router:
        model = newest_model(folder, training)
        make_cancellable(model.model)
        first = Session(model, model.task.example_input() if input is None else model.open_input(input))
        return Router(LiveRoutes(training, model, first, limits.timeout).routes())

    page = LazyPage(build, limits.timeout)

    def rebuild() -> None:
        page.router = None

    training.on_end = rebuild
    return protect_page(page, limits)


def main() -> None:
    folder, *rest = sys.argv[1:]
    lines, sys.stdout = sys.stdout, sys.stderr  # printed text must not mix with messages
    torch.set_num_threads(1)

    def send(message: Json) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    def follow() -> None:
        training.follow(sys.stdin.buffer)
        os._exit(0)  # the training's process has ended

    training = Training(send)
    threading.Thread(target=follow, daemon=True).start()
    training.begun.wait()
    try:
        app = live_app(Path(folder), rest[0] if rest else None, training)
        listener = bind_socket(PORT)
        keep_objects()
        send({"url": f"http://127.0.0.1:{listener.getsockname()[1]}/#follow=1&control={training.token}"})
        uvicorn.Server(uvicorn_config(app)).run([listener])
    except Exception as error:
        send({"problem": str(error) if isinstance(error, UserError) else first_line(error)})
        raise


if __name__ == "__main__":
    main()
