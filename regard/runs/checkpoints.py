"""Checkpoints of a run: folders that are complete or absent, and verified before they are used.

A checkpoint is a folder `step-N` with model.safetensors, optimizer.safetensors, state.json and a manifest of
their SHA-256. No pickle is written or read.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.files import atomic
from regard.files.regular import regular_stat
from regard.files.tensors import Tensors, read_tensors, write_tensors

MANIFEST = "manifest.json"


def save(folder: Path, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Path:
    """Write the checkpoint `folder/step-N` atomically and return its path."""
    path = folder / f"step-{step}"
    with atomic.atomic_folder(path, "folder") as partial:
        write_tensors(partial / "model.safetensors", model)
        write_tensors(partial / "optimizer.safetensors", optimizer)
        atomic.write_text(partial / "state.json", json.dumps(state, indent=1) + "\n")
        atomic.write_text(partial / MANIFEST, manifest(partial))
    return path


def manifest(folder: Path) -> str:
    """Return the text of manifest.json for the files in a folder."""
    digests = {}
    for path in sorted(p for p in folder.iterdir() if p.name != MANIFEST):
        regular_stat(path)
        with path.open("rb") as f:
            digests[path.name] = hashlib.file_digest(f, "sha256").hexdigest()
    return json.dumps(digests, indent=1) + "\n"


def is_intact(path: Path) -> bool:
    """Whether the files of a checkpoint match its manifest."""
    try:
        regular_stat(path / MANIFEST)
        return (path / MANIFEST).read_bytes() == manifest(path).encode()
    except (OSError, UserError):
        return False


def steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, oldest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(p.name[5:]) for p in paths if re.fullmatch(r"step-\d+", p.name))


def newest(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the last intact checkpoint, and the damaged ones after it."""
    damaged: list[Path] = []
    for step in reversed(steps(folder)):
        path = folder / f"step-{step}"
        if is_intact(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def load(path: Path) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Return the model, the optimizer state and the training state of a checkpoint."""
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return read_tensors(path / "model.safetensors"), read_tensors(path / "optimizer.safetensors"), state


def average(models: Iterable[Tensors]) -> Tensors:
    """Average the weights of checkpoints (Vaswani et al. 2017, 6.1); integers are those of the last."""
    count, sums = 0, Tensors()  # in float64, so that a large sum does not swallow small terms
    for last in models:
        count += 1
        for name, t in last.items():
            if t.is_floating_point():
                sums[name] = sums[name].add_(t) if name in sums else t.to(torch.float64, copy=True)
    return last | {name: (total / count).to(last[name].dtype) for name, total in sums.items()}


def remove_old(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints, and what a killed process left unfinished."""
    for path in folder.glob(".*.partial"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    for step in steps(folder)[:-keep]:
        shutil.rmtree(folder / f"step-{step}")
