"""The operations of a step of generation: by Triton on a GPU that has it, else plainly."""

import importlib.util
from types import ModuleType

import torch

from regard.decode.kernels import plain
from regard.decode.kernels.plain import Norm

__all__ = ["Norm", "for_device"]


def for_device(device: torch.device) -> ModuleType:
    """The module with the operations for this device. `fused` needs Triton and an Nvidia GPU, from Ampere."""
    if (
        device.type == "cuda"
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and importlib.util.find_spec("triton")
    ):
        from regard.decode.kernels import fused

        return fused
    return plain
