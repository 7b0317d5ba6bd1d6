"""Dropout from random bytes, for compiled models on a GPU.

Compiled code computes Philox anew for every element, forward and backward, and uses one of its four numbers.
Here torch's own kernel draws bits with all four, and they are kept for the backward pass: a byte for an
element where p is a multiple of 1/256, else two.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

SIGNED = {8: torch.int8, 16: torch.int16}  # integers of so many bits


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
        # Equal calls would be merged into one, if nothing told them apart. Numbers that torch drew are never
        # merged, and none at all cost nothing.
        apart = torch.randint(2, (0,), device=x.device)
        return drop(x, random_bits(apart, x.shape, bits_for(self.p)), self.p)


def bits_for(p: float) -> int:
    return 8 if p * 2**8 % 1 == 0 else 16


def threshold(p: float, bits: int) -> int:
    """The unsigned numbers of so many bits below this one are a share p of all."""
    return round(p * 2**bits)


def drop(x: Tensor, bits: Tensor, p: float) -> Tensor:
    """x without the elements whose bits are among the lowest numbers; the others grow by as much."""
    count = 2 ** (8 * bits.itemsize)
    limit = threshold(p, 8 * bits.itemsize)
    return torch.where(bits >= limit - count // 2, x * (count / (count - limit)), 0.0)


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
