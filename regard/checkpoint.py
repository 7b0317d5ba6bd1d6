"""Files that are whole or not there: written beside, flushed, moved into place, and checked when read.

A checkpoint is a folder `step-N` with model.safetensors, optimizer.safetensors, state.json and a manifest of
their SHA-256. No pickle is written or read.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import Mistake

Tensors = dict[str, Tensor]
MANIFEST = "manifest.json"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


# One file


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what was written there becomes `path` at the end, or nothing does."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        yield beside
        flush(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: Tensors, told: dict[str, str] | None = None) -> None:
    """A safetensors file that knows the SHA-256 of what is in it; `told` is metadata besides.

    By hand, because the library orders its metadata at random, and the same weights should be the same bytes.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "sha256": digest(tensors), **(told or {})}}
    end = 0
    for name, t in (ordered := sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))):
        start, end = end, end + t.nbytes
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path) as beside, beside.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, t in ordered:
            file.write(raw(t))


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file; a file of ours that was damaged is noticed."""
    try:
        with safe_open(path, framework="pt") as f:
            tensors, told = {name: f.get_tensor(name) for name in f.keys()}, f.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise Mistake(f"{path}: no such file") from None
    except (SafetensorError, OSError) as e:
        raise Mistake(f"{path}: damaged or not safetensors ({e})") from None
    if "sha256" in told and told["sha256"] != digest(tensors):
        raise Mistake(
            f"{path}: damaged, its content does not match its SHA-256; copy it again, or take a checkpoint's"
        )
    return tensors


def digest(tensors: Tensors) -> str:
    """SHA-256 of every tensor's name, type, shape and bytes."""
    sha = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        sha.update(f"{name} {t.dtype} {list(t.shape)}\n".encode())
        sha.update(raw(t))
    return sha.hexdigest()


def raw(t: Tensor) -> memoryview:
    return t.reshape(-1).view(torch.uint8).numpy().data


def flush(path: Path) -> None:
    """Have the system put a file, or a folder's list of names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# A checkpoint


def save(folder: Path, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Path:
    """Write `folder/step-N`; until its last moment it has another name, so a kill leaves the earlier ones."""
    final = folder / f"step-{step}"
    beside = folder / f".step-{step}.partial"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        write_tensors(beside / "model.safetensors", model)
        write_tensors(beside / "optimizer.safetensors", optimizer)
        write_text(beside / "state.json", json.dumps(state, indent=1) + "\n")
        write_text(beside / MANIFEST, manifest(beside))
        os.rename(beside, final)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    flush(folder)
    return final


def manifest(folder: Path) -> str:
    """What manifest.json must say, to the byte, for the files that are in the folder."""
    files = {}
    for path in sorted(p for p in folder.iterdir() if p.name != MANIFEST):
        with path.open("rb") as f:
            files[path.name] = hashlib.file_digest(f, "sha256").hexdigest()
    return json.dumps(files, indent=1) + "\n"


def whole(folder: Path) -> bool:
    try:
        return (folder / MANIFEST).read_bytes() == manifest(folder).encode()
    except OSError:
        return False


def steps(folder: Path) -> list[int]:
    """The steps with a checkpoint, oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(p.name[5:]) for p in found if re.fullmatch(r"step-\d+", p.name))


def newest(folder: Path) -> tuple[Path | None, list[Path]]:
    """The last checkpoint that is whole, and those after it that are damaged."""
    damaged: list[Path] = []
    for step in reversed(steps(folder)):
        path = folder / f"step-{step}"
        if whole(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def load(path: Path) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Model, optimizer and state of a whole checkpoint."""
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return read_tensors(path / "model.safetensors"), read_tensors(path / "optimizer.safetensors"), state


def average(many: Iterable[Tensors]) -> Tensors:
    """The mean of several checkpoints of a model (Vaswani et al. 2017, 6.1); what has none, of the last."""
    count, sums = 0, Tensors()  # of float64: many small steps don't drown in a large sum
    for last in many:
        count += 1
        for name, t in last.items():
            if t.is_floating_point():
                sums[name] = sums[name].add_(t) if name in sums else t.to(torch.float64, copy=True)
    return last | {name: (total / count).to(last[name].dtype) for name, total in sums.items()}


def tidy(folder: Path, keep: int) -> None:
    """Remove what a kill left half-written, and all but the last `keep` checkpoints."""
    for path in folder.glob(".*.partial"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    for step in steps(folder)[:-keep]:
        shutil.rmtree(folder / f"step-{step}")
