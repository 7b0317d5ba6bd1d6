"""The operations of a step of generation: by Triton on GPUs that support it, else in plain torch."""

import importlib.util
from types import ModuleType

import torch

from regard.decode.kernels import plain
from regard.decode.kernels.plain import Norm

__all__ = ["Norm", "for_device", "has_fused", "plain"]


def has_fused(device: torch.device) -> bool:
    """Return whether the Triton kernels run on this device: an Nvidia GPU, from Ampere on."""
    return (
        device.type == "cuda"
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


def for_device(device: torch.device) -> ModuleType:
    """The module with the operations for this device."""
    if has_fused(device):
        from regard.decode.kernels import fused

        return fused
    return plain
