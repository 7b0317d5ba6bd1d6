"""Several processes that serve the same models at one address, under uvicorn's process manager.

The parent binds the socket, so that connections wait in it while a worker is replaced. Without a GPU it also
loads the models: its forks share the weights, and one that dies is replaced at once. With GPUs, each worker
is a new process that loads them to a GPU of its own.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import uvicorn
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import SIGNALS, Process

from regard.data.decoders import processors
from regard.errors import UserError
from regard.runs.load import load
from regard.runs.model import Model, best_device
from regard.serve.peers import MAX_HEAD, Peers, answer_peers
from regard.serve.registry import ServerLimits
from regard.serve.security import SecurityConfig
from regard.serve.server import (
    BACKLOG,
    DRAIN,
    DrainingServer,
    listen,
    open_server,
    print_address,
    start_timer,
)
from regard.serve.threads import call_in_loop

STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PING = 1.0  # seconds for a worker to answer its parent
MAX_MISSED = 30  # pings in a row without an answer, after which a worker counts as hung
FORK_SECONDS = 60.0  # for a fork to be ready; a new process may take longer, as long as it loads a model
MAX_FAILURES = 5  # workers in a row at one place that end before they are ready, after all were ready once
STARTING = 0.05  # seconds between two checks of starting workers
PARENT_DEAD = 1.0  # seconds between two checks that the parent is alive
ACCEPTED = 1  # connections that a worker accepts at a time, so that simultaneous ones are shared


@dataclass(frozen=True)
class WorkerSetup:
    """The settings of every worker."""

    folders: dict[str, str]  # of models, by name
    dtype: str
    security: SecurityConfig
    limits: ServerLimits
    log: bool
    count: int
    paths: tuple[str, ...] = ()  # of the sockets for requests of other workers
    models: dict[str, Model] | None = None  # None: each worker loads its own
    adapter: str | None = None  # of the model, if there is only one

    def load(self, device: str | None = None) -> dict[str, Model]:
        return {name: load(folder, device, self.dtype, self.adapter) for name, folder in self.folders.items()}

    @property
    def worker_limits(self) -> ServerLimits:
        """The limits of one worker: its share of the memory and the page's places, and its own API places."""
        limits, n = self.limits, self.count
        return replace(
            limits,
            body_memory=max(limits.body, limits.body_memory // n),
            page_places=max(1, limits.page_places // n),
            page_queue=max(1, limits.page_queue // n),
        )


class SharedListener(socket.socket):
    """A socket at which several processes listen; each accepts few connections at a time."""

    def listen(self, backlog: int = BACKLOG) -> None:
        super().listen(BACKLOG)  # asyncio passes the number of connections that it accepts at a time


class WorkerServer(DrainingServer):
    """The server of a worker, which also answers the others.

    Ctrl-C, and a second signal, are for the parent: both may go to all processes at once.
    """

    def __init__(self, config: uvicorn.Config, bound: float, peers: socket.socket):
        super().__init__(config, bound)
        self.peers = peers
        self.loop: asyncio.AbstractEventLoop | None = None  # once it runs

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        handle = answer_peers(self.config.app.routes)  # type: ignore[union-attr]

        async def count_task(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task: Any = asyncio.current_task()
            self.server_state.tasks.add(task)  # which uvicorn lets finish
            try:
                await handle(reader, writer)
            finally:
                self.server_state.tasks.discard(task)

        await asyncio.start_unix_server(count_task, sock=self.peers, limit=MAX_HEAD)
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGINT and not self.should_exit:
            super().handle_exit(sig, frame)


class Worker(Process):
    """One of the processes, as its parent sees it; `target` runs in the process itself."""

    def __init__(self, index: int, setup: WorkerSetup, listener: socket.socket, peers: socket.socket):
        self.index, self.setup, self.listener, self.peers = index, setup, listener, peers
        self.parent, self.began, self.is_started, self.missed = os.getpid(), time.monotonic(), False, 0
        self._server: WorkerServer | None = None
        self.parent_conn, self.child_conn = Pipe()
        self.errors, self.error_sender = Pipe(duplex=False)
        context: Any = multiprocessing.get_context("spawn" if setup.models is None else "fork")
        self.process = context.Process(target=self.target)

    # In the parent

    def start(self) -> None:
        """Start the process; signals wait until it can handle them."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def is_alive(self, timeout: float = PING) -> bool:
        """Return whether it runs, and answers or is still starting."""
        if not self.process.is_alive():
            return False
        if not self.is_started:
            self.is_started = self.is_ready(timeout)
            forked = self.setup.models is not None
            return self.is_started or not forked or time.monotonic() - self.began < FORK_SECONDS
        self.missed = 0 if self.ping(timeout) else self.missed + 1
        return self.missed < MAX_MISSED

    def describe_end(self) -> str:
        code = self.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"worker {self.index} (process {self.pid}) {how}"

    # In the process itself

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        for sig in STOPPING:
            signal.signal(sig, signal.SIG_DFL if sig == signal.SIGTERM else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        threading.Thread(target=self.always_pong, daemon=True).start()
        setup = self.setup
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, processors() // setup.count))
        try:
            models = setup.models
            if models is None:
                models = setup.load(f"cuda:{self.index}" if torch.cuda.is_available() else None)
            peers, limits = Peers(self.index, setup.paths), setup.worker_limits
            with open_server(models, setup.security, limits, setup.log, peers) as config:
                config.backlog = ACCEPTED
                self._server = WorkerServer(config, limits.timeout + DRAIN, self.peers)
                self._server.run([SharedListener(fileno=self.listener.detach())])
        except UserError as error:
            self.error_sender.send(str(error))
            sys.exit(2)

    def always_pong(self) -> None:
        """Answer the parent's pings, in the event loop once it runs: if it hangs, no ping is answered.

        If the parent is dead, nothing manages the workers: finish and end.
        """
        while os.getppid() == self.parent:
            try:
                if self.child_conn.poll(PARENT_DEAD):
                    self.child_conn.recv()
                    loop = None if self._server is None else self._server.loop
                    if loop is None:
                        self.child_conn.send(False)
                    else:
                        call_in_loop(loop, self.pong)
            except (OSError, EOFError):  # the parent has closed it and waits for the end
                return
        os.kill(os.getpid(), signal.SIGTERM)

    def pong(self) -> None:
        with contextlib.suppress(OSError):  # the parent has closed it and waits for the end
            self.child_conn.send(True)


class WorkerManager(Multiprocess):
    """Starts workers, replaces those that die, and ends them all at a signal."""

    processes: list[Worker]  # type: ignore[assignment]

    def __init__(self, setup: WorkerSetup, listener: socket.socket, peers: list[socket.socket]):
        self.setup, self.listener, self.peers = setup, listener, peers
        self.status = 0  # the exit status, after a signal
        # At each place, workers in a row that ended before they were ready
        self.failures, self.max_failures = [0] * setup.count, 1
        self.error: UserError | str = ""  # why there are no workers
        before = {sig: signal.getsignal(sig) for sig in SIGNALS}
        super().__init__(uvicorn.Config("", workers=setup.count, log_config=None), [listener])
        for sig, handler in before.items():
            stops = sig in STOPPING and handler is not signal.SIG_IGN  # set by nohup
            signal.signal(sig, self.note_signal if stops else handler)

    def note_signal(self, sig: int, frame: FrameType | None) -> None:
        """The first signal is handled soon. The second ends everything at once."""
        if self.status:
            self.kill_all()
            sys.exit(128 + sig)
        self.status = 128 + sig
        self.signal_queue.append(sig)

    def handle_hup(self) -> None:
        self.should_exit.set()

    def init_processes(self) -> None:
        """Start all workers. The address is printed when they answer."""
        self.processes = [self.start_worker(index) for index in range(self.setup.count)]
        while not all(worker.is_started for worker in self.processes):
            self.handle_signals()
            self.keep_subprocess_alive()
            if self.should_exit.wait(STARTING):
                return
        print_address(self.listener)
        self.max_failures = MAX_FAILURES

    def start_worker(self, index: int) -> Worker:
        worker = Worker(index, self.setup, self.listener, self.peers[index])
        worker.start()
        return worker

    def keep_subprocess_alive(self) -> None:
        for index, worker in enumerate(self.processes):
            if self.status or worker.is_alive():  # after a signal, no worker is replaced
                continue
            worker.kill()  # if it hangs
            worker.join()
            self.failures[index] = 0 if worker.is_started else self.failures[index] + 1
            if worker.errors.poll():
                self.error = UserError(worker.errors.recv())
            elif self.failures[index] >= self.max_failures:
                self.error = f"{worker.describe_end()} before it was ready"
            if self.error:
                self.should_exit.set()
                return
            print(f"{worker.describe_end()}; another takes its place", file=sys.stderr, flush=True)
            self.processes[index] = self.start_worker(index)

    def terminate_all(self) -> None:
        self.listener.close()  # connections are refused from now on, instead of waiting in vain
        start_timer(self.setup.limits.timeout + DRAIN + 2, self.kill_all)
        super().terminate_all()

    def kill_all(self) -> None:
        for worker in self.processes:
            worker.process.kill()


def serve_with_workers(setup: WorkerSetup, port: int | None = None) -> NoReturn:
    """Serve models with several processes until a signal comes; see serve_models."""
    if setup.count < 1:
        raise UserError(f"--workers {setup.count}: give a number from 1 up")
    gpus = torch.cuda.device_count() if best_device().type == "cuda" else 0
    if 0 < gpus < setup.count:
        raise UserError(
            f"--workers {setup.count}: there are {gpus} GPUs, and each worker takes one; give {gpus}"
        )
    listener, security = listen(setup.security, port)
    setup = replace(setup, security=security)
    if sys.platform == "linux" and best_device().type == "cpu":
        torch.set_num_threads(1)  # a fork does not have the threads of its parent, but would wait for them
        setup = replace(setup, models=setup.load())
        gc.collect()
        gc.freeze()  # the collector would write to all objects, and so copy what the forks share
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:  # which others can't read
        paths = tuple(str(Path(folder, str(index))) for index in range(setup.count))
        manager = WorkerManager(replace(setup, paths=paths), listener, [bind_unix(path) for path in paths])
        manager.run()
    if isinstance(manager.error, UserError):
        raise manager.error
    if manager.error:
        print(f"regard: {manager.error}", file=sys.stderr)
    sys.exit(manager.status or 1)


def bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(BACKLOG)
    return listener
