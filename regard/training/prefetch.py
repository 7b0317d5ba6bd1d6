"""Prepare the next batches, and copy them to the GPU, while the GPU works."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch

from regard.tasks import Batch, targets

# The parts of a step on the device, their number of targets, and the amount of data by unit
Share = tuple[list[Batch], int, Counter[str]]


class Prefetcher:
    """Returns the batches of a step; threads make the next ones while another copies the last.

    The batches depend on the step alone, so it does not matter when they are made. With `ahead` = 0, the
    default on a CPU, which computes all the time, they are made when they are needed.
    """

    def __init__(
        self,
        make: Callable[[int], Sequence[Batch]],
        device: torch.device,
        count_read: Callable[[Sequence[Batch]], Counter[str]],
        pad: Callable[[Batch], Batch] | None = None,
        ahead: int | None = None,
        makers: int = 1,  # threads that make batches
    ):
        self.make, self.device, self.count_read, self.pad = make, device, count_read, pad
        self.ahead = (3 if device.type == "cuda" else 0) if ahead is None else ahead
        self.executor = ThreadPoolExecutor(makers, "prefetch") if self.ahead else None
        self.copier = ThreadPoolExecutor(1, "copy") if self.ahead else None
        self.stream = copy_stream(device) if device.type == "cuda" else None
        self.futures: dict[int, Future[tuple[Share, torch.cuda.Event | None]]] = {}

    def __call__(self, step: int) -> Share:
        if self.executor is None or self.copier is None:
            return self.prepare(self.make(step))[0]
        for skipped in [s for s in self.futures if s < step]:
            del self.futures[skipped]
        for s in range(step, step + self.ahead + 1):
            if s not in self.futures:
                batches = self.executor.submit(self.make_apart, s)
                self.futures[s] = self.copier.submit(self.prepare_result, batches)
        share, copied = self.futures.pop(step).result()
        if copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(copied)
            for t in (t for batch in share[0] for t in batch):
                t.record_stream(stream)  # its memory is not reused before that stream has read it
        return share

    def make_apart(self, step: int) -> Sequence[Batch]:
        """Make the batches of a step; what that needs of the GPU doesn't wait for the model."""
        if self.stream is None:
            return self.make(step)
        with torch.cuda.stream(self.stream):
            return self.make(step)

    def prepare_result(self, batches: Future[Sequence[Batch]]) -> tuple[Share, torch.cuda.Event | None]:
        return self.prepare(batches.result())

    def prepare(self, batches: Sequence[Batch]) -> tuple[Share, torch.cuda.Event | None]:
        """This process's share of a step, and the event after which it is on the GPU."""
        counts = sum(map(targets, batches)), self.count_read(batches)
        padded = [self.pad(batch) if self.pad else batch for batch in batches]
        if self.stream is None:
            return ([to_device(batch, self.device) for batch in padded], *counts), None
        with torch.cuda.stream(self.stream):
            copies = [to_device(batch, self.device) for batch in padded]
            return (copies, *counts), self.stream.record_event()


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all runs of a process: torch has 32, then reuses the first, even while it captures."""
    return torch.cuda.Stream(device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cuda":
        batch = tuple(t.pin_memory() for t in batch)
    return tuple(t.to(device, non_blocking=True) for t in batch)
