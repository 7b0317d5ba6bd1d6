"""A moving average of the weights, which is often better than the weights of any single step."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from regard.training import distributed

KEY = "ema"  # of a parameter's state in its optimizer
Metrics = dict[str, float]


class MovingAverage:
    """Averages the weights after each step, so that the last `share` of all steps counts for one half.

    The weight of step τ among t steps is proportional to τ^γ (Karras et al. 2024, section 3.1): the width
    of the average is the same share of the run at every step, independent of the total number of steps, and
    the initial weights are soon forgotten. (1 - share)^(γ + 1) = 1/2.

    The averages are part of the optimizers' state, one number for each trained weight, so they are
    sharded, saved and restored with it.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], share: float):
        self.module, self.optimizers = module, optimizers
        self.power = math.log(0.5) / math.log1p(-share)  # γ + 1

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after `step` steps to the average."""
        for optimizer in self.optimizers:
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                state = optimizer.state.get(p)  # missing or empty for weights that never had a gradient
                if state and KEY not in state:
                    state[KEY] = p.detach().clone()
        weights, averages = self.tensors()
        torch._foreach_lerp_(averages, weights, 1 - (1 - 1 / step) ** self.power)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the average as the model's weights inside a `with` block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages in place, since CUDA graphs refer to the tensors."""
        distributed.reshard(self.module)
        for weight, average in zip(*self.tensors(), strict=True):
            now = weight.clone()
            weight.copy_(average)
            average.copy_(now)

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights that have an average, and their averages."""
        pairs = [
            (p.detach(), state[KEY])
            for optimizer in self.optimizers
            for p, state in optimizer.state.items()
            if KEY in state
        ]
        return [weight for weight, _ in pairs], [average for _, average in pairs]


def measure_better(
    ema: MovingAverage | None,
    measure: Callable[[], Metrics | None],
    rank: Callable[[Metrics], tuple[float, ...]],
) -> tuple[Metrics, contextlib.AbstractContextManager[None]] | None:
    """Return the better metrics, of the weights or of their average, and a context in which the model has
    these weights. None if a signal interrupted a measurement."""
    metrics = measure()
    if metrics is None or ema is None:
        return None if metrics is None else (metrics, contextlib.nullcontext())
    with ema.swapped():
        average = measure()
    if average is None:
        return None
    if rank(average) > rank(metrics):
        return average | {KEY: 1.0, "valid_loss_other": metrics["valid_loss"]}, ema.swapped()
    return metrics | {KEY: 0.0, "valid_loss_other": average["valid_loss"]}, contextlib.nullcontext()
