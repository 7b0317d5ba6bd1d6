"""Checkpoints of a run: folders that are complete or absent, and verified before they are used.

A checkpoint is a folder `step-N` with model.safetensors, optimizer.safetensors, state.json and a manifest of
their SHA-256. No pickle is written or read. Only the process that holds the run's lock writes here.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError, os_reason
from regard.files import atomic
from regard.files.tensors import Tensors, read_tensors, write_tensors
from regard.files.untrusted import read_json
from regard.runs.layout import STATE, STEP

FORMAT = 1  # of state.json; 0 is that of checkpoints without it
MANIFEST = "manifest.json"
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
FILES = {MANIFEST, STATE, MODEL, OPTIMIZER}
PARTIAL = re.compile(r"\.step-[0-9]+\.partial")
MISMATCHES = (FileNotFoundError, IsADirectoryError, NotADirectoryError)  # other errors don't mean damage
REPLACE = "put an unchanged copy of this checkpoint in its place, or move it away"


def save(folder: Path, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Path:
    """Write the checkpoint `folder/step-N` atomically and return its path."""
    path, partial = folder / f"step-{step}", folder / f".step-{step}.partial"
    if not atomic.is_missing(path):
        raise UserError(f"{path} is there already; move it away and continue with --resume")
    remove_leftover(partial)
    if not atomic.is_missing(partial):
        set_aside(partial)  # it holds other files
    atomic.make_folders(partial)
    try:
        write_tensors(partial / MODEL, model)
        write_tensors(partial / OPTIMIZER, optimizer)
        atomic.write_text(partial / STATE, json.dumps({"format": FORMAT} | state, indent=1) + "\n")
        atomic.write_text(partial / MANIFEST, manifest(partial))
        os.rename(partial, path)
    except BaseException:
        remove_leftover(partial)
        raise
    atomic.flush(folder)
    return path


def manifest(folder: Path) -> str:
    """Return the text of manifest.json for the files in a folder."""
    digests = {}
    for name in sorted(name for name in os.listdir(folder) if name != MANIFEST):
        try:
            with (folder / name).open("rb") as f:
                digests[name] = hashlib.file_digest(f, "sha256").hexdigest()
        except OSError as e:
            e.filename = e.filename or str(folder / name)
            raise
    return json.dumps(digests, indent=1) + "\n"


def is_intact(path: Path) -> bool:
    """Whether the files of a checkpoint match its manifest. Raise UserError if they can't be read."""
    try:
        modes = {entry: entry.lstat().st_mode for entry in (path, *path.iterdir())}
        for entry, mode in modes.items():
            if stat.S_ISLNK(mode):
                raise UserError(f"{entry} is a link; put what it points to in its place")
        if not all(stat.S_ISREG(mode) for entry, mode in modes.items() if entry != path):
            return False
        if newer := newer_format(path):
            raise UserError(
                f"{path / STATE}: format {newer}, and this version of regard reads up to {FORMAT}; update it"
            )
        return (path / MANIFEST).read_bytes() == manifest(path).encode()
    except MISMATCHES:
        return False
    except OSError as e:
        raise unreadable(e, path) from None


def unreadable(error: OSError, path: Path) -> UserError:
    code = errno.errorcode.get(error.errno or 0, "error")
    return UserError(
        f"{error.filename or path}: cannot be read ({code}: {os_reason(error)}); nothing was changed, "
        "try again when it can be"
    )


def newer_format(path: Path) -> int | None:
    """Return the format of a checkpoint that a later version wrote: all else in it may be unknown, too."""
    try:
        number = read_json(path / STATE).get("format", 0)
    except UserError:  # damaged
        return None
    return number if type(number) is int and number > FORMAT else None


def steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise unreadable(e, folder) from None
    return sorted(int(match[1]) for name in names if (match := STEP.fullmatch(name)))


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
    state = read_json(path / STATE)
    number = state.pop("format", 0)
    if type(number) is not int or not 0 <= number <= FORMAT:
        raise UserError(f"{path / STATE}: format is {number!r}, not a number up to {FORMAT}; {REPLACE}")
    return read_tensors(path / MODEL), read_tensors(path / OPTIMIZER), state


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that its step can be saved again; return its new path."""
    aside, n = path.with_name(f"{path.name}.damaged"), 1
    while not atomic.is_missing(aside):
        n += 1
        aside = path.with_name(f"{path.name}.damaged-{n}")
    os.rename(path, aside)
    atomic.flush(path.parent)
    return aside


def average(models: Iterable[Tensors]) -> Tensors:
    """Average the weights of checkpoints (Vaswani et al. 2017, 6.1); integers are those of the last."""
    count, sums = 0, Tensors()  # in float64, so that a large sum does not swallow small terms
    for last in models:
        count += 1
        for name, t in last.items():
            if t.is_floating_point():
                sums[name] = sums[name].add_(t) if name in sums else t.to(torch.float64, copy=True)
    return last | {name: (total / count).to(last[name].dtype) for name, total in sums.items()}


def remove_old(folder: Path, keep: int, needed: Collection[int] = ()) -> list[Path]:
    """Remove all but the last `keep` checkpoints and those that are needed. Return others that stay: other
    files are in them."""
    return remove(folder, [step for step in steps(folder)[:-keep] if step not in needed])


def remove(folder: Path, numbers: Iterable[int]) -> list[Path]:
    """Remove the checkpoints of these steps. Return those that stay: other files are in them."""
    stay = []
    for step in numbers:
        path = folder / f"step-{step}"
        if is_ours(path):
            os.rename(path, folder / f".step-{step}.partial")  # it is gone at once or not at all
        else:
            stay.append(path)
    remove_partial(folder)
    return stay


def is_ours(path: Path) -> bool:
    """Whether a folder holds the files of a checkpoint and nothing else."""
    entries = () if path.is_symlink() or not path.is_dir() else tuple(os.scandir(path))
    return {e.name for e in entries if e.is_file(follow_symlinks=False)} == FILES and len(entries) == len(
        FILES
    )


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left of checkpoints that it was writing or removing."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        if PARTIAL.fullmatch(name):
            remove_leftover(folder / name)


def remove_leftover(path: Path) -> None:
    """Remove the files of a checkpoint from a folder, and the folder, unless other files are in it."""
    if path.is_symlink() or not path.is_dir():
        return
    for name in (*FILES, *(f".{name}.partial" for name in FILES)):
        with contextlib.suppress(IsADirectoryError):
            (path / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty
        path.rmdir()
