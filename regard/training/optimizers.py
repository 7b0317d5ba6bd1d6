"""Optimizers and learning rate schedules."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.layers import Block
from regard.errors import UserError
from regard.runs.layers import layer_index
from regard.training import distributed


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised momentum of a matrix, Jordan et al. 2024.

    Scaled as in Liu et al. 2025, so that a learning rate for AdamW suits Muon too. torch.optim.Muon updates
    one matrix at a time; here all matrices of one shape are orthogonalised in one batch.
    """

    def __init__(
        self,
        weights: Sequence[Tensor] | Sequence[dict[str, Any]],
        lr: float,
        weight_decay: float,
        bf16: bool = False,
    ):
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay, "momentum": 0.95})
        self.dtype = torch.bfloat16 if bf16 else torch.float32  # of products, which need little precision

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if "momentum" not in self.state[w]:
                    self.state[w]["momentum"] = torch.zeros_like(w)
            grads, momenta = [w.grad for w in weights], [self.state[w]["momentum"] for w in weights]
            torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            nesterov = torch._foreach_lerp(grads, momenta, group["momentum"])
            by_shape = defaultdict(list)
            for w, update in zip(weights, nesterov, strict=True):
                update = distributed.gather_full(update)
                wide = w.shape[0] <= w.shape[1]  # tall matrices are transposed
                by_shape[tuple(sorted(w.shape))].append((w, update if wide else update.mT, wide))
            for (_, longer), rows in by_shape.items():
                stacked = torch.stack([update for _, update, _ in rows])
                steps = orthogonalise(stacked.to(self.dtype)).to(stacked.dtype)
                scale = -0.2 * math.sqrt(longer) * group["lr"]
                if isinstance(scale, Tensor):  # in place, since CUDA graphs refer to it
                    steps, scale = steps * scale, 1.0
                changes = [
                    distributed.shard_like(step if wide else step.mT, w)
                    for step, (w, _, wide) in zip(steps, rows, strict=True)
                ]
                torch._foreach_add_([w for w, _, _ in rows], changes, alpha=scale)


def orthogonalise(G: Tensor) -> Tensor:
    """Approximate U Vᵀ of G = U S Vᵀ for a stack of wide matrices by five Newton-Schulz iterations."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G / G.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X


def make_optimizers(
    model: nn.Module,
    name: str,
    lr: float,
    weight_decay: float,
    beta2: float,
    bf16: bool = False,
    layer_decay: float = 1.0,
    graphs: bool = False,
) -> list[torch.optim.Optimizer]:
    """Return AdamW for all parameters, or Muon for the matrices in the blocks and AdamW for the rest.

    Vectors (biases and norms) have no weight decay. A group's learning rate is multiplied by its `scale`:
    `layer_decay` to the power of its distance from the top (Howard & Ruder 2018, 3.1; Clark et al. 2020).
    For CUDA `graphs`, learning rates are tensors.
    """
    blocks = [m for m in model.modules() if isinstance(m, Block)] if name == "muon" else []
    inside = {p for block in blocks for p in block.parameters() if p.ndim == 2}
    depth, groups = len(model.blocks), defaultdict(list)  # type: ignore[arg-type]
    for p, index in layer_index(model).items():
        if p.requires_grad:
            groups[p in inside, p.ndim < 2, layer_decay ** max(0, depth - index)].append(p)
    adamw: list[dict[str, Any]] = []
    muon: list[dict[str, Any]] = []
    for by_muon, vectors, scale in sorted(groups):
        group = {"params": groups[by_muon, vectors, scale], "scale": scale}
        (muon if by_muon else adamw).append(group | {"weight_decay": 0.0 if vectors else weight_decay})
    optimizers: list[torch.optim.Optimizer] = []
    if adamw:
        betas = (0.9, beta2)
        optimizers.append(torch.optim.AdamW(adamw, lr=lr, betas=betas, fused=True, capturable=graphs))
    if muon:
        optimizers.append(Muon(muon, lr, weight_decay, bf16))
    if graphs:
        for optimizer in optimizers:
            for g in optimizer.param_groups:
                g["lr"] = torch.tensor(lr, device=g["params"][0].device)
    return optimizers


def freeze(model: nn.Module, blocks: int) -> None:
    """Stop training the first `blocks` blocks and everything below them."""
    if blocks > (depth := len(model.blocks)):  # type: ignore[arg-type]
        raise UserError(
            f"train.freeze={blocks}: the model has {depth} blocks to freeze; give at most {depth}"
        )
    for p, index in layer_index(model).items():
        if index <= blocks:
            p.requires_grad_(False)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"train.freeze={blocks} leaves nothing to train; freeze fewer blocks")


# Schedules return a factor of the learning rate. `done` is the fraction of the run that is over, and `step`
# counts from 1.


def noam(done: float, step: int, warmup: int) -> float:
    """Decay with 1/√step after warm-up, Vaswani et al. 2017, eq. 3, scaled to 1 at the peak."""
    return math.sqrt(max(1, warmup) / step)


def cosine(done: float, step: int, warmup: int) -> float:
    """Half a cosine wave from 1 to 0.1, Radford et al. 2018."""
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def linear(done: float, step: int, warmup: int) -> float:
    """A straight line from 1 to 0, Devlin et al. 2019."""
    return 1 - done


def stable(done: float, step: int, warmup: int) -> float:
    """Warm-up, stable, decay: constant, then linear to 0 over the last 40 %, Hu et al. 2024."""
    return min(1.0, (1 - done) / 0.4)


SCHEDULES = {"noam": noam, "cosine": cosine, "linear": linear, "wsd": stable}


def lr_factor(schedule: str, done: float, step: int, warmup: int, longest: float = 0.0) -> float:
    """Return the factor of the learning rate at a step: linear warm-up, then the schedule.

    If the number of steps is not known, warm-up takes at most the share `longest` of the run.
    """
    if step <= warmup and not 0 < longest <= done:
        return max(step / warmup, done / longest) if longest else step / warmup
    return min(1.0, SCHEDULES[schedule](min(1.0, done), step, warmup))
