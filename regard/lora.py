"""Low-rank adaptation: instead of a matrix, learn a small change to it. Hu et al. 2021.

Shapes: B batch, T tokens, O outputs, I inputs, r rank.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import optim
from .attention import Attention
from .errors import Mistake

ADAPTED = ("q", "v")  # of an attention's layers, as published: section 5.1


class LoRALinear(nn.Linear):
    """(W + α/r B A) x + b, Hu et al. 2021, eq. 3. At first B is zero, so that nothing has changed.

    It takes the plain layer's place: W and b keep their names.
    """

    def __init__(self, plain: nn.Linear, rank: int, alpha: float):
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.rank, self.alpha = rank, alpha
        W = plain.weight
        self.lora_A = nn.Parameter(torch.randn(rank, W.shape[1]).to(W) / math.sqrt(W.shape[1]))  # (r, I)
        self.lora_B = nn.Parameter(W.new_zeros(W.shape[0], rank))  # (O, r)

    def forward(self, x: Tensor) -> Tensor:
        change = F.linear(F.linear(x, self.lora_A), self.lora_B)  # (B, T, O)
        return super().forward(x) + self.alpha / self.rank * change


def add(model: nn.Module, rank: int, alpha: float) -> None:
    """Adapt the blocks' attentions; of the rest, only what stands above the blocks goes on learning."""
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    attentions = [m for block in blocks for m in block.modules() if isinstance(m, Attention)]
    if not attentions:
        raise Mistake(f"train.lora={rank}: this model has no attention in its layers to adapt; leave it out")
    if rank > (dim := attentions[0].q.in_features):
        raise Mistake(f"train.lora={rank} is more than the model's width; give at most {dim}, or far less")
    for p, place in optim.places(model).items():
        if place <= len(blocks):
            p.requires_grad_(False)
    for attention in attentions:
        for name in ADAPTED:
            setattr(attention, name, LoRALinear(getattr(attention, name), rank, alpha))


def merge(model: nn.Module, weights: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The model's weights, or others of its kind, as those of the model without LoRA: W + α/r B A is W."""
    weights = dict(model.state_dict() if weights is None else weights)
    for name, m in model.named_modules():
        if isinstance(m, LoRALinear):
            # exactly, where a GPU's products may be coarse
            A, B = (weights.pop(f"{name}.lora_{which}").cpu().double() for which in "AB")
            W = weights[f"{name}.weight"]
            weights[f"{name}.weight"] = W + (m.alpha / m.rank * B @ A).to(W)
    return weights
