"""The common parts of a step's Triton kernels: starting, waiting for each other, and norms."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from regard.decode.kernels.plain import Norm

COUNTERS = 1 << 20  # of programs that work on one result together, in one kernel

NO_NORM, RMS_NORM, LAYER_NORM = (tl.constexpr(i) for i in range(3))


@triton.jit
def begin_kernel(PDL: tl.constexpr):
    """Wait for the end of the previous kernel, and let the next one start."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@functools.cache
def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may start before the previous one ends: programmatic dependent launch, Hopper."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Whether products of 64 rows have instructions of their own (wgmma), and enough shared memory."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def get_counters(device: torch.device) -> Tensor:
    """Counters that are 0 between kernels: kernels that use them run one after the other on a device."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def start_kernel(
    kernel: triton.JITFunction, grid: tuple[int, ...], like: Tensor, *args: object, **options: object
) -> None:
    """Start a kernel on the device of `like`. Its tensors are contiguous."""
    assert all(t.is_contiguous() for t in args if isinstance(t, Tensor)), kernel
    pdl = can_overlap(like.device)
    with torch.cuda.device_of(like):
        kernel[grid](*args, **options, PDL=pdl, **({"launch_pdl": True} if pdl else {}))


def norm_arguments(norm: Norm | None) -> tuple[Tensor | None, Tensor | None, float, int]:
    """Weight, bias, ε and kind of a norm."""
    if norm is None:
        return None, None, 0.0, NO_NORM.value
    return norm.weight, norm.bias, norm.eps, (LAYER_NORM if norm.centered else RMS_NORM).value
