"""Watch a run while it is trained: the page is served by a child process, which reads the run's folder.

The child process imports its modules while the training reads its data, and has the lowest priority from the
first step on. It reads JSON lines from its standard input (the progress of the training), the first of which
is sent when the run has a frame to show, and writes JSON lines to its standard output (its address, and
requests of the page). It ends when its standard input is closed, at the latest when this process ends.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import regard
from regard.errors import UserError
from regard.training import distributed
from regard.training.film import Film

if TYPE_CHECKING:
    from regard.training.trainer import Trainer

SERVER = "regard.serve.live"  # the child's module, on a higher floor and imported in the child only
NICE = 19  # training has priority if both need the same core
WAKE = 0.05  # seconds between checks whether a paused training continues

Message = dict[str, Any]  # as JSON
_pages: list["LivePage"] = []  # all open pages: they are served until this process ends


class LivePage:
    """The page of one run: its film, and the requests of its users."""

    film: Film

    def __init__(self, folder: Path, input: str | None = None):
        """Start the process that serves the page of the run in `folder`, with this input, or by default the
        task's example."""
        if distributed.WORLD > 1:
            raise UserError(
                f"--look works with one process, not {distributed.WORLD}; leave it out, and open the page "
                "beside the run: regard look RUN INPUT"
            )
        home = str(Path(regard.__file__).parents[1])
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", SERVER, str(folder)]
        self.process = subprocess.Popen(
            command if input is None else [*command, input],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | {"CUDA_VISIBLE_DEVICES": ""},
            process_group=0,  # Ctrl-C stops the training, not the page; in a session of its own, its low
            # priority would count for nothing next to this one where Linux groups processes by sessions
        )
        self.paused = False
        self.requests: SimpleQueue[Message] = SimpleQueue()
        self.url: str | None = None
        self.errors: deque[bytes] = deque(maxlen=1)  # the last line of the child's standard error
        self.problem = False  # the child has reported why there is no page

    def start(self, trainer: "Trainer") -> None:
        """Write the first frame, from which on the run can be shown."""
        with contextlib.suppress(ProcessLookupError):  # the receiver reports if it has ended
            os.setpriority(os.PRIO_PROCESS, self.process.pid, NICE)
        self.film = Film(trainer.folder, trainer.model)
        self.show_frame(trainer)
        _pages.append(self)
        self.receiver = threading.Thread(target=self.receive, args=(trainer,), name="page", daemon=True)
        self.receiver.start()
        self.send_state(trainer)

    def receive(self, trainer: "Trainer") -> None:
        """Read the output of the child process, in a thread, and report if it ends by itself."""
        process = self.process
        reader = threading.Thread(target=self.read_errors, daemon=True)
        reader.start()  # otherwise the child would block when the pipe is full
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.hear(json.loads(line), trainer)
        self.requests.put({"pause": False})  # no page is left to end the pause
        status = process.wait()
        reader.join()
        if (status or self.url is None) and not self.problem:
            reason = b"".join(self.errors).decode(errors="replace").strip()
            reason = reason or f"its process ended with status {status}"
            trainer.reporter.notice(f"the page can't be shown: {reason}; training continues")

    def read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.errors.extend(lines)

    def hear(self, message: Message, trainer: "Trainer") -> None:
        if "url" in message:
            self.url = message["url"]
            trainer.reporter.notice(f"watch it learn: {self.url}")
            if sys.stderr.isatty():
                webbrowser.open(message["url"])
        elif "problem" in message:
            self.problem = True
            trainer.reporter.notice(f"the page can't be shown: {message['problem']}")
        else:
            self.requests.put(message)

    def send_state(self, trainer: "Trainer", ended: bool = False) -> None:
        """Send the progress of the training to the page."""
        state = {"paused": self.paused, "rate": trainer.state.rate, "ended": ended}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the page is gone, but training continues
            self.process.stdin.write(json.dumps(state).encode() + b"\n")
            self.process.stdin.flush()

    # Between two steps

    def between_steps(self, trainer: "Trainer") -> None:
        """Write a frame if it is due, and handle the requests of the page."""
        if self.film.is_due():
            self.show_frame(trainer)
        if not self.requests.empty():
            self.answer(trainer)
        if self.paused:
            self.pause(trainer)

    def show_frame(self, trainer: "Trainer") -> None:
        if (problem := self.film.add(trainer.step)) is not None:
            trainer.reporter.notice(problem)

    def answer(self, trainer: "Trainer") -> None:
        """Handle requests in their order."""
        with contextlib.suppress(Empty):
            while True:
                request = self.requests.get_nowait()
                self.paused = bool(request.get("pause", self.paused))
                rate = request.get("rate", trainer.state.rate)
                if rate != trainer.state.rate:
                    trainer.state.rate = rate
                    trainer.log_rate()
        self.send_state(trainer)

    def pause(self, trainer: "Trainer") -> None:
        """Wait until the page ends the pause or a signal stops training. Pauses don't count as training."""
        began = time.monotonic()
        trainer.reporter.notice(f"paused at step {trainer.step}, as asked on the page")
        self.show_frame(trainer)
        while self.paused and trainer.signal is None:
            time.sleep(WAKE)
            if not self.requests.empty():
                self.answer(trainer)
        self.paused = False
        waited = time.monotonic() - began
        trainer.started += waited
        trainer.log_notice(f"paused at step {trainer.step} for {waited:.1f} s, as asked on the page")
        trainer.pace.start()
        self.send_state(trainer)

    # The end

    def finish(self, trainer: "Trainer") -> None:
        """Write the last frame. The page stays: it shows the final model from now on."""
        self.show_frame(trainer)
        if (problem := self.film.wait()) is not None:
            trainer.reporter.notice(problem)
        self.send_state(trainer, ended=True)

    def close(self) -> None:
        self.film.close()

    def leave(self) -> None:
        """End the page's process, as there is nothing to show."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        self.process.wait()

    def stay(self) -> None:
        """Wait until the page's process ends, or Ctrl-C."""
        print("the page stays open; Ctrl-C ends it", file=sys.stderr)
        self.process.wait()


@contextlib.contextmanager
def opened_page(look: bool | str, folder: Path) -> Iterator[LivePage | None]:
    """Open the page that was asked for, with the given text or the task's example. If the run can't begin, it
    has no page; once it has begun, its page stays."""
    if look and distributed.RANK:
        raise SystemExit(2)  # the first process reports why
    live = LivePage(folder, look if isinstance(look, str) else None) if look else None
    try:
        yield live
    finally:
        if live is not None and live not in _pages:
            live.leave()


def stay_open() -> None:
    """On a terminal, keep the pages of this process open until Ctrl-C; elsewhere nothing would end them."""
    if sys.stdin.isatty():
        for page in _pages:
            page.stay()
