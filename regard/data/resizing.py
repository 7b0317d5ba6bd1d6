"""Resize images on a GPU exactly as Pillow does: bicubic, with its integer arithmetic.

Resizing takes Pillow twice as long as decoding a JPEG. A GPU that trains has time for it.

Shapes: B batch, C channels, H height, W width, R room for an image, N pixels of a result, K taps of a filter.
"""

import functools
import importlib.util
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regard.vision.decoding import Axis, Part, Shape, Size, part_of, resize_image

BITS = 22  # of the fraction of a weight, in Pillow's Resample.c
AT_ONCE = 2**24  # numbers that are resized at a time: a few buffers of 64 MiB
FUSED = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
SHARE = 0.9  # of the images have room to be resized on the device


def resizing_device() -> torch.device | None:
    """The GPU that this process and thread use already, if there is one and it resizes as Pillow does."""
    if not torch.cuda.is_initialized():
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    return device if resizes_exactly(device) else None


def room_for(sizes: Sequence[Size], shape: Shape) -> int:
    """The side of a square that has room for most images as their decoder returns them."""
    _, H, W = shape
    width, height = np.array([size[:2] for size in sizes], dtype=np.float64).T
    fraction = np.minimum(width // W, height // H)
    fraction = np.select([fraction >= 8, fraction >= 4, fraction >= 2], [8, 4, 2], 1)  # of JPEGs
    scale = np.minimum(width / W, height / H) / fraction
    side = np.quantile(scale, SHARE, method="higher") * max(H, W) + 12  # and the filter's margins
    return int(np.clip(side, max(H, W), 2 * max(H, W) + 16)) + 1


def resize_parts(rooms: Tensor, parts: Sequence[Part], shape: Shape) -> Tensor:
    """Return the images (B, C, H, W) of what `decode_part` has put into rooms (B, R, R, C)."""
    (_, H, W), device = shape, rooms.device
    across = filters([part[0] for part in parts], W, device)
    down = filters([part[1] for part in parts], H, device)
    result = torch.empty(len(rooms), *shape, dtype=torch.uint8, device=device)
    size = max(1, AT_ONCE // rooms[0].numel())
    for columns_first in (False, True):
        rows = [row for row, part in enumerate(parts) if part[2] == columns_first]
        for i in range(0, len(rows), size):
            index = torch.tensor(rows[i : i + size], device=device)
            x = rooms[index].permute(0, 3, 1, 2)  # (B, C, R, R)
            for dim, (first, weights) in [(-2, down), (-1, across)][:: 1 if columns_first else -1]:
                x = resample(x, dim, first[index], weights[index])
            result[index] = x
    return result


@functools.cache
def resizes_exactly(device: torch.device) -> bool:
    """Whether images resized on this device are those of this version of Pillow."""
    random, shape = np.random.default_rng(0), (3, 23, 29)
    pictures = [
        random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((37, 41), (61, 31), (19, 53))
    ]
    rooms, parts, wanted = np.zeros((len(pictures), 64, 64, 3), np.uint8), list[Part](), list[np.ndarray]()
    for picture, room in zip(pictures, rooms, strict=True):
        parts.append(part_of(Image.fromarray(picture), shape, room))
        wanted.append(resize_image(Image.fromarray(picture), shape))
    try:
        resized = resize_parts(torch.from_numpy(rooms).to(device), parts, shape)
    except RuntimeError:  # an operation on integers that this device does not have: Pillow resizes
        return False
    return bool((resized.cpu().numpy() == np.stack(wanted)).all())


def filters(axes: Sequence[Axis], out: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the pixels of each result begin (B, N), and their weights (B, N, K), as integers.

    As precompute_coeffs and normalize_coeffs_8bpc of Pillow's Resample.c, operation by operation.
    """
    columns = np.array(axes).T
    start, end = columns[:2].astype(np.float32)
    scale = (end - start).astype(np.float64) / out
    numbers = np.stack([start.astype(np.float64), scale, np.maximum(scale, 1.0), *columns[2:]])
    taps = int(4 * numbers[2].max()) + 2
    start_, scale_, filter_scale, size, skipped = torch.from_numpy(numbers).to(device)[..., None].unbind()
    center = start_ + (torch.arange(out, device=device) + 0.5) * scale_  # (B, N)
    support = 2.0 * filter_scale
    first = (center - support + 0.5).long().clamp(min=0)
    last = torch.minimum((center + support + 0.5).long(), size.long())
    weights, total = list[Tensor](), torch.zeros_like(center)
    for k in range(taps):
        weight = bicubic((first + k - center + 0.5) * (1.0 / filter_scale))
        weights.append(torch.where(first + k < last, weight, 0.0))
        total = total + weights[-1]
    exact = torch.stack(weights, dim=-1) / total[..., None] * (1 << BITS)  # (B, N, K)
    return first - skipped.long(), torch.where(exact < 0, exact - 0.5, exact + 0.5).int()


def bicubic(x: Tensor) -> Tensor:
    """Keys 1981, with a = -1/2."""
    x, a = x.abs(), -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


def resample(x: Tensor, dim: int, first: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums along a dimension, -1 or -2, of images (B, C, H, W), as images."""
    if FUSED and x.is_cuda:
        from regard.data import resizing_kernel

        return resizing_kernel.resample(x, dim, first, weights, BITS)
    return plain_resample(x, dim, first, weights)


def plain_resample(x: Tensor, dim: int, first: Tensor, weights: Tensor) -> Tensor:
    x = x.int()
    B, C, *size = x.shape
    size[dim] = first.shape[1]
    shape = (B, 1, 1, -1) if dim == -1 else (B, 1, -1, 1)
    total = torch.full((B, C, *size), 1 << (BITS - 1), dtype=torch.int32, device=x.device)
    for k in range(weights.shape[-1]):
        index = (first + k).clamp(max=x.shape[dim] - 1).view(shape).expand(B, C, *size)
        total.addcmul_(x.gather(dim, index), weights[..., k].view(shape))
    return (total >> BITS).clamp(0, 255).to(torch.uint8)
