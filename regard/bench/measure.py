"""Measure contenders in turns: rates, memory, and shares of the device's peaks."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.runs import recipe
from regard.training import build
from regard.training.config import TrainConfig
from regard.training.job import Job as TrainingJob
from regard.training.job import change_recipe, exclusive_folder
from regard.training.plan.built_in import BUILT_IN
from regard.training.throughput import peak, synchronize
from regard.training.trainer import Trainer

WARMUP = 12  # steps before training is measured
T = TypeVar("T")
Job = Callable[[], dict[str, float]]  # runs once; returns the number of units as "count", and other figures


@dataclass
class Options:
    """The options of all rows."""

    device: torch.device
    data: Path | None = None  # a folder with multi30k/ and tinyshakespeare/
    nanogpt: Path | None = None
    gptfast: Path | None = None
    repeat: int = 3
    seconds: float = 2.5  # for a repetition of a contender
    small: bool = False  # sizes for a CPU, to try the scripts
    scratch: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))

    def size(self, full: T, small: T) -> T:
        return small if self.small else full

    def file(self, *parts: str) -> str:
        """The path of a file in the data folder."""
        if self.data is None or not (path := self.data.joinpath(*parts)).exists():
            raise FileNotFoundError(f"{'/'.join(parts)}: give --data FOLDER, which has it")
        return str(path)


@dataclass
class Row:
    """Contenders by name, ours first, and the unit that they are compared by."""

    unit: str
    contenders: dict[str, Callable[[], Job]]  # builds the job to measure
    note: str = ""
    flops: float | None = None  # operations for a unit
    bytes: float | None = None  # bytes that have to be read for a unit


def memory_copied(device: torch.device) -> float:
    """Measure the bytes per second that are read and written when memory is copied."""
    source = torch.empty(2**30 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device)
    target, best = torch.empty_like(source), 0.0
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        best = max(best, 2 * source.numel() / (time.perf_counter() - start))
    return best


def run(job: Job, options: Options) -> tuple[float, dict[str, float]]:
    """Run a job for the time of a repetition, at least once; return its rate and other figures."""
    synchronize(options.device)
    start = time.perf_counter()
    figures = job()
    synchronize(options.device)
    count, seconds = figures.pop("count"), figures.pop("seconds", None)
    if seconds is not None:  # it has its own clock
        return count / seconds, figures
    for _ in range(round(options.seconds / (time.perf_counter() - start)) - 1):
        count += job()["count"]
    synchronize(options.device)
    return count / (time.perf_counter() - start), figures


def measure(
    row: Row,
    options: Options,
    report: Callable[[], object] = lambda: None,
    ready: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Build and warm up all contenders, then run them in turns. One that fails does not stop the others:
    `report` is called while its exception is handled. `ready` is called before the first run that counts."""
    device, jobs, results, failed = options.device, dict[str, Job](), dict[str, Any](), dict[str, str]()
    cuda = device.type == "cuda"
    held: dict[str, int] = {}  # bytes that each contender keeps
    peaks: dict[str, int] = {}  # bytes that each had at most while it was built and warmed up
    for name, build_job in row.contenders.items():
        before, start = torch.cuda.memory_allocated() if cuda else 0, time.perf_counter()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        try:
            job = build_job()
            job()
        except Exception as error:
            report()
            failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            continue
        jobs[name], held[name] = job, (torch.cuda.memory_allocated() if cuda else 0) - before
        # The memory of a CUDA graph counts while it is captured, not when it is replayed.
        peaks[name] = (torch.cuda.max_memory_allocated() if cuda else 0) - before
        results[name] = {"start_s": round(time.perf_counter() - start, 1), "rates": []}
    ready()
    for _ in range(options.repeat):
        for name, job in jobs.items():
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            rate, figures = run(job, options)
            result = results[name]
            result["rates"].append(rate)
            if cuda:
                held_elsewhere = sum(size for other, size in held.items() if other != name)
                own = max(peaks[name], torch.cuda.max_memory_allocated() - held_elsewhere)
                result |= (
                    {"GiB": round(own / 2**30, 2)} if own > 2**20 else {}
                )  # none: another process has it
            for key, value in figures.items():
                result.setdefault("all_" + key, []).append(value)
    for result in results.values():
        for key in [key for key in result if key.startswith("all_")]:
            result[key.removeprefix("all_")] = statistics.median(result.pop(key))
        result["rate"] = statistics.median(result["rates"])
        if row.flops is not None:  # a row may find it while it is built
            result["flops_share"] = result["rate"] * row.flops / measure_peaks(device)["flops"]
        if row.bytes is not None:
            result["bandwidth_share"] = result["rate"] * row.bytes / measure_peaks(device)["bytes"]
    return {"unit": row.unit, "note": row.note, "results": results, "failed": failed}


@cache
def measure_peaks(device: torch.device) -> dict[str, float]:
    """Measure a device's operations and bytes per second."""
    return {"flops": peak(device, bf16=device.type == "cuda"), "bytes": memory_copied(device)}


# Training


def train_by_recipe(options: Options, name: str, data: list[str], changes: dict[str, Any]) -> Trainer:
    """Assemble what `regard train NAME DATA --set ...` trains, without a validation set."""
    settings = BUILT_IN[name] | {"train.steps": 1_000_000, "data.holdout": 0.0} | changes
    work = TrainingJob(
        options.scratch / f"run-{time.time_ns()}",
        change_recipe(recipe.read(name), settings),
        data,
        [],
        None,
        False,
    )
    config = recipe.fill("train", work.sections["train"], TrainConfig)
    with exclusive_folder(work):
        return build.assemble(work, config, options.device)


def train_job(trainer: Trainer, unit: str, options: Options) -> Job:
    """Steps as the training loop takes them, as many as fit into the time, with its rows of the log."""

    def take(steps: int) -> dict[str, float]:
        count = 0.0
        trainer.pace.start()
        for _ in range(steps):
            result = trainer.train_step()
            if trainer.step % trainer.config.log == 0 and result is not None:
                count += trainer.pace.counts[unit]
                trainer.log_step(*result, last=False)
        return {"count": steps if unit == "steps" else count + trainer.pace.counts[unit]}

    take(options.size(WARMUP, 1))
    synchronize(options.device)
    start = time.perf_counter()
    take(options.size(3, 1))
    synchronize(options.device)
    steps = max(1, round(options.seconds * options.size(3, 1) / (time.perf_counter() - start)))
    return lambda: take(steps)


def step_job(step: Callable[[], float], options: Options) -> Job:
    """Steps of a peer, each of which returns its units, as many as fit into the time."""
    return repeated(step, options, options.size(WARMUP, 1))


def repeated(call: Callable[[], float], options: Options, warmup: int = 1) -> Job:
    """Calls, each of which returns its units, as many as fit into the time."""
    for _ in range(warmup):
        call()
    synchronize(options.device)
    start = time.perf_counter()
    call()
    synchronize(options.device)
    calls = max(1, round(options.seconds / (time.perf_counter() - start)))
    return lambda: {"count": sum(call() for _ in range(calls))}
