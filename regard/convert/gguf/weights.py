"""Quantised tensors of a GGUF file as small weights, without a copy of the model in float32.

Four bits in groups of 32 (Q4_0, Q4_1, Q4_K) keep their integers; scales and offsets are rounded to bfloat16.
Others become integers of eight bits with one scale for each row.
"""

import numpy as np
import torch
from torch import Tensor

from regard.convert.gguf.quants import CHUNK, FOUR_BITS, dequantize
from regard.convert.gguf.reader import Gguf
from regard.quantize.weights import GROUP, Int4Weight, Int8Weight, join_nibbles


def read_weight(file: Gguf, name: str) -> Tensor:
    """A tensor: a matrix in few bits as a small weight, anything else in float32."""
    shape, kind = file.entries[name].shape, file.entries[name].kind
    if len(shape) != 2 or kind.numbers == 1:
        return file.tensor(name)
    rows, K = file.read_raw(name).reshape(shape[0], -1), shape[1]
    small = read_int4 if kind.name in FOUR_BITS else read_int8
    step = max(1, CHUNK * 256 // K)
    parts: list[Tensor] = []
    for i in range(0, len(rows), step):
        chunk = small(file, name, rows[i : i + step], K).parts
        parts = parts or [part.new_empty(len(rows), *part.shape[1:]) for part in chunk]
        for matrix, part in zip(parts, chunk, strict=True):
            matrix[i : i + step] = part
    return (Int4Weight if small is read_int4 else Int8Weight)(*parts)


def read_int4(file: Gguf, name: str, rows: np.ndarray, K: int) -> Int4Weight:
    kind = file.entries[name].kind
    with np.errstate(all="ignore"):
        integers, scale, offset = FOUR_BITS[kind.name](rows.reshape(-1, kind.bytes))
        pairs = np.stack([scale.reshape(-1), offset.reshape(-1)], -1).reshape(len(rows), K // GROUP, 2)
    scales = torch.from_numpy(file.finite(name, pairs)).bfloat16()
    return Int4Weight(join_nibbles(torch.from_numpy(integers.reshape(len(rows), K))), scales)


def read_int8(file: Gguf, name: str, rows: np.ndarray, K: int) -> Int8Weight:
    numbers = file.finite(name, dequantize(rows.reshape(-1), file.entries[name].kind))
    return Int8Weight.from_float(torch.from_numpy(numbers).view(-1, K))
