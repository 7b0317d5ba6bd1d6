"""Processes of `python -m ...` and `python -c ...` that start at once: forks of one that has imported torch.

That one is this file as a script. It has no threads, and has computed nothing yet.
"""

import atexit
import functools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from typing import Any, TextIO

PRELOAD = """
import torch, torch._dynamo  # optimizers ask for the latter
import regard.cli, regard.training.build, regard.runs.load, regard.runs.ensemble, regard.serve.server
import regard.serve.app, regard.serve.page_app, regard.viewer.session
regard.training.throughput.peak = lambda device, bf16: 1e9  # measuring takes longer than a tiny run
regard.serve.log.CLOSE_SECONDS = 60.0  # a busy machine may need more than usual for the last lines
regard.training.plan.follow.has_bf16 = regard.training.plan.speed.has_bf16 = lambda device: False
"""


class Process(subprocess.Popen[str]):
    """A fork that runs `python WORDS`, to be used as any process; `words` begin with -m or -c."""

    def __init__(self, *words: object, **options: Any) -> None:
        super().__init__(
            [str(word) for word in words], **{"stdout": -1, "stderr": -1, "text": True} | options
        )

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_more,
    ) -> None:  # fmt: skip
        self._status, theirs = socket.socketpair()
        environment = dict(os.environ) if env is None else env
        request = {"words": args, "cwd": str(cwd or os.getcwd()), "environment": environment}
        streams = [n if own < 0 else own for n, own in enumerate((p2cread, c2pwrite, errwrite))]
        with theirs:
            socket.send_fds(start_server()[0], [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self.pid = int.from_bytes(self._status.recv(4), "little")
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = self._status.recv(4)
        self._status.close()
        return self.pid, int.from_bytes(status, "little")

    def _internal_poll(self, *_args: Any, **_options: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


@functools.cache
def start_server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks; it ends when the socket is closed."""
    mine, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, __file__, str(theirs.fileno()), *sys.path]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(words, env=environment, pass_fds=[theirs.fileno()])
    atexit.register(process.wait)
    atexit.register(mine.close)  # the last is the first
    return mine, process


def wait_for_request(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; return it in the fork, with its standard streams."""
    forks: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for handle, _ in poll.poll():
            if handle in forks:
                pid, status = forks.pop(handle)
                poll.unregister(handle)
                os.close(handle)
                with status:
                    status.send(os.waitpid(pid, 0)[1].to_bytes(4, "little"))
                continue
            message, streams, _, _ = socket.recv_fds(requests, 2**20, 4)
            if not message:
                sys.exit()
            status = socket.socket(fileno=streams.pop())
            if not (pid := os.fork()):
                for n, stream in enumerate(streams):
                    os.dup2(stream, n)
                for stream in {*streams} - {0, 1, 2}:
                    os.close(stream)
                for other, socket_of_other in forks.items():
                    os.close(other)
                    socket_of_other[1].close()
                requests.close()
                status.close()
                request: dict[str, Any] = json.loads(message)
                return request
            for stream in streams:
                os.close(stream)
            status.send(pid.to_bytes(4, "little"))
            handle = os.pidfd_open(pid)
            forks[handle] = pid, status
            poll.register(handle, select.POLLIN)


def open_streams() -> None:
    """As Python opens them when it starts."""

    def open_stream(n: int, mode: str, **options: Any) -> TextIO:
        return open(n, mode, closefd=False, **options)

    sys.stdin = sys.__stdin__ = open_stream(0, "r")
    sys.stdout = sys.__stdout__ = open_stream(1, "w", buffering=1 if os.isatty(1) else -1)
    sys.stderr = sys.__stderr__ = open_stream(2, "w", buffering=1, errors="backslashreplace")


def main() -> None:
    handle, *sys.path = sys.argv[1:]
    exec(PRELOAD, {})
    request = wait_for_request(socket.socket(fileno=int(handle)))
    # As in a terminal: under nohup, or in the background of a script, these are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    open_streams()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    kind, what, *words = request["words"]
    sys.argv = [what, *words]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(what, {"__name__": "__main__"})


if __name__ == "__main__":
    main()
