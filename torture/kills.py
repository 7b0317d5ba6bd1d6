"""SIGKILL at random, with one, two and four processes: the run goes on to the same last bit.

A run of one of the test suite's models is killed several times, at a random moment or at a random system call
of its first process, and resumed; in the end it is compared with one that was never killed. Of several
processes all are killed, or only the first, and the others a moment later, as torchrun does. One or two
processes give the same bits. Four add their gradients in another order after a resume (DDP arranges them anew
after its first step), so these train in float64, in which that is as good as nothing.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from helpers.runs import RUNS, checkpoints, tiny, write_data
from regard.files.tensors import read_tensors
from regard.training import distributed
from torture import forks
from torture.commands import OUT, check_same_run
from torture.outcome import Context, Outcome, Suite
from torture.syscalls import CHANGES, KILL, Watch, is_loaded

SUITE = Suite(count=180, short=1, seconds=600)
KILLS, STEPS = 5, 12
SOON = 0.6  # a kill comes within this share of a run, so that more than one fits in
PATIENCE = 3.0  # seconds until the other processes are killed as well
TOLERANCE = 1e-9
SETTINGS: dict[str, Any] = {
    "model__dropout": 0.1, "train__optimizer": "muon", "train__micro": 4, "train__save": 2,
    "train__evaluate": 6, "train__average": 3,
}  # fmt: skip
ALONE_CASES = sorted(RUNS)
CASES = [(1, case) for case in ALONE_CASES] + [
    (world, case) for world in (2, 4) for case in ("write", "translate-transformer")
]


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    return {}


def reference(place: Path, world: int, case: str, data: str) -> tuple[Path, float, int]:
    """Train a case without a kill, unless it is there; return its folder, its seconds and system calls."""
    folder, out = place / f"{case}-{world}", Path.cwd() / "whole"
    if not folder.exists():
        out.mkdir()
        watch, begun = Watch(out), time.monotonic()
        ends, errors = train(world, case, data, out / OUT, watch, 0, seconds=120)
        assert not any(ends), (case, world, ends, errors)
        about = [time.monotonic() - begun, len(watch.read().calls)]
        (out / "about.json").write_text(json.dumps(about))
        with contextlib.suppress(FileExistsError, OSError):  # another attack was faster
            out.rename(folder)
    seconds, calls = json.loads((folder / "about.json").read_text())
    return folder / OUT, seconds, calls


def train(
    world: int, case: str, data: str, out: Path, watch: Watch, at: int, seconds: float, kill: str = ""
) -> tuple[list[int], str]:
    """Train with some processes until they end, or until all or the first are killed after some seconds.

    The first one is killed at its `at`-th system call, if that is given. Return how they ended, and what
    they wrote about errors.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends = []
    with Path(os.devnull).open("w") as null, tempfile.TemporaryFile() as errors:
        to = {"output": null.fileno(), "errors": errors.fileno()}
        pids = [
            forks.start(run_rank, rank, world, port, case, data, out, watch, at, **to)
            for rank in range(world)
        ]
        for rank, pid in enumerate(pids):
            if kill and rank == 0:
                forks.wait_until(lambda first=pid: forks.has_ended(first), seconds)  # type: ignore[misc]
                for victim in pids if kill == "all" else pids[:1]:
                    forks.kill(victim)
            status, _ = forks.wait(pid, PATIENCE if kill else seconds)
            ends.append(status)
        errors.seek(0)
        return ends, " ".join(errors.read().decode(errors="replace").split())[-800:]


def run_rank(
    rank: int, world: int, port: int, case: str, data: str, out: Path, watch: Watch, at: int
) -> None:
    """One process of a run, as torchrun would start it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.RANK, distributed.WORLD, distributed.LOCAL = rank, world, rank
    if world > 2:
        torch.set_default_dtype(torch.float64)
    if rank == 0 and is_loaded():
        watch.arm(at, KILL) if at else watch.arm()
    tiny(data, out, case, steps=STEPS, resume=True, **SETTINGS)


def attack(context: Context, number: int) -> Outcome:
    rng, out = random.Random(f"{context.seed} {number}"), Path.cwd() / OUT
    world = (1, 2, 4)[number % 3]
    case = rng.choice([case for n, case in CASES if n == world])
    name, data = f"{case}-{world}", write_data(case, Path.cwd())
    straight, lasts, calls = reference(context.place, world, case, data)
    shutil.rmtree(Path.cwd() / "whole", ignore_errors=True)
    counts = {"kills": 0, f"with {world}": 0, "while changing files": 0}
    for _ in range(KILLS):
        watch, by_call = Watch(out.parent), is_loaded() and rng.random() < 0.6
        at = rng.randrange(1, int(SOON * calls)) if by_call else 0
        seconds = 60.0 if at else rng.uniform(0, SOON * lasts)
        kill = rng.choice(("all", "first"))
        (first, *_), errors = train(world, case, data, out, watch, at, seconds, kill)
        if first == -signal.SIGKILL:
            hit = watch.read().hit
            counts["kills"] += 1
            counts[f"with {world}"] += 1
            counts["while changing files"] += bool(hit and hit[0] in CHANGES)
        elif first:
            return Outcome("fault", f"{name}: an attempt ended with status {first}: {errors}")
    ends, errors = train(world, case, data, out, Watch(out.parent), 0, seconds=120)
    if any(ends):
        return Outcome("fault", f"{name}: the last attempt ended with {ends}: {errors}")
    end = f"{world} process{'es' * (world > 1)}"
    if world <= 2:
        check_same_run(straight, out)
        return Outcome(end, counts=counts)
    return Outcome(end, peaks={"difference with 4": check_close(straight, out)}, counts=counts)


def check_close(reference: Path, out: Path) -> float:
    """Return the largest difference of two runs' weights; raise AssertionError if it is not tiny."""
    assert checkpoints(reference)[-1] == checkpoints(out)[-1]
    one, other = (read_tensors(run / "model.safetensors") for run in (reference, out))
    difference = max(float((one[name] - other[name]).abs().max()) for name in one)
    assert one.keys() == other.keys()
    assert difference < TOLERANCE, f"differs by {difference}"
    assert not list(out.rglob(".*")), "something half-written is left"
    return difference
