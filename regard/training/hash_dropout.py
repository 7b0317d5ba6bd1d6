"""Dropout by a hash of the place, for compiled models on a GPU.

torch's random numbers (Philox) take more time than the norm that is computed in the same kernel. Here one is
drawn for a whole tensor, and its elements are hashed with it: two products instead of twenty.
"""

import torch
from torch import Tensor, nn


def use_hash_dropout(model: nn.Module) -> None:
    """Let all dropout layers of a model hash, in training on a GPU."""
    for m in model.modules():
        if type(m) is nn.Dropout:
            m.__class__ = HashDropout


class HashDropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p > 0 and x.is_cuda):
            return super().forward(x)
        return hash_dropout(x, self.p)


def hash_dropout(x: Tensor, p: float) -> Tensor:
    """x with a share p of its elements set to zero, and the others divided by 1 - p."""
    seed = torch.randint(-(2**31), 2**31, (), dtype=torch.int32, device=x.device)
    number = hash_places(x.numel(), seed).view(x.shape)  # from -2^31 to 2^31 - 1
    return torch.where(number >= round(p * 2**32) - 2**31, x / (1 - p), 0.0)


def hash_places(count: int, seed: Tensor) -> Tensor:
    """Integers of 32 bits for the numbers below `count`: murmur3's last steps, Appleby 2008.

    Products wrap around. Shifts are those of unsigned numbers.
    """
    h = torch.arange(count, dtype=torch.int32, device=seed.device) * -1640531535 + seed  # 2^32 / golden ratio
    h = (h ^ (h >> 16 & 0xFFFF)) * -2048144789
    h = (h ^ (h >> 13 & 0x7FFFF)) * -1028477387
    return h ^ (h >> 16 & 0xFFFF)
