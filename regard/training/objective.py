"""The objective of training: a model and the loss of its task, or of its teachers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.tasks import Task

TEMPERATURE = 2.0  # softens probabilities, so that small ones count more


class Objective(nn.Module):
    """A model and the loss of its task as one module, to be compiled and parallelised together.

    In eval mode it returns the task's measurements: sums over the batch, the loss first.
    """

    def __init__(self, model: nn.Module, task: Task):
        super().__init__()
        self.model, self.loss, self.measure, self.task = model, task.loss, task.measure, task
        self.teachers: Sequence[nn.Module] = []  # a list, so that their weights are not this module's

    def forward(self, *batch: Tensor) -> Tensor:
        if not self.model.training:
            return self.measure(self.model, *batch)
        return self.distill(*batch) if self.teachers else self.loss(self.model, *batch)

    def distill(self, *batch: Tensor) -> Tensor:
        """T² KL(p||q), summed: p is the mean of the teachers' probabilities at temperature T, q the model's.

        Hinton et al. 2015, section 2; without the labels, as in Beyer et al. 2022.
        """
        with torch.no_grad():
            several = [self.task.predictions(teacher, *batch)[0] for teacher in self.teachers]
            p = torch.stack([(z.float() / TEMPERATURE).softmax(-1) for z in several]).mean(0)
        logits, counts = self.task.predictions(self.model, *batch)
        log_q = (logits.float() / TEMPERATURE).log_softmax(-1)
        divergence = (torch.xlogy(p, p) - p * log_q).sum(-1)
        return TEMPERATURE**2 * (divergence * counts).sum()
