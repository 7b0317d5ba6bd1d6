"""Dropout from random bytes, for compiled models on a GPU.

Compiled code computes Philox for every element, and uses one of its four numbers. Here torch's own kernel
draws bits with all four: a byte for an element where p is a multiple of 1/256, else two. Which elements stay
is kept for the backward pass, in which torch's own kernel drops their gradients: as a part of the compiled
kernel for the gradient of a norm, it would make that one three times as slow.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

SIGNED = {8: torch.int8, 16: torch.int16}  # integers by their number of bits


def drop_by_bytes(model: nn.Module) -> None:
    """Let all dropout layers of a model compare random bytes with p."""
    for m in model.modules():
        if type(m) is nn.Dropout and 0 < threshold(m.p, bits_for(m.p)) < 2 ** bits_for(m.p):
            m.__class__ = BytesDropout


class BytesDropout(nn.Dropout):
    """Dropout whose p is met exactly if it is a multiple of 1/256, else to 2^-17."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        # Equal calls would be merged into one if nothing distinguished them. Numbers that torch drew are
        # never merged, and none at all cost nothing.
        apart = torch.randint(2, (0,), device=x.device)
        y: Tensor = Drop.apply(x, random_bits(apart, x.shape, bits_for(self.p)), self.p)
        return y


def bits_for(p: float) -> int:
    return 8 if p * 2**8 % 1 == 0 else 16


def threshold(p: float, bits: int) -> int:
    """The unsigned numbers of `bits` bits that are below this one are a share p of all."""
    return round(p * 2**bits)


class Drop(torch.autograd.Function):
    """x without the elements whose bits are among the lowest numbers; the others grow by as much."""

    @staticmethod
    def forward(ctx, x, bits, p):
        count = 2 ** (8 * bits.itemsize)
        limit = threshold(p, 8 * bits.itemsize)
        stays, ctx.scale = bits >= limit - count // 2, count / (count - limit)
        ctx.save_for_backward(stays)
        return torch.where(stays, x * ctx.scale, 0.0)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.regard.drop_gradient(grad, *ctx.saved_tensors, ctx.scale), None, None


@torch.library.custom_op("regard::drop_gradient", mutates_args=())
def drop_gradient(grad: Tensor, stays: Tensor, scale: float) -> Tensor:
    return torch.ops.aten.native_dropout_backward(grad, stays, scale)


@drop_gradient.register_fake
def _(grad, stays, scale):
    return torch.empty_like(grad)


@torch.library.custom_op("regard::random_bits", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def random_bits(apart: Tensor, shape: Sequence[int], bits: int) -> Tensor:
    """Integers of 8 or 16 random bits on the device of `apart`."""
    count = math.prod(shape)
    words = torch.empty(-(-count * bits // 64), dtype=torch.int64, device=apart.device)
    words.random_(-(2**63), None)  # without an upper limit: all 64 bits
    return words.view(SIGNED[bits])[:count].view(shape)


@random_bits.register_fake
def _(apart, shape, bits):
    return apart.new_empty(shape, dtype=SIGNED[bits])
