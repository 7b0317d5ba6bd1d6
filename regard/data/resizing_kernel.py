"""Weighted sums along one dimension of images by a Triton kernel: all taps of a filter in one pass.

Shapes: B batch, C channels, N pixels of a result, L lines of pixels, K taps of a filter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

BLOCK = 512  # numbers of a result in a program
TAPS = 4  # their number is a multiple


@triton.jit
def resample_kernel(
    x, out, first, weights, size, N, L, x_image, x_pixel, x_line, x_channel, image, pixel, line, channel,
    C: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out[b, n, l, c] = Σ_k weights[b, n, k] x[b, first[b, n] + k, l, c], rounded, from 0 to 255."""
    b, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, n, l = i % C, (i // C) % N, i // (C * N)
    inside = l < L
    start = tl.load(first + b * N + n, mask=inside, other=0).to(tl.int32)
    source = x + b * x_image + l * x_line + c * x_channel
    total = tl.full([BLOCK], 1 << (BITS - 1), tl.int32)
    for k in range(K):
        place = tl.minimum(start + k, size - 1)
        number = tl.load(source + place * x_pixel, mask=inside, other=0).to(tl.int32)
        total += number * tl.load(weights + (b * N + n) * K + k, mask=inside, other=0)
    total = tl.minimum(tl.maximum(total >> BITS, 0), 255)
    tl.store(out + b * image + n * pixel + l * line + c * channel, total.to(tl.uint8), mask=inside)


def resample(x: Tensor, dim: int, first: Tensor, weights: Tensor, bits: int) -> Tensor:
    """Return the weighted sums along a dimension, -1 or -2, of images (B, C, H, W), as images."""
    (B, C, *size), N = x.shape, weights.shape[1]
    weights = F.pad(weights, (0, -weights.shape[2] % TAPS))  # the kernel is compiled for each number of them
    size[dim] = N
    out = torch.empty(B, C, *size, dtype=torch.uint8, device=x.device)
    other = -3 - dim
    order = 0, dim, other, 1
    grid = triton.cdiv(N * x.shape[other] * C, BLOCK), B
    resample_kernel[grid](
        *(x, out, first.contiguous(), weights.contiguous(), x.shape[dim], N, x.shape[other]),
        *(x.stride(d) for d in order),
        *(out.stride(d) for d in order),
        C=C,
        K=weights.shape[2],
        BITS=bits,
        BLOCK=BLOCK,
    )
    return out
