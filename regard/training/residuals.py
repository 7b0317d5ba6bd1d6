"""Residual streams in 16 bits, while a compiled model is trained with autocast.

Autocast leaves sums of the blocks in 32 bits. They are read and written a dozen times in a block, forward and
backward, which takes longer than some of its products. Norms still compute in 32 bits, from rounded inputs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.core.layers import Residual
from regard.training.joint import CachelessStack


def narrow_residuals(model: nn.Module) -> None:
    """Use 16 bits for the residual streams of a model with joint products."""
    for m in model.modules():
        if type(m) is CachelessStack:
            m.__class__ = NarrowStack
        elif type(m) is Residual:
            m.__class__ = NarrowResidual


class NarrowStack(CachelessStack):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dtype, kind = x.dtype, x.device.type
        if self.training and torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        return super().forward(x, *args, **kwargs).to(dtype)


class NarrowResidual(Residual):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.pre:
            return x + self.drop(self.f(self.norm(widen(x)), *args, **kwargs)).to(x.dtype)
        return self.norm(widen(x + self.drop(self.f(x, *args, **kwargs)))).to(x.dtype)


def widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
