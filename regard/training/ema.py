"""An average of the weights over the last steps, which is often better than the weights of any one step."""

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

    The weight of step τ among t steps is proportional to τ^γ (Karras et al. 2024, section 3.1): the average
    is as wide at each step of a run, in proportion, as at its last; it need not know how many there will be,
    and soon forgets where the weights began. (1 - share)^(γ + 1) = 1/2.

    The averages are kept in the state of the optimizers, one number for each trained weight. So they are
    sharded, saved and restored as that is.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], share: float):
        self.module, self.optimizers = module, optimizers
        self.power = math.log(0.5) / math.log1p(-share)  # γ + 1

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after so many steps to the average."""
        for optimizer in self.optimizers:
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                state = optimizer.state.get(p)  # none, or empty, for weights that never had a gradient
                if state and KEY not in state:
                    state[KEY] = p.detach().clone()
        weights, averages = self.tensors()
        torch._foreach_lerp_(averages, weights, 1 - (1 - 1 / step) ** self.power)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """The model has the average as its weights inside a `with` block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and averages; each tensor stays where it is, where CUDA graphs find it."""
        distributed.reshard(self.module)
        for weight, average in zip(*self.tensors(), strict=True):
            now = weight.clone()
            weight.copy_(average)
            average.copy_(now)

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The weights that have an average, and their averages."""
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
    """The metrics of the weights or of their average, whichever are better, and a context in which the model
    has these weights. None if a signal interrupted a measurement."""
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
