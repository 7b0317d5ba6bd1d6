"""Measure the speed of training, and the model FLOPs utilisation (MFU) of the device."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from regard.tasks import Batch, targets
from regard.tasks.batches import Samples
from regard.tasks.task import Task
from regard.training import distributed

ROWS = 64  # of a step, from which the operations for a token are counted


def flops(objective: nn.Module, batch: Sequence[Tensor]) -> float:
    """Return the floating-point operations to train on a batch, from a pass on the meta device.

    Padding and masked scores are included. NaN for models whose shapes depend on values, as recurrent
    ones that pack rows by length.
    """
    tensors = itertools.chain(objective.named_parameters(), objective.named_buffers())
    shapes = {n: torch.empty_like(t, device="meta", requires_grad=t.requires_grad) for n, t in tensors}
    with FlopCounterMode(display=False) as counter:
        try:
            functional_call(objective, shapes, tuple(t.to("meta") for t in batch)).backward()
        except NotImplementedError:
            return math.nan
    return float(counter.get_total_flops())


def flops_per_token(objective: nn.Module, task: Task[Any, Any, Any], samples: Samples) -> float:
    """Return the operations to train on a token that is read, from the first rows of the first step.

    A single row may not be typical: for a pair with a long source and a short target, the operations for
    each token are many times the mean.
    """
    batch = task.batch(samples, samples.rows(0)[:ROWS])
    return flops(objective, batch) / max(1, task.count_read(batch)["tokens"])


def count_read(task: Task[Any, Any, Any], batches: Sequence[Batch]) -> Counter[str]:
    """Return the amount of data in batches, by unit. A batch without targets does not count."""
    counts: Counter[str] = Counter()
    for batch in batches:
        read = task.count_read(batch)
        counts.update(read if targets(batch) else dict.fromkeys(read, 0))
    return counts


def peak(device: torch.device, bf16: bool) -> float:
    """Measure the operations per second of a large matrix product on this device."""
    n = {"cuda": 8192, "mps": 4096}.get(device.type, 1024)
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    a @ a  # the first product of a process takes longer
    synchronize(device)
    best = 0.0
    for _ in range(5):
        watch = Stopwatch(device)
        for _ in range(3):
            a @ a
        best = max(best, 3 * 2 * n**3 / watch.seconds())
    return best


class Stopwatch:
    """Measures the time that a device works for this thread; on a CPU, without that of other programs."""

    def __init__(self, device: torch.device):
        self.device, self.start = device, self.clocks()
        self.wall = 0.0  # seconds at the last `seconds`, with other programs

    def seconds(self) -> float:
        synchronize(self.device)
        self.wall, own, all_threads = (
            now - then for now, then in zip(self.clocks(), self.start, strict=True)
        )
        if self.device.type != "cpu":
            return self.wall
        # this thread takes part in all that is computed, or waits for threads of another library
        return max(1e-9, min(self.wall, max(own, all_threads / torch.get_num_threads())))

    @staticmethod
    def clocks() -> tuple[float, float, float]:
        return time.perf_counter(), time.thread_time(), time.process_time()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Pace:
    """Measures the data read per second, and the MFU, since `start` or the last `rates`.

    The first step is separate: it includes one-time work such as compiling.
    """

    def __init__(self, flops: float, device: torch.device, bf16: bool):
        self.flops, self.device, self.peak = flops, device, peak(device, bf16)
        self.first_step_seconds: float | None = None
        self.start()

    def start(self) -> None:
        self.counts: Counter[str] = Counter()
        self.since = time.perf_counter()

    def add(self, counts: Mapping[str, float]) -> None:
        """Add the amount of data of a step in this process, by unit."""
        self.counts.update(counts)
        if self.first_step_seconds is None:
            synchronize(self.device)
            self.first_step_seconds = time.perf_counter() - self.since
            self.first = dict(self.counts)
            self.start()

    def rates(self) -> dict[str, float]:
        """Return the rates of all processes together, the task's own unit first."""
        synchronize(self.device)
        seconds, counts, extra = time.perf_counter() - self.since, dict(self.counts), dict[str, float]()
        if not counts and self.first_step_seconds is not None:  # nothing but the first step
            seconds, counts = self.first_step_seconds, self.first
            extra["first_step_seconds"] = seconds
        sums = distributed.all_sum(torch.tensor([float(n) for n in counts.values()])).tolist()
        rates = {f"{unit}_per_second": n / seconds for unit, n in zip(counts, sums, strict=True)}
        self.start()
        used = rates.get("tokens_per_second", math.nan) * self.flops / distributed.WORLD
        # A product that was measured on a busy machine is not its peak.
        self.peak = max(self.peak, 0.0 if math.isnan(used) else used)
        return rates | ({} if math.isnan(used) else {"mfu": used / self.peak}) | extra
