"""Read tensors from several safetensors files that each hold some of the rows, in any other division.

Every process of a run that shards its weights writes its own rows. The file's metadata say where they
belong: `rows` is a JSON object of [first row, number of rows of all files] by the tensor's name.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.files.tensors import Place, Tensors, find_tensors, read_rows, read_tensors, write_tensors
from regard.files.untrusted import parse_json

PART = re.compile(r"(model|optimizer)-([0-9]{5})-of-([0-9]{5})\.safetensors")
ROWS = "rows"  # the key of the metadata

Spans = dict[str, tuple[int, int]]  # the first row that a part has of a tensor, and the rows of all parts


def part_names(kind: str, count: int) -> list[str]:
    """Return the names of the files that hold the model or the optimizer state in `count` parts."""
    if count == 1:
        return [f"{kind}.safetensors"]
    return [f"{kind}-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]


def write_part(path: Path, tensors: Tensors, spans: Spans, like: Path | None = None) -> None:
    """Write a part, with the mode of the file `like`."""
    write_tensors(path, tensors, {ROWS: json.dumps(spans, separators=(",", ":"))} if spans else None, like)


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor that are in one file."""

    file: Path
    place: Place
    start: int  # row of the whole tensor


class Parts(Mapping[str, Tensor]):
    """Tensors in one or several files. Only headers are read until a tensor or its rows are asked for."""

    def __init__(self, files: Sequence[Path]):
        self.files = files
        self.pieces: dict[str, list[Piece]] = {}
        self.shapes: dict[str, torch.Size] = {}
        for file in files:
            places, metadata = find_tensors(file)
            spans = read_spans(file, metadata, places)
            for name, place in places.items():
                start, total = spans.get(name, (0, place.shape[0] if place.shape else 0))
                shape = torch.Size([total, *place.shape[1:]]) if place.shape else place.shape
                first = self.pieces.setdefault(name, [])
                if first and (self.shapes[name], first[0].place.dtype) != (shape, place.dtype):
                    raise UserError(f"{file}: {name} does not fit that of {first[0].file.name}")
                self.shapes[name] = shape
                first.append(Piece(file, place, start))
        for name, pieces in self.pieces.items():
            pieces.sort(key=lambda piece: piece.start)
            self.check_rows(name, pieces)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def check_rows(self, name: str, pieces: list[Piece]) -> None:
        """Raise UserError unless the pieces follow each other without a gap."""
        end = 0
        for piece in pieces:
            if piece.start != end or (end and not piece.place.shape):
                raise UserError(f"{piece.file}: rows of {name} begin at {piece.start}, not at {end}; damaged")
            end += piece.place.shape[0] if piece.place.shape else 0
        if self.shapes[name] and end != self.shapes[name][0]:
            raise UserError(f"{pieces[-1].file}: {name} has {end} of {self.shapes[name][0]} rows; damaged")

    def headers(self) -> Tensors:
        """Return tensors without contents, which have the dtypes and shapes of these."""
        return {
            name: torch.empty(shape, dtype=self.pieces[name][0].place.dtype, device="meta")
            for name, shape in self.shapes.items()
        }

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the rows of a tensor from `start` to `stop`; by default, all."""
        shape, dtype = self.shapes[name], self.pieces[name][0].place.dtype
        if not shape:
            t = torch.empty(shape, dtype=dtype)
            read_rows(self.pieces[name][0].file, self.pieces[name][0].place, t, 0)
            return t
        stop = shape[0] if stop is None else stop
        t = torch.empty(stop - start, *shape[1:], dtype=dtype)
        for piece in self.pieces[name]:
            first = max(start, piece.start)
            last = min(stop, piece.start + piece.place.shape[0])
            if first < last:
                read_rows(piece.file, piece.place, t[first - start : last - start], first - piece.start)
        return t

    def read_all(self) -> Tensors:
        """Return all tensors, once the SHA-256 of each file is checked."""
        contents = {file: read_tensors(file) for file in self.files}
        return {
            name: torch.cat([contents[p.file][name] for p in pieces])
            if len(pieces) > 1
            else contents[pieces[0].file][name]
            for name, pieces in self.pieces.items()
        }


def read_spans(file: Path, metadata: dict[str, str], places: dict[str, Place]) -> Spans:
    """Return where the rows of a file belong. Raise UserError if that can't be."""

    def is_count(value: Any) -> bool:
        return type(value) is int and value >= 0

    try:
        spans = parse_json(metadata.get(ROWS, "{}"))
        for name, (start, total) in spans.items():
            rows = places[name].shape[0]
            if not (is_count(start) and is_count(total) and start + rows <= total):
                raise ValueError(name)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise UserError(f"{file}: damaged, its metadata do not say which rows it has") from None
    return {name: (start, total) for name, (start, total) in spans.items()}
