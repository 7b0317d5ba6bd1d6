"""What is trained: a model and the loss of its task."""

from typing import Any

from torch import Tensor, nn


class Objective(nn.Module):
    """A model and the loss of its task as one module, to be compiled and parallelised together.

    In eval mode it returns what the task measures: sums over the batch, the loss first.
    """

    def __init__(self, model: nn.Module, task: Any):
        super().__init__()
        self.model, self.loss, self.measure = model, task.loss, task.measure

    def forward(self, *batch: Tensor) -> Tensor:
        return (self.loss if self.model.training else self.measure)(self.model, *batch)
