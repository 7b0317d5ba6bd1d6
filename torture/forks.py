"""Run a function in a fork of this process, with limits on its time and memory."""

import ctypes
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

CRASHED = 70  # the status of a function that raised an exception
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl


@dataclass
class Ended:
    """How a fork ended: its exit status, or minus the signal that killed it."""

    status: int
    late: bool
    output: str
    errors: str

    @property
    def message(self) -> str:
        """The one line that a refused command prints."""
        return next((line for line in self.errors.splitlines() if line.startswith("regard: ")), "")

    def complaint(self, *allowed: int) -> str:
        """Return what is wrong with the way it ended, or nothing."""
        if self.late:
            return "it hangs"
        if "Traceback" in self.errors or self.status not in (*allowed, 2):
            return f"status {self.status}: {' '.join(self.errors.split())[-600:]}"
        if self.status == 2 and sum(l.startswith("regard: ") for l in self.errors.splitlines()) != 1:
            return f"not one line: {self.errors[-600:]!r}"
        return ""


def start(function: Callable[..., Any], *args: Any, output: int = -1, errors: int = -1) -> int:
    """Start the function in a fork; return its process."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        run(function, args, output, errors)
    return pid


def run(function: Callable[..., Any], args: tuple[Any, ...], output: int, errors: int) -> NoReturn:
    status = CRASHED
    try:
        os.setpgid(0, 0)  # to be killed with its children
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if output >= 0:
            os.dup2(output, 1)
            os.dup2(errors, 2)
        function(*args)
        status = 0
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def wait(pid: int, seconds: float) -> tuple[int, bool]:
    """Wait for a fork and kill it when its time is over; return its status and whether it was late."""
    handle = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    late = not poll.poll(seconds * 1000)
    os.close(handle)
    if late:
        kill(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), late


def kill(pid: int) -> None:
    """Kill a fork and its children."""
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue


def has_ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def call(function: Callable[..., Any], *args: Any, seconds: float = 60.0) -> Ended:
    """Run the function in a fork, and wait for it."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pid = start(function, *args, output=output.fileno(), errors=errors.fileno())
        status, late = wait(pid, seconds)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ended(status, late, *texts)


def limit_memory(size: int) -> None:
    """Let this process have so many bytes more than it has now."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + size, hard))


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition became true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
