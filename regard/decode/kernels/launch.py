"""What all Triton kernels of a step share: how they start, wait for each other and take a norm."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.decode.kernels.plain import Norm

MODES: dict[str, int] = {}
COUNTERS = 1 << 20  # of programs that work on one result together, in one kernel

NO_NORM, RMS_NORM, LAYER_NORM = (tl.constexpr(i) for i in range(3))


@triton.jit
def begin_kernel(PDL: tl.constexpr):
    """Let the next kernel start, and wait for the end of the one before."""
    if PDL == 1:
        gdc_launch_dependents()
    if PDL:
        gdc_wait()
    if PDL > 1:
        gdc_launch_dependents()


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may start before the one ahead of it ends: programmatic dependent launch, Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def get_counters(device: torch.device) -> Tensor:
    """Counters that are 0 between kernels: kernels that use them run one after the other on a device."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def start_kernel(
    kernel: triton.JITFunction, grid: tuple[int, ...], like: Tensor, *args: object, **options: object
) -> None:
    """Start a kernel on the device of `like`."""
    pdl = (
        MODES.get(kernel.fn.__name__ + ("1" if options.get("ONE_ROW") or options.get("EARLY") else ""), 2)
        if can_overlap(like.device)
        else 0
    )
    with torch.cuda.device_of(like):
        kernel[grid](*args, **options, PDL=pdl, **({"launch_pdl": True} if pdl else {}))


def norm_arguments(norm: Norm | None) -> tuple[Tensor | None, Tensor | None, float, int]:
    """Weight, bias, ε and kind of a norm."""
    if norm is None:
        return None, None, 0.0, NO_NORM.value
    return norm.weight, norm.bias, norm.eps, (LAYER_NORM if norm.centered else RMS_NORM).value
