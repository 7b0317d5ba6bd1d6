"""How fast training is, and how much of the device's real peak it uses."""

import itertools
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from . import distributed


def flops(objective: nn.Module, batch: Sequence[Tensor]) -> float:
    """Floating-point operations to train on one target: a pass over shapes alone, nothing is computed.

    NaN for models that need numbers to know their shapes: recurrent ones pack rows by their lengths.
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
    """Operations per second of a large matrix product on this device, measured."""
    n = {"cuda": 8192, "mps": 4096}.get(device.type, 1024)
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(3):
            a @ a
        wait(device)
        best = max(best, 3 * 2 * n**3 / (time.perf_counter() - start))
    return best


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Pace:
    """Tokens per second since it was last asked."""

    def __init__(self, flops: float, device: torch.device, bf16: bool):
        self.flops, self.device, self.peak = flops, device, peak(device, bf16)
        self.start()

    def start(self) -> None:
        self.tokens, self.since = 0, time.perf_counter()

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    def rates(self) -> dict[str, float]:
        wait(self.device)
        rate = self.tokens / (time.perf_counter() - self.since)
        self.start()
        mfu = rate * self.flops / (self.peak * distributed.WORLD)
        return {"tokens_per_second": rate} | ({} if math.isnan(mfu) else {"mfu": mfu})
