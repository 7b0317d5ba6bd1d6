"""Measure the speed of training, and the model FLOPs utilisation (MFU) of the device."""

import itertools
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from regard.training import distributed


def flops(objective: nn.Module, batch: Sequence[Tensor]) -> float:
    """Return the floating-point operations to train on one target, from a pass on the meta device.

    NaN for models whose shapes depend on values, as recurrent ones that pack rows by length.
    """
    tensors = itertools.chain(objective.named_parameters(), objective.named_buffers())
    shapes = {n: torch.empty_like(t, device="meta", requires_grad=t.requires_grad) for n, t in tensors}
    with FlopCounterMode(display=False) as counter:
        try:
            functional_call(objective, shapes, tuple(t.to("meta") for t in batch)).backward()
        except NotImplementedError:
            return math.nan
    return counter.get_total_flops() / batch[-1].numel()


def peak(device: torch.device, bf16: bool) -> float:
    """Measure the operations per second of a large matrix product on this device."""
    n = {"cuda": 8192, "mps": 4096}.get(device.type, 1024)
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(3):
            a @ a
        synchronize(device)
        best = max(best, 3 * 2 * n**3 / (time.perf_counter() - start))
    return best


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Pace:
    """Counts tokens per second, and the MFU, since `start` or the last `rates`."""

    def __init__(self, flops: float, device: torch.device, bf16: bool):
        self.flops, self.device, self.peak = flops, device, peak(device, bf16)
        self.start()

    def start(self) -> None:
        self.tokens, self.since = 0, time.perf_counter()

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    def rates(self) -> dict[str, float]:
        synchronize(self.device)
        rate = self.tokens / (time.perf_counter() - self.since)
        self.start()
        mfu = rate * self.flops / (self.peak * distributed.WORLD)
        return {"tokens_per_second": rate} | ({} if math.isnan(mfu) else {"mfu": mfu})
