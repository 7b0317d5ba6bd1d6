"""What the experiments share: a training loop, and how a result is written."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.base import EncoderDecoder

Result = dict[str, dict[str, float]]  # what was measured of each variant, by name


def fit(model: nn.Module, loss: Callable[[], Tensor], steps: int, lr: float) -> None:
    """Minimise `loss`, which draws a batch of its own, by Adam; the learning rate falls to 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps + 1, pct_start=0.1)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
    model.eval()


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all targets, of logits (..., classes)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def percent(right: Tensor) -> float:
    return 100 * right.double().mean().item()


def shift_right(target: Tensor) -> Tensor:
    """What a decoder reads to predict each token of a target (B, T): 0, which begins it, and those before."""
    return F.pad(target, (1, -1))


@torch.no_grad()
def generate_greedily(model: EncoderDecoder, source: Tensor, length: int) -> Tensor:
    """The likeliest tokens (B, length), one after another."""
    logits, state = model.start(source, torch.zeros(len(source), 1, dtype=torch.long))
    tokens = [logits.argmax(-1, keepdim=True)]
    while len(tokens) < length:
        logits, state = model.step(tokens[-1], state)
        tokens.append(logits.argmax(-1, keepdim=True))
    return torch.cat(tokens, dim=1)
