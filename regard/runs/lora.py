"""Low-rank adaptation (LoRA): train a low-rank update of a matrix instead of the matrix. Hu et al. 2021.

Shapes: B batch, T tokens, O outputs, I inputs, r rank.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Attention
from regard.errors import UserError
from regard.runs.layers import layer_index

ADAPTED = ("q", "v")  # the projections of an attention that are adapted, as in section 5.1


class LoRALinear(nn.Linear):
    """(W + α/r B A) x + b, Hu et al. 2021, eq. 3. B starts at zero, so that the model starts unchanged.

    It replaces a linear layer, and W and b keep their names.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.alpha = rank, alpha
        W = linear.weight
        self.lora_A = nn.Parameter(torch.randn(rank, W.shape[1]).to(W) / math.sqrt(W.shape[1]))  # (r, I)
        self.lora_B = nn.Parameter(W.new_zeros(W.shape[0], rank))  # (O, r)

    def forward(self, x: Tensor) -> Tensor:
        change = F.linear(F.linear(x, self.lora_A), self.lora_B)  # (B, T, O)
        return super().forward(x) + self.alpha / self.rank * change


def add(model: nn.Module, rank: int, alpha: float, only: bool = False) -> None:
    """Add LoRA to the attentions of the blocks, and freeze everything else up to the last block; with `only`,
    also everything above it."""
    blocks: list[nn.Module] = list(model.blocks)  # type: ignore[arg-type]
    attentions = [m for block in blocks for m in block.modules() if isinstance(m, Attention)]
    if not attentions:
        raise UserError(f"train.lora={rank}: the model has no attention to adapt; leave it out")
    if rank > (dim := attentions[0].q.in_features):
        raise UserError(f"train.lora={rank} is more than the width of the model; use at most {dim}")
    for p, index in layer_index(model).items():
        if only or index <= len(blocks):
            p.requires_grad_(False)
    for attention in attentions:
        for name in ADAPTED:
            setattr(attention, name, LoRALinear(getattr(attention, name), rank, alpha))


def matrices(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B among these weights, by the name of the weight that they change."""
    names = [name for name, m in model.named_modules() if isinstance(m, LoRALinear)]
    return {f"{n}.weight": (weights[f"{n}.lora_A"], weights[f"{n}.lora_B"]) for n in names}


class Merged(Mapping[str, Tensor]):
    """Weights of a model with W + α/r B A merged into W. Each is read and merged when it is asked for: a file
    is written with one of them in memory."""

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]):
        self.weights = weights
        layers = {name: m for name, m in model.named_modules() if isinstance(m, LoRALinear)}
        self.adapters = {f"{name}.weight": (f"{name}.lora_A", f"{name}.lora_B") for name in layers}
        self.scales = {f"{name}.weight": m.alpha / m.rank for name, m in layers.items()}
        matrices = {matrix for pair in self.adapters.values() for matrix in pair}
        self.names = [name for name in weights if name not in matrices]

    def __getitem__(self, name: str) -> Tensor:
        W = self.weights[name]
        if name not in self.adapters:
            return W
        # in float64 on the CPU: products on a GPU may be less exact
        A, B = (self.weights[matrix].cpu().double() for matrix in self.adapters[name])
        return W + (self.scales[name] * B @ A).to(W)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def merge(model: nn.Module, weights: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the model's weights, or the given ones, with W + α/r B A merged into W."""
    return dict(Merged(model, model.state_dict() if weights is None else weights))
