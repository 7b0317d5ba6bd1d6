"""Run the attacks of a suite in forks of this process, several at once, and note each outcome in a file."""

import contextlib
import importlib
import json
import math
import os
import random
import select
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torture import forks, syscalls
from torture.outcome import Context, Outcome, Suite, Summary, summarize

FAST = Path("/dev/shm")  # a folder where flushing to disk takes no time
TEMPORARY = "torture-"


class SuiteModule(Protocol):
    """A module of this package with a kind of attack."""

    __name__: str
    SUITE: Suite

    def prepare(self, place: Path, is_short: bool) -> dict[str, Any]:
        """Make what all attacks need in this folder, or only what a few of them need."""

    def attack(self, context: Context, number: int) -> Outcome:
        """Make one attack in the current folder, which is removed afterwards."""


@dataclass
class Worker:
    """A process with some attacks."""

    pid: int
    pipe: int
    numbers: deque[int]
    since: float
    text: bytes = b""
    outcomes: list[tuple[int, Outcome, float]] = field(default_factory=list)


def load_suite(name: str) -> SuiteModule:
    module: Any = importlib.import_module(f"torture.{name}")
    suite: SuiteModule = module
    return suite


def run_suite(
    name: str, scale: float | None, seed: int, jobs: int, out: Path, code: str, minutes: float = math.inf
) -> dict[str, Any]:
    """Make those attacks that the state file does not have yet; return the summary of all so far.

    `scale` is the share of attacks; None: as few as in the test suite. No attack begins after `minutes`.
    """
    suite = load_suite(name)
    if suite.SUITE.needs_syscalls and not syscalls.is_loaded():
        about = {"scale": 0, "total": suite.SUITE.count, "setup": 0, "code": code, "seconds": 0, "longest": 0}
        return about | asdict(Summary(ends={"not run, this needs a C compiler": 1}))
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=FAST if os.access(FAST, os.W_OK) else None) as top:
        place = Path(top)
        begun = time.monotonic()
        shared = prepare(suite, place, scale is None)
        setup = round(time.monotonic() - begun, 1)
        total = int(shared.get("count", suite.SUITE.count))
        many = suite.SUITE.short if scale is None else round(scale * total)
        numbers = random.Random(seed).sample(range(total), max(1, min(total, many)))
        state = StateFile(out / f"{name}.jsonl", {"code": code, "seed": seed, "total": total})
        context = Context(place, seed, shared)
        missing = [number for number in numbers if number not in state.outcomes]
        show = Progress(name, len(numbers), len(numbers) - len(missing))
        with (out / f"{name}.log").open("w") as log:  # what libraries print
            attacks = attack_all(suite, context, missing, 1 if suite.SUITE.alone else jobs, log.fileno())
            with contextlib.closing(attacks):
                for number, outcome, seconds in attacks:
                    state.add(number, outcome, seconds)
                    show.advance(outcome)
                    if time.monotonic() - begun > 60 * minutes:
                        break
        show.close()
    outcomes = {number: state.outcomes[number] for number in numbers if number in state.outcomes}
    times = [state.seconds[number] for number in outcomes]
    about = {"scale": len(outcomes) / total, "total": total, "setup": setup, "code": code}
    about |= {"seconds": round(sum(times), 1), "longest": round(max(times), 1)}
    return about | asdict(summarize(outcomes, suite.SUITE.limits))


def prepare(suite: SuiteModule, place: Path, is_short: bool) -> dict[str, Any]:
    """Prepare in a fork, so that this process stays small and has no threads."""

    def write() -> None:
        shared = suite.prepare(place, is_short)
        (place / "shared.json").write_text(json.dumps(shared))

    ended = forks.call(write, seconds=900)
    if ended.status:
        raise SystemExit(f"torture: {suite.__name__} could not be prepared\n{ended.errors}")
    shared: dict[str, Any] = json.loads((place / "shared.json").read_text())
    return shared


def attack_all(
    suite: SuiteModule, context: Context, numbers: list[int], jobs: int, log: int
) -> Generator[tuple[int, Outcome, float], None, None]:
    """Yield the number, the outcome and the seconds of each attack."""
    waiting = deque(numbers)
    workers: dict[int, Worker] = {}
    poll = select.poll()
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                worker = start_worker(suite, context, waiting, log)
                workers[worker.pipe] = worker
                poll.register(worker.pipe, select.POLLIN)
            for pipe, _ in poll.poll(200):
                worker = workers[pipe]
                if not receive(worker):
                    end_worker(worker, waiting)
                    poll.unregister(pipe)
                    os.close(pipe)
                    del workers[pipe]
                yield from worker.outcomes
                worker.outcomes.clear()
            for worker in workers.values():
                if time.monotonic() - worker.since > suite.SUITE.seconds:
                    forks.kill(worker.pid)  # then its pipe ends
    finally:
        for worker in workers.values():
            forks.kill(worker.pid)
            os.waitpid(worker.pid, 0)


def start_worker(suite: SuiteModule, context: Context, waiting: deque[int], log: int) -> Worker:
    numbers = deque(waiting.popleft() for _ in range(min(suite.SUITE.batch, len(waiting))))
    reading, writing = os.pipe()

    def work() -> None:
        os.close(reading)
        forks.limit_memory(suite.SUITE.memory)
        for number in list(numbers):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=context.place) as folder:
                os.chdir(folder)
                outcome = attack(suite, context, number)
                os.chdir("/")
            line = [number, asdict(outcome), round(time.monotonic() - begun, 3)]
            os.write(writing, json.dumps(line).encode() + b"\n")

    pid = forks.start(work, output=log, errors=log)
    os.close(writing)
    return Worker(pid, reading, numbers, time.monotonic())


def attack(suite: SuiteModule, context: Context, number: int) -> Outcome:
    """Make an attack in the current folder, which is removed afterwards."""
    try:
        return suite.attack(context, number)
    except AssertionError as e:
        return Outcome("fault", " ".join(str(e).split())[:1000] or "assertion failed")
    except Exception as e:
        return Outcome("fault", f"{type(e).__name__}: {' '.join(str(e).split())[:1000]}")


def receive(worker: Worker) -> bool:
    """Read the outcomes that a worker has written; return whether more may come."""
    data = os.read(worker.pipe, 2**20)
    *lines, worker.text = (worker.text + data).split(b"\n")
    for line in lines:
        number, fields, seconds = json.loads(line)
        worker.numbers.remove(number)
        worker.outcomes.append((number, Outcome(**fields), seconds))
        worker.since = time.monotonic()
    return bool(data)


def end_worker(worker: Worker, waiting: deque[int]) -> None:
    """What a worker did not come to is done by another; the attack that killed it is a fault."""
    status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
    if worker.numbers:
        seconds = time.monotonic() - worker.since
        fault = f"the process ended with status {status} after {seconds:.1f} s"
        worker.outcomes.append((worker.numbers.popleft(), Outcome("died", fault), seconds))
        waiting.extendleft(reversed(worker.numbers))


class StateFile:
    """The outcomes so far, in a file; those of other code, or of another seed, are forgotten."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.outcomes: dict[int, Outcome] = {}
        self.seconds: dict[int, float] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        if lines[:1] != [json.dumps(header)]:
            path.write_text(json.dumps(header) + "\n")
            lines = []
        for line in lines[1:]:
            try:
                number, fields, seconds = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            self.outcomes[number], self.seconds[number] = Outcome(**fields), seconds

    def add(self, number: int, outcome: Outcome, seconds: float) -> None:
        self.outcomes[number], self.seconds[number] = outcome, seconds
        with self.path.open("a") as file:
            file.write(json.dumps([number, asdict(outcome), round(seconds, 3)]) + "\n")


class Progress:
    """A line about the attacks so far, on a terminal."""

    def __init__(self, name: str, total: int, done: int) -> None:
        self.name, self.total, self.done, self.faults = name, total, done, 0
        self.shown = 0.0

    def advance(self, outcome: Outcome) -> None:
        self.done += 1
        self.faults += bool(outcome.fault)
        if sys.stderr.isatty() and time.monotonic() - self.shown > 0.5:
            self.shown = time.monotonic()
            print(
                f"\r{self.name}: {self.done:,} of {self.total:,}, {self.faults} faults",
                end="",
                file=sys.stderr,
            )

    def close(self) -> None:
        if self.shown:
            print("\r" + " " * 79 + "\r", end="", file=sys.stderr)
