"""Several models as one, which averages the probabilities of the next token.

Shapes: B batch, T tokens, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class States:
    """The states of the models."""

    each: list[Any]

    def reorder(self, rows: Tensor) -> None:
        for state in self.each:
            state.reorder(rows)


class Ensemble(nn.Module):
    """log 1/n Σ p, for n models with the same vocabulary."""

    output = output_bias = None  # its hidden states are already logits

    def __init__(self, models: Sequence[Any]):
        super().__init__()
        self.models = nn.ModuleList(models)
        self.config = min((model.config for model in models), key=lambda config: config.context)

    def hidden(self, *inputs: Tensor | None) -> Tensor:
        return mean_logits([model(*inputs) for model in self.models])  # (B, T, V)

    def forward(self, *inputs: Tensor | None) -> Tensor:
        return self.hidden(*inputs)

    def start(self, *inputs: Tensor | None) -> tuple[Tensor, States]:
        logits, states = zip(*(model.start(*inputs) for model in self.models), strict=True)  # type: ignore[operator]
        return mean_logits(logits), States(list(states))

    def step(self, ids: Tensor, state: States) -> tuple[Tensor, States]:
        steps = [m.step(ids, s) for m, s in zip(self.models, state.each, strict=True)]  # type: ignore[operator]
        return mean_logits([logits for logits, _ in steps]), States([s for _, s in steps])


def mean_logits(logits: Sequence[Tensor]) -> Tensor:
    """The logits of the mean of the probabilities."""
    log_p = torch.stack([one.float().log_softmax(-1) for one in logits])
    return log_p.logsumexp(0) - math.log(len(logits))
