"""Optimizers, and the learning rate's path as a function of where training stands."""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from . import distributed
from .errors import Mistake
from .layers import Block


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised momentum of a matrix, Jordan et al. 2024; Liu et al. 2025 for the scale,
    with which a learning rate that suits AdamW suits Muon too.

    torch.optim.Muon takes its matrices one by one; here all of one shape go through the products together.
    """

    def __init__(
        self,
        weights: Sequence[Tensor] | Sequence[dict[str, Any]],
        lr: float,
        weight_decay: float,
        bf16: bool = False,
    ):
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # of the products: they need no precision

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                self.state[w].setdefault("momentum", torch.zeros_like(w))
            grads, past = [w.grad for w in weights], [self.state[w]["momentum"] for w in weights]
            torch._foreach_lerp_(past, grads, 1 - group["momentum"])
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            alike = defaultdict(list)
            for w, ahead in zip(weights, torch._foreach_lerp(grads, past, group["momentum"]), strict=True):
                ahead = distributed.whole(ahead)
                wide = w.shape[0] <= w.shape[1]  # tall ones go lying down, together with their transposes
                alike[tuple(sorted(w.shape))].append((w, ahead if wide else ahead.mT, wide))
            for (_, longer), rows in alike.items():
                stacked = torch.stack([ahead for _, ahead, _ in rows])
                steps = orthogonal(stacked.to(self.dtype)).to(stacked.dtype)
                scale = -0.2 * math.sqrt(longer) * group["lr"]
                for step, (w, _, wide) in zip(steps, rows, strict=True):
                    w.add_(distributed.shared_like(step if wide else step.mT, w), alpha=scale)


def orthogonal(G: Tensor) -> Tensor:
    """U Vᵀ of G = U S Vᵀ, nearly, for a stack of wide matrices: five Newton-Schulz iterations."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G / G.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X


def optimizers(
    model: nn.Module,
    name: str,
    lr: float,
    weight_decay: float,
    beta2: float,
    bf16: bool = False,
    layer_decay: float = 1.0,
) -> list[torch.optim.Optimizer]:
    """AdamW for everything; or Muon for the matrices inside the blocks and AdamW for the rest.

    Vectors (biases and norms) do not decay. A group's `scale` is its share of the learning rate: each layer's
    is `layer_decay` times that of the one above it, Howard & Ruder 2018, 3.1; Clark et al. 2020.
    """
    blocks = [m for m in model.modules() if isinstance(m, Block)] if name == "muon" else []
    inside = {p for block in blocks for p in block.parameters() if p.ndim == 2}
    depth, alike = len(model.blocks), defaultdict(list)  # type: ignore[arg-type]
    for p, place in places(model).items():
        if p.requires_grad:
            alike[p in inside, p.ndim < 2, layer_decay ** max(0, depth - place)].append(p)
    adamw: list[dict[str, Any]] = []
    muon: list[dict[str, Any]] = []
    for by_muon, vectors, scale in sorted(alike):
        group = {"params": alike[by_muon, vectors, scale], "scale": scale}
        (muon if by_muon else adamw).append(group | {"weight_decay": 0.0 if vectors else weight_decay})
    made: list[torch.optim.Optimizer] = []
    if adamw:
        made.append(torch.optim.AdamW(adamw, lr=lr, betas=(0.9, beta2), fused=True))
    if muon:
        made.append(Muon(muon, lr, weight_decay, bf16))
    return made


def places(model: nn.Module) -> dict[nn.Parameter, int]:
    """Where every weight stands: 0 below the blocks, i in the i-th of n blocks, n + 1 above them.

    Below is what a model makes before its first block: embeddings and positions, even if tied.
    """
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    found = dict.fromkeys(model.parameters(), len(blocks) + 1)
    for part in takewhile(lambda part: part not in blocks, model.modules()):
        if not any(inner in blocks for inner in part.modules()):
            found.update(dict.fromkeys(part.parameters(), 0))
    for i, block in enumerate(blocks, 1):
        found.update(dict.fromkeys(block.parameters(), i))
    return found


def freeze(model: nn.Module, blocks: int) -> None:
    """What stands below the blocks and the first few of them learn no more."""
    if blocks > (depth := len(model.blocks)):  # type: ignore[arg-type]
        raise Mistake(f"train.freeze={blocks}: the model has {depth} blocks to freeze; give at most {depth}")
    for p, place in places(model).items():
        if place <= blocks:
            p.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise Mistake(f"train.freeze={blocks} leaves nothing to train; freeze fewer blocks")


# The learning rate, as a share of its top: `done` is the share of the run behind us, `step` counts from 1.


def noam(done: float, step: int, warmup: int) -> float:
    """Down with 1/√step after a linear warm-up, Vaswani et al. 2017, eq. 3, scaled to 1 at the top."""
    return math.sqrt(max(1, warmup) / step)


def cosine(done: float, step: int, warmup: int) -> float:
    """Half a cosine wave from 1 to a tenth, Radford et al. 2018."""
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def linear(done: float, step: int, warmup: int) -> float:
    """A straight line from 1 to 0, Devlin et al. 2019."""
    return 1 - done


def stable(done: float, step: int, warmup: int) -> float:
    """Warm-up, stable, decay: flat at 1, then down to 0 over the last two fifths, Hu et al. 2024."""
    return min(1.0, (1 - done) / 0.4)


SCHEDULES = {"noam": noam, "cosine": cosine, "linear": linear, "wsd": stable}


def rate(schedule: str, done: float, step: int, warmup: int) -> float:
    if step <= warmup:
        return step / warmup
    return SCHEDULES[schedule](min(1.0, done), step, warmup)
