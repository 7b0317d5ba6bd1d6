"""llama.cpp's quantisation: blocks of small integers with scales, converted to float32.

Shapes: N blocks; the last axis is a block's bytes or, after conversion, its numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

CHUNK = 2**14  # blocks that are converted together, to limit memory


def float16(b: Array) -> Array:
    """16-bit floats as 32-bit, one or more for each block."""
    return b.view(np.float16).astype(np.float32)


def nibbles(q: Array) -> Array:
    """The lower four bits of each byte, then the upper ones."""
    return np.concatenate([q & 15, q >> 4], -1)


def fifth_bits(b: Array) -> Array:
    """The eight bits of each byte, as 0 or 16: the fifth bits of as many numbers."""
    return np.unpackbits(b, axis=-1, bitorder="little") << 4


def f32(b: Array) -> Array:
    return b.view(np.float32)


def f16(b: Array) -> Array:
    return float16(b)


def bf16(b: Array) -> Array:
    """The upper two bytes of 32-bit floats."""
    return (b.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def q8_0(b: Array) -> Array:
    return float16(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def q4_0(b: Array) -> Array:
    return float16(b[:, :2]) * (nibbles(b[:, 2:]).astype(np.float32) - 8)


def q4_1(b: Array) -> Array:
    return float16(b[:, :2]) * nibbles(b[:, 4:]).astype(np.float32) + float16(b[:, 2:4])


def q5_0(b: Array) -> Array:
    return float16(b[:, :2]) * ((nibbles(b[:, 6:]) | fifth_bits(b[:, 2:6])).astype(np.float32) - 16)


def q5_1(b: Array) -> Array:
    return float16(b[:, :2]) * (nibbles(b[:, 8:]) | fifth_bits(b[:, 4:8])).astype(np.float32) + float16(
        b[:, 2:4]
    )


def q4_k(b: Array) -> Array:
    q = nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scale_parts(b, q)


def q5_k(b: Array) -> Array:
    q = nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return scale_parts(b, q | fifth << 4)


def scale_parts(b: Array, q: Array) -> Array:
    """8 parts of a block, each with a scale and a minimum."""
    d, m = part_scales(b)
    return (d[..., None] * q.astype(np.float32) - m[..., None]).reshape(-1, 256)


def part_scales(b: Array) -> tuple[Array, Array]:
    """The scales and minima (N, 8) of a block's parts, of 6 bits each in 12 bytes."""
    low, high, both = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.concatenate([low & 63, both & 15 | low >> 6 << 4], -1)
    minima = np.concatenate([high & 63, both >> 4 | high >> 6 << 4], -1)
    d = float16(b[:, :2]) * scales.astype(np.float32)
    m = float16(b[:, 2:4]) * minima.astype(np.float32)
    return d, m


def q6_k(b: Array) -> Array:
    low = nibbles(b[:, :128].reshape(-1, 2, 64))  # twice 64 lower halves, then 64 upper
    high = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    q = (low | high.reshape(-1, 2, 128) << 4).astype(np.float32) - 32
    d = float16(b[:, 208:]) * b[:, 192:208].view(np.int8).astype(np.float32)
    return (d[..., None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


# Four bits as they are: integers of groups of 32, and a scale and an offset of each group, for which the
# numbers are scale * (integer - 8) + offset.


def split_q4_0(b: Array) -> tuple[Array, Array, Array]:
    scale = float16(b[:, :2])
    return nibbles(b[:, 2:]), scale, np.zeros_like(scale)


def split_q4_1(b: Array) -> tuple[Array, Array, Array]:
    scale = float16(b[:, :2])
    return nibbles(b[:, 4:]), scale, float16(b[:, 2:4]) + 8 * scale


def split_q4_k(b: Array) -> tuple[Array, Array, Array]:
    scale, minimum = part_scales(b)
    return nibbles(b[:, 16:].reshape(-1, 4, 32)), scale, 8 * scale - minimum


FOUR_BITS = {"Q4_0": split_q4_0, "Q4_1": split_q4_1, "Q4_K": split_q4_k}


@dataclass(frozen=True)
class QuantType:
    """The storage of numbers of one type."""

    name: str
    numbers: int  # in a block
    bytes: int
    convert: Callable[[Array], Array]  # (N, bytes) -> (N, numbers)


QUANT_TYPES = {  # by their numbers in files
    0: QuantType("F32", 1, 4, f32),
    1: QuantType("F16", 1, 2, f16),
    2: QuantType("Q4_0", 32, 18, q4_0),
    3: QuantType("Q4_1", 32, 20, q4_1),
    6: QuantType("Q5_0", 32, 22, q5_0),
    7: QuantType("Q5_1", 32, 24, q5_1),
    8: QuantType("Q8_0", 32, 34, q8_0),
    12: QuantType("Q4_K", 256, 144, q4_k),
    13: QuantType("Q5_K", 256, 176, q5_k),
    14: QuantType("Q6_K", 256, 210, q6_k),
    30: QuantType("BF16", 1, 2, bf16),
}


def dequantize(raw: Array, kind: QuantType) -> Array:
    """Convert bytes to numbers."""
    blocks = raw.reshape(-1, kind.bytes)
    step = CHUNK * 256 // kind.numbers
    numbers = np.empty((len(blocks), kind.numbers), np.float32)
    with np.errstate(all="ignore"):  # infinities and NaN stay; the reader refuses them
        for i in range(0, len(blocks), step):
            numbers[i : i + step] = kind.convert(blocks[i : i + step])
    return numbers.reshape(-1)
