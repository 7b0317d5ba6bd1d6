"""Products of 8-bit numbers (float8, e4m3) while a model is trained, Micikevicius et al. 2022.

Every row of both factors has a scale of its own: the kernel that computes a row can find it, without a pass
over the whole tensor before. Gradients of weights are sums over all tokens, and stay in 16 bits.

Shapes: N tokens, K inputs, M outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.layers import Block
from regard.errors import UserError

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FLOAT8).max
SMALLEST = 1e-12  # of a row's largest number: a row of zeros stays one
TILE = 16  # both sizes of a product are multiples of it


def use_fp8(model: nn.Module, device: torch.device) -> None:
    """Multiply in 8 bits in the linear layers of all blocks, if sizes allow it; weights keep their names."""
    if not multiplies_float8(device):
        raise UserError(
            "train.precision=fp8 needs a GPU that multiplies 8-bit numbers (Ada, Hopper or newer); use bf16"
        )
    layers = [m for block in model.modules() if isinstance(block, Block) for m in block.modules()]
    for m in layers:
        if type(m) is nn.Linear and m.in_features % TILE == 0 and m.out_features % TILE == 0:
            m.__class__ = Fp8Linear


def multiplies_float8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


class Fp8Linear(nn.Linear):
    """A linear layer that multiplies in 8 bits in training with autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return fp8_linear(x, self.weight, self.bias) if self.training else super().forward(x)


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, with the product in 8 bits if there is autocast."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return F.linear(x, weight, bias)
    dtype = torch.get_autocast_dtype(kind)
    y: Tensor = Product.apply(x.to(dtype).flatten(0, -2), weight.to(dtype))
    y = y.unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias.to(dtype)


class Product(torch.autograd.Function):
    """x Wᵀ of 8-bit rows, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # (N, K), (M, K)
        ctx.save_for_backward(x, weight)
        return multiply_rows(x, weight)  # (N, M)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return multiply_rows(dy, weight.mT.contiguous()), dy.mT @ x  # (N, K), (M, K)


def multiply_rows(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ, in the dtype of a."""
    (a8, a_scale), (b8, b_scale) = scale_rows(a), scale_rows(b)
    how: dict[str, Any] = {"scale_a": a_scale, "scale_b": b_scale.mT, "use_fast_accum": True}
    y: Tensor = torch._scaled_mm(a8, b8.mT, out_dtype=a.dtype, **how)
    return y


def scale_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (N, K) in 8 bits, and the scale (N, 1) of each row, whose largest number becomes the largest one."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=SMALLEST) / LARGEST
    return (x.float() / scale).to(FLOAT8), scale
