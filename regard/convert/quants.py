"""llama.cpp's ways to keep weights in few bits: blocks of small whole numbers with scales, back as float32.

Shapes: N blocks; the last axis is a block's bytes or, in what comes out, its numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

AT_ONCE = 2**14  # blocks: what they take on the way stays small


def halves(b: Array) -> Array:
    """16-bit floats, one or more for each block."""
    return b.view(np.float16).astype(np.float32)


def nibbles(q: Array) -> Array:
    """The lower halves of some bytes, then the upper ones."""
    return np.concatenate([q & 15, q >> 4], -1)


def bits(b: Array) -> Array:
    """Of each byte 8 numbers, 0 or 16: the fifth bits of as many others."""
    return np.unpackbits(b, axis=-1, bitorder="little") << 4


def f32(b: Array) -> Array:
    return b.view(np.float32)


def f16(b: Array) -> Array:
    return halves(b)


def bf16(b: Array) -> Array:
    """The upper halves of 32-bit floats."""
    return (b.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def q8_0(b: Array) -> Array:
    return halves(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def q4_0(b: Array) -> Array:
    return halves(b[:, :2]) * (nibbles(b[:, 2:]).astype(np.float32) - 8)


def q4_1(b: Array) -> Array:
    return halves(b[:, :2]) * nibbles(b[:, 4:]).astype(np.float32) + halves(b[:, 2:4])


def q5_0(b: Array) -> Array:
    return halves(b[:, :2]) * ((nibbles(b[:, 6:]) | bits(b[:, 2:6])).astype(np.float32) - 16)


def q5_1(b: Array) -> Array:
    return halves(b[:, :2]) * (nibbles(b[:, 8:]) | bits(b[:, 4:8])).astype(np.float32) + halves(b[:, 2:4])


def q4_k(b: Array) -> Array:
    q = nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scaled(b, q)


def q5_k(b: Array) -> Array:
    q = nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return scaled(b, q | fifth << 4)


def scaled(b: Array, q: Array) -> Array:
    """8 parts of a block, each with its own scale and least value, which have 6 bits each in 12 bytes."""
    low, high, both = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = np.concatenate([low & 63, both & 15 | low >> 6 << 4], -1)
    least = np.concatenate([high & 63, both >> 4 | high >> 6 << 4], -1)
    d = halves(b[:, :2]) * scales.astype(np.float32)
    m = halves(b[:, 2:4]) * least.astype(np.float32)
    return (d[..., None] * q.astype(np.float32) - m[..., None]).reshape(-1, 256)


def q6_k(b: Array) -> Array:
    low = nibbles(b[:, :128].reshape(-1, 2, 64))  # twice 64 lower halves, then 64 upper
    high = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    q = (low | high.reshape(-1, 2, 128) << 4).astype(np.float32) - 32
    d = halves(b[:, 208:]) * b[:, 192:208].view(np.int8).astype(np.float32)
    return (d[..., None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


@dataclass(frozen=True)
class Kind:
    name: str
    numbers: int  # in a block
    bytes: int
    read: Callable[[Array], Array]  # (N, bytes) -> (N, numbers)


KINDS = {  # by the number that a file has for it
    0: Kind("F32", 1, 4, f32),
    1: Kind("F16", 1, 2, f16),
    2: Kind("Q4_0", 32, 18, q4_0),
    3: Kind("Q4_1", 32, 20, q4_1),
    6: Kind("Q5_0", 32, 22, q5_0),
    7: Kind("Q5_1", 32, 24, q5_1),
    8: Kind("Q8_0", 32, 34, q8_0),
    12: Kind("Q4_K", 256, 144, q4_k),
    13: Kind("Q5_K", 256, 176, q5_k),
    14: Kind("Q6_K", 256, 210, q6_k),
    30: Kind("BF16", 1, 2, bf16),
}


def dequantised(raw: Array, kind: Kind) -> Array:
    """All numbers of some bytes."""
    blocks = raw.reshape(-1, kind.bytes)
    many = AT_ONCE * 256 // kind.numbers
    found = np.empty((len(blocks), kind.numbers), np.float32)
    with np.errstate(all="ignore"):  # what is no number stays none, without a word
        for i in range(0, len(blocks), many):
            found[i : i + many] = kind.read(blocks[i : i + many])
    return found.reshape(-1)
