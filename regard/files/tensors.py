"""Read and write safetensors files, with a checksum that is verified when a file is read."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import UserError, first_line, os_reason
from regard.files.atomic import atomic_file
from regard.files.regular import regular_stat

Tensors = dict[str, Tensor]


DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    like: Path | None = None,
) -> None:
    """Write a safetensors file, with a SHA-256 of its contents and more `metadata`. A new one gets the mode
    of the file `like`, if there is one.

    The safetensors library writes metadata in random order; here the same tensors give the same bytes. A
    mapping that reads its tensors on access is read twice, with one tensor in memory at a time.
    """
    sha, kinds = hashlib.sha256(), dict[str, tuple[torch.dtype, torch.Size, int]]()
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        kinds[name] = t.dtype, t.shape, t.nbytes
        add_tensor(sha, name, t)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "sha256": sha.hexdigest(), **(metadata or {})}}
    end = 0
    for name in (ordered := sorted(kinds, key=lambda name: (-kinds[name][0].itemsize, name))):
        dtype, shape, size = kinds[name]
        start, end = end, end + size
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with atomic_file(path, like) as partial, partial.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in ordered:
            file.write(raw_bytes(tensors[name].detach().cpu().contiguous()))


def read_tensors(path: Path) -> Tensors:
    """Return the tensors of a safetensors file. Raise UserError if the file is missing or damaged.

    The tensors are read into memory. The safetensors library maps them to the file: writing to it would
    change a model in use, and truncating it would end the process with SIGBUS.
    """
    tensors = Tensors()
    with explain_damage(path), safe_open(path, framework="pt") as header, path.open("rb") as file:
        metadata = header.metadata() or {}
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        for name in header.offset_keys():  # the order of the file, in which there are no gaps
            tensors[name] = t = torch.empty_like(header.get_tensor(name))
            if file.readinto(raw_bytes(t)) < t.nbytes:
                raise OSError("it was truncated while it was read")
    if "sha256" in metadata and metadata["sha256"] != digest(tensors):
        raise UserError(
            f"{path}: damaged, its contents do not match its SHA-256; copy it again, or use a checkpoint"
        )
    return tensors


@dataclass(frozen=True)
class Place:
    """The place of a tensor in a file."""

    dtype: torch.dtype
    shape: torch.Size
    offset: int  # bytes from the beginning of the file


def find_tensors(path: Path) -> tuple[dict[str, Place], dict[str, str]]:
    """Return the places of a safetensors file's tensors, and its metadata. Only its header is read."""
    places: dict[str, Place] = {}
    with explain_damage(path), safe_open(path, framework="pt") as header, path.open("rb") as file:
        offset = 8 + int.from_bytes(file.read(8), "little")
        for name in header.offset_keys():
            t = header.get_tensor(name)  # mapped, not read
            places[name] = Place(t.dtype, t.shape, offset)
            offset += t.nbytes
        return places, dict(header.metadata() or {})


def read_rows(path: Path, place: Place, rows: Tensor, start: int) -> None:
    """Fill `rows` with consecutive rows of a tensor, from row `start` on; a scalar is filled as such."""
    with explain_damage(path), path.open("rb") as file:
        file.seek(place.offset + start * (rows.nbytes // max(1, len(rows)) if rows.ndim else 0))
        if file.readinto(raw_bytes(rows)) < rows.nbytes:
            raise OSError("it was truncated while it was read")


@contextlib.contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turn the errors of reading a safetensors file into UserErrors."""
    try:
        regular_stat(path)
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except SafetensorError as e:
        raise UserError(f"{path}: damaged or not safetensors ({e})") from None
    except (
        OSError,
        RuntimeError,
    ) as e:  # torch raises the latter where the library cannot open or map a file
        reason = "damaged or not safetensors" if path.is_dir() else "cannot be read"
        said = os_reason(e) if isinstance(e, OSError) else first_line(e)
        raise UserError(f"{path}: {reason} ({said})") from None


def digest(tensors: Tensors) -> str:
    """Return the SHA-256 of the name, dtype, shape and bytes of each tensor."""
    sha = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        add_tensor(sha, name, t)
    return sha.hexdigest()


def add_tensor(sha: Any, name: str, t: Tensor) -> None:
    sha.update(f"{name} {t.dtype} {list(t.shape)}\n".encode())
    sha.update(raw_bytes(t))


def raw_bytes(t: Tensor) -> memoryview:
    return t.reshape(-1).view(torch.uint8).numpy().data
