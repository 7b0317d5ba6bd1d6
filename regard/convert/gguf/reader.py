"""GGUF, llama.cpp's format for a model in one file: values by key, then tensors, most of them quantised.

The file is read, tensor by tensor, not mapped: a mapped file that is cut short ends the process with SIGBUS.
Everything that it states is checked against its size, and no two tensors overlap, so that no file can ask for
more memory than one of its size can fill.
"""

import os
import struct
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.convert.gguf.quants import QUANT_TYPES, QuantType, dequantize
from regard.errors import UserError, os_reason, shorten

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {  # by their numbers in files: the formats of `struct`
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
MAX_AXES = 4
MAX_ALIGNMENT = 2**16
ALIGNMENT = "general.alignment"
MIN_TENSOR, MIN_KEY = 8 + 4 + 8 + 4 + 8, 8 + 4 + 1  # the smallest number of bytes that describe one


@dataclass(frozen=True)
class Entry:
    """The place of a tensor in the file."""

    shape: tuple[int, ...]
    kind: QuantType
    start: int
    end: int


class Gguf:
    """An open file. `values`: every key with its value; `entries`: every tensor by name."""

    def __init__(self, path: Path, file: BufferedReader):
        self.path, self.file, self.at = path, file, 0
        self.values, self.entries = dict[str, Any](), dict[str, Entry]()
        self.size = os.fstat(file.fileno()).st_size
        if self.size < len(MAGIC) or self.read(len(MAGIC), "its first bytes") != MAGIC:
            raise UserError(f"{path}: neither a model's folder nor a GGUF file; give one of these")
        if (version := self.read_number("<I", "version")) not in VERSIONS:
            supported = " and ".join(map(str, VERSIONS))
            raise UserError(
                f"{path}: version {version} of GGUF is not supported; supported: {supported}, little-endian"
            )
        tensors = self.read_count("the number of tensors", MIN_TENSOR)
        for _ in range(self.read_count("the number of keys", MIN_KEY)):
            key = self.read_string("a key")
            if key in self.values:
                raise self.damaged(key, "it is there twice")
            self.values[key] = self.read_value(self.read_number("<I", key), key)
        self.locate_tensors([self.read_tensor_info() for _ in range(tensors)])

    def damaged(self, key: str, why: str) -> UserError:
        return UserError(f"{self.path}: {shorten(key)}: {why}; the file is damaged, copy it again")

    # Reading at the current position

    def read(self, count: int, key: str) -> bytearray:
        """Return this many bytes and move on."""
        if count > self.size - self.at:
            raise self.damaged(key, "the file ends too early")
        raw = bytearray(count)
        try:
            if self.file.readinto(raw) < count:
                raise self.damaged(key, "it was cut while it was read")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({os_reason(error)})") from None
        self.at += count
        return raw

    def read_number(self, form: str, key: str) -> Any:
        return struct.unpack(form, self.read(struct.calcsize(form), key))[0]

    def read_count(self, key: str, size: int) -> int:
        """The number of items that take at least `size` bytes each."""
        count: int = self.read_number("<Q", key)
        if count > (self.size - self.at) // size:
            raise self.damaged(key, f"{count} are more than the file has room for")
        return count

    def read_string(self, key: str) -> str:
        try:
            return self.read(self.read_count(key, 1), key).decode()
        except UnicodeDecodeError:
            raise self.damaged(key, "not UTF-8") from None

    def read_value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.read_string(key)
        if kind in SCALARS:
            return self.read_number(SCALARS[kind], key)
        if kind != ARRAY:
            raise self.damaged(key, f"a value has the unknown type {kind}")
        inner = self.read_number("<I", key)
        if inner == STRING:
            return [self.read_string(key) for _ in range(self.read_count(key, 8))]
        if inner not in SCALARS:
            raise self.damaged(key, f"a list has the unknown type {inner}")
        dtype = np.dtype(SCALARS[inner].replace("b", "i1"))
        return np.frombuffer(self.read(self.read_count(key, dtype.itemsize) * dtype.itemsize, key), dtype)

    def read_tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """A tensor's name, shape, type, and offset from the first tensor."""
        name = self.read_string("a tensor's name")
        if (axes := self.read_number("<I", name)) > MAX_AXES:
            raise self.damaged(name, f"{axes} axes are more than {MAX_AXES}")
        shape = tuple(self.read_number("<Q", name) for _ in range(axes))[
            ::-1
        ]  # files have the last axis first
        return name, shape, self.read_number("<I", name), self.read_number("<Q", name)

    # Tensors

    def locate_tensors(self, tensors: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        """Fill `entries`; all tensors are inside of the file, and no two overlap."""
        step = self.values.get(ALIGNMENT, 32)
        if not isinstance(step, int) or isinstance(step, bool) or not 0 < step <= MAX_ALIGNMENT:
            raise self.damaged(
                ALIGNMENT, f"{shorten(step)} should be a whole number from 1 to {MAX_ALIGNMENT}"
            )
        first = self.at + -self.at % step
        for name, shape, number, offset in tensors:
            if number not in QUANT_TYPES:
                supported = ", ".join(kind.name for kind in QUANT_TYPES.values())
                raise UserError(
                    f"{self.path}: {shorten(name)}: type {number} is not supported; supported: {supported}"
                )
            kind, size = QUANT_TYPES[number], prod(shape)
            if name in self.entries:
                raise self.damaged(name, "it is there twice")
            if size == 0 or (shape[-1:] and shape[-1] % kind.numbers) or size % kind.numbers:
                raise self.damaged(
                    name, f"{shorten(list(shape))} does not divide into blocks of {kind.numbers}"
                )
            start, end = first + offset, first + offset + size // kind.numbers * kind.bytes
            if offset % step or end > self.size:
                raise self.damaged(name, f"it should be at byte {start} to {end} of {self.size}")
            self.entries[name] = Entry(shape, kind, start, end)
        last = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1].start):
            if entry.start < last:
                raise self.damaged(name, "it overlaps another tensor")
            last = entry.end

    def tensor(self, name: str) -> "Tensor":
        """A tensor as float32, up to eight times as large as in the file."""
        import torch  # not needed for `regard info`

        entry = self.entries[name]
        numbers = self.finite(name, dequantize(self.read_raw(name), entry.kind))
        return torch.from_numpy(numbers).view(entry.shape)

    def read_raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor."""
        entry = self.entries[name]
        self.at = self.file.seek(entry.start)
        return np.frombuffer(self.read(entry.end - entry.start, name), np.uint8)

    def finite(self, name: str, numbers: np.ndarray) -> np.ndarray:
        if not np.isfinite(numbers).all():
            raise self.damaged(name, "some of its numbers are infinite or NaN")
        return numbers
