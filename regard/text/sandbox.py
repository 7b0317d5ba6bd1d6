"""Run the untrusted programs of a model, chat templates and tokenizers, in a child process.

The child has limits on its memory and on the processor time of each call. It is reused between calls, and
started again after it exceeds a limit or dies, or if a call is cancelled. It ends with this process: its pipe
closes, and a call that still runs then has a limit.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from regard.cancel import POLL, check_cancelled
from regard.text.sandbox_worker import HEADER, OUT_OF_MEMORY

WORKER = Path(__file__).with_name("sandbox_worker.py")
PATIENCE = 5  # seconds that a call may take for each second of processor time, if others use the processor
MAX_WAIT = 30.0  # seconds that a call waits for earlier ones
MAX_REPLY = 2**28  # bytes
ENVIRONMENT = (
    "TZ",
    "LD_LIBRARY_PATH",
    "TOKENIZERS_PARALLELISM",
    "RAYON_NUM_THREADS",
)  # the environment of a child

Kind = Literal["rejected", "failed", "time", "memory", "busy"]


class SandboxError(Exception):
    """A call that failed, or exceeded a limit."""

    def __init__(self, kind: Kind, message: str = "", line: int | None = None):
        super().__init__(message)
        self.kind, self.line = kind, line


class Sandbox:
    """A child process that runs a "template" or a "tokenizer"; several threads may call it.

    `seconds` is the limit of processor time to load it, `memory` the limit of the child's memory in bytes.
    """

    def __init__(self, program: str, content: bytes, seconds: float, memory: int, **setup: Any) -> None:
        self.program, self.content, self.setup = program, content, setup
        self.seconds, self.memory, self.lock = seconds, memory, threading.Lock()
        with self.lock:
            self._start()

    def call(self, seconds: float, **request: Any) -> tuple[dict[str, Any], bytes]:
        """Call the program, with a limit of processor time. Raise SandboxError if it fails."""
        check_cancelled()
        deadline = time.monotonic() + MAX_WAIT
        while not self.lock.acquire(timeout=POLL):
            check_cancelled()
            if time.monotonic() > deadline:
                raise SandboxError("busy", f"earlier calls take more than {MAX_WAIT:.0f} s")
        try:
            if self.owner != os.getpid() or self.process.poll() is not None:
                self.stop()
                self._start()
            return self._exchange(seconds, request)
        finally:
            self.lock.release()

    def _start(self) -> None:
        paths = json.dumps([path for path in sys.path if path])  # not the current folder
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", WORKER, self.program, str(self.memory), paths],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C is for this process
        )
        os.set_blocking(self.process.stdin.fileno(), False)  # type: ignore[union-attr]
        self.owner = os.getpid()  # after a fork, the pipes belong to the other process
        self.stop = weakref.finalize(self, stop, self.process, self.owner)
        try:
            self._exchange(self.seconds, self.setup, self.content)
        except SandboxError:
            self.stop()
            raise

    def _exchange(
        self, seconds: float, request: dict[str, Any], content: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        text = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        process, deadline = self.process, time.monotonic() + PATIENCE * (1 + seconds)
        try:
            write(process, HEADER.pack(seconds, len(text), len(content)) + text + content, deadline)
            _, length, size = HEADER.unpack(read(process, HEADER.size, deadline))
            if length + size > MAX_REPLY:
                raise SandboxError("memory")
            reply, data = json.loads(read(process, length, deadline)), read(process, size, deadline)
        except (EOFError, BrokenPipeError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # for its own status, before it is killed
            self.stop()
            raise SandboxError(*reason(process.returncode)) from None
        except BaseException:  # also KeyboardInterrupt: this reply would be taken for the next one
            self.stop()
            raise
        if "error" in reply:
            raise SandboxError(reply["error"], reply["message"], reply["line"])
        return reply, data


def reason(status: int) -> tuple[Kind, str]:
    """Describe why a child ended."""
    if status == -signal.SIGPROF:
        return "time", ""
    if status == OUT_OF_MEMORY or status == -signal.SIGABRT:  # Rust's library aborts if there is no memory
        return "memory", ""
    return "failed", f"its process ends with status {status}"


def write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    file, rest = process.stdin.fileno(), memoryview(data)  # type: ignore[union-attr]
    while rest:
        wait_for(file, select.POLLOUT, deadline)
        rest = rest[os.write(file, rest) :]


def read(process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
    file, data = process.stdout.fileno(), bytearray()  # type: ignore[union-attr]
    while len(data) < count:
        wait_for(file, select.POLLIN, deadline)
        chunk = os.read(file, min(count - len(data), 2**20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def wait_for(file: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(file, event)
    while not poll.poll(POLL * 1000):
        check_cancelled()
        if time.monotonic() > deadline:
            raise SandboxError("time")


def stop(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a child, unless it has ended or belongs to another process, and close its pipes."""
    if owner == os.getpid():
        process.kill()
        process.wait()
    process.returncode = process.returncode or 0  # another process's child can't be waited for
    process.stdin.close()  # type: ignore[union-attr]
    process.stdout.close()  # type: ignore[union-attr]
