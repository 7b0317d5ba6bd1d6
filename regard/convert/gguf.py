"""GGUF, llama.cpp's file of one model: what is told by key, then tensors, most of them quantised.

Read through a memory map. Nothing that a file says of itself is believed before it is checked against what
the file has, and no tensors share bytes, so that no file asks for more memory than one of its size can fill.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import Mistake
from .family import short
from .quants import KINDS, Kind, dequantised

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {  # by the number that a file has for them: how `struct` reads them
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
DEEPEST = 4  # axes of a tensor
ALIGNMENT = "general.alignment"


@dataclass(frozen=True)
class Entry:
    """Where a tensor is."""

    shape: tuple[int, ...]
    kind: Kind
    start: int
    end: int


class Gguf:
    """`told`: all keys with their values; `entries`: all tensors by name."""

    def __init__(self, path: Path):
        self.path, self.at, self.told, self.entries = path, 0, dict[str, Any](), dict[str, Entry]()
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise Mistake(f"{path}: neither a model's folder nor a GGUF file; give one of these")
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = len(MAGIC)
        if (version := self.number("<I", "version")) not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise Mistake(f"{path}: version {version} of GGUF is not known; known are {known}, little-endian")
        tensors = self.many("the count of tensors", 8 + 4 + 8 + 4 + 8)
        for _ in range(self.many("the count of keys", 8 + 4 + 1)):
            key = self.string("a key")
            if key in self.told:
                raise self.wrong(key, "it is there twice")
            self.told[key] = self.value(self.number("<I", key), key)
        places = [self.place() for _ in range(tensors)]
        self.settle(places)

    def wrong(self, key: str, why: str) -> Mistake:
        return Mistake(f"{self.path}: {short(key)}: {why}; the file is damaged, copy it again")

    # What stands at a place

    def take(self, many: int, key: str) -> int:
        """Where the next so many bytes begin."""
        at, self.at = self.at, self.at + many
        if self.at > len(self.bytes):
            raise self.wrong(key, "the file ends before it does")
        return at

    def number(self, form: str, key: str) -> Any:
        return struct.unpack_from(form, self.bytes, self.take(struct.calcsize(form), key))[0]

    def many(self, key: str, least: int) -> int:
        """A count of things that take at least so many bytes each."""
        found: int = self.number("<Q", key)
        if found > (len(self.bytes) - self.at) // least:
            raise self.wrong(key, f"{found} are more than the file has room for")
        return found

    def string(self, key: str) -> str:
        many = self.many(key, 1)
        at = self.take(many, key)
        try:
            return self.bytes[at : at + many].decode()
        except UnicodeDecodeError:
            raise self.wrong(key, "not UTF-8") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string(key)
        if kind in SCALARS:
            return self.number(SCALARS[kind], key)
        if kind != ARRAY:
            raise self.wrong(key, f"a value of type {kind} is not known")
        inner = self.number("<I", key)
        if inner == STRING:
            return [self.string(key) for _ in range(self.many(key, 8))]
        if inner not in SCALARS:
            raise self.wrong(key, f"a list of type {inner} is not known")
        form = np.dtype(SCALARS[inner].replace("b", "i1"))
        many = self.many(key, form.itemsize)
        return np.frombuffer(self.bytes, form, many, self.take(many * form.itemsize, key)).copy()

    def place(self) -> tuple[str, tuple[int, ...], int, int]:
        """A tensor's name, shape, type, and place among the tensors."""
        name = self.string("a tensor's name")
        if (axes := self.number("<I", name)) > DEEPEST:
            raise self.wrong(name, f"{axes} axes are more than {DEEPEST}")
        shape = tuple(self.number("<Q", name) for _ in range(axes))[::-1]  # here, what is nearest comes last
        return name, shape, self.number("<I", name), self.number("<Q", name)

    def settle(self, places: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        """Where tensors begin and end in the file, none outside of it or in another's place."""
        step = self.told.get(ALIGNMENT, 32)
        if not isinstance(step, int) or isinstance(step, bool) or not 0 < step <= 2**16:
            raise self.wrong(ALIGNMENT, f"{short(step)} should be a whole number from 1 to {2**16}")
        first = self.at + -self.at % step
        for name, shape, number, offset in places:
            if number not in KINDS:
                known = ", ".join(kind.name for kind in KINDS.values())
                raise Mistake(f"{self.path}: {short(name)}: type {number} is not known; known are {known}")
            kind, size = KINDS[number], prod(shape)
            if name in self.entries:
                raise self.wrong(name, "it is there twice")
            if size == 0 or (shape[-1:] and shape[-1] % kind.numbers) or size % kind.numbers:
                raise self.wrong(name, f"{short(list(shape))} does not go into blocks of {kind.numbers}")
            start, end = first + offset, first + offset + size // kind.numbers * kind.bytes
            if offset % step or end > len(self.bytes):
                raise self.wrong(name, f"it should be at byte {start} to {end} of {len(self.bytes)}")
            self.entries[name] = Entry(shape, kind, start, end)
        last = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1].start):
            if entry.start < last:
                raise self.wrong(name, "it begins where another tensor has not ended")
            last = entry.end

    def tensor(self, name: str) -> Tensor:
        """A tensor as float32: of four bits a weight, eight times what the file has."""
        entry = self.entries[name]
        raw = np.frombuffer(self.bytes, np.uint8, entry.end - entry.start, entry.start)
        found = dequantised(raw, entry.kind)
        if not np.isfinite(found).all():
            raise self.wrong(name, "some of its numbers are infinite or none at all")
        return torch.from_numpy(found).view(entry.shape)
