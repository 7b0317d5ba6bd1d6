"""Checkpoints of a run: folders that are complete or absent, and verified before they are used.

A checkpoint is a folder `step-N` with model.safetensors, optimizer.safetensors, state.json and a manifest of
their SHA-256. Processes that share the weights between them write model-00001-of-00004.safetensors and so on,
each its own rows (`regard.runs.parts`). No pickle is written or read. Only the processes of the run
that holds the folder's lock write here.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError, os_reason
from regard.files import atomic
from regard.files.tensors import Tensors
from regard.files.untrusted import parse_json, read_json
from regard.runs.layout import STATE, STEP, published
from regard.runs.parts import PART, Parts, Spans, part_names, write_part

FORMAT = 2  # of state.json: 2 in several parts, 1 in one, 0 in checkpoints without this field
MANIFEST = "manifest.json"
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
FILES = {MANIFEST, STATE, MODEL, OPTIMIZER}
PARTIAL = re.compile(r"\.(step-[0-9]+(\.replaced)?|model)\.partial")
PUBLISHING = ".model.partial"  # the folder in which processes write the parts of a model to publish
MISMATCHES = (FileNotFoundError, IsADirectoryError, NotADirectoryError)  # other errors don't mean damage
REPLACE = "put an unchanged copy of this checkpoint in its place, or move it away"


def save(
    folder: Path, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any], replace: bool = False
) -> Path:
    """Write the checkpoint `folder/step-N` atomically and return its path; `replace` an existing one."""
    partial = begin(folder, step, replace)
    try:
        digests = write_parts(partial, {"model": model, "optimizer": optimizer}, {}, 0, 1)
        return commit(partial, state, digests)
    except BaseException:
        remove_leftover(partial)
        raise


def begin(folder: Path, step: int, replace: bool = False) -> Path:
    """Make the folder in which the files of a checkpoint are written, and return its path."""
    path = folder / f"step-{step}"
    if not atomic.is_missing(path) and not (replace and is_ours(path)):
        raise UserError(f"{path} is there already; move it away and continue with --resume")
    partial = make_partial(partial_path(folder, step))
    if not steps(folder):
        atomic.flush(folder)  # so that it shows that the first one was never complete
    return partial


def partial_path(folder: Path, step: int) -> Path:
    """Return the folder in which a checkpoint is written."""
    return folder / f".step-{step}.partial"


def removal_path(folder: Path, step: int) -> Path:
    """Return the name that a checkpoint has while it is removed: so it goes at once or not at all."""
    return folder / f".step-{step}.replaced.partial"


def make_partial(partial: Path) -> Path:
    """Make a folder for files that don't count yet, and return its path."""
    remove_leftover(partial)
    if not atomic.is_missing(partial):
        set_aside(partial)  # it holds other files
    atomic.make_folders(partial.parent)
    partial.mkdir()  # rarely flushed, since training waits for this; `commit` does that
    return partial


def write_parts(
    partial: Path, kinds: Mapping[str, Tensors], spans: Spans, part: int, count: int
) -> dict[str, str]:
    """Write one of `count` parts of the model, or of the model and the optimizer state; return the SHA-256 of
    its files. They are as private as the run's weights."""
    digests, like = {}, published(partial.parents[1])
    for kind, tensors in kinds.items():
        name = part_names(kind, count)[part]
        write_part(partial / name, tensors, {key: spans[key] for key in tensors if key in spans}, like)
        digests[name] = file_sha256(partial / name)
    return digests


def commit(partial: Path, state: dict[str, Any], digests: dict[str, str]) -> Path:
    """Complete a checkpoint whose parts are all written, and return its path.

    A checkpoint of the same step, which `begin` allowed to be replaced, is removed.
    """
    number, like = 1 if MODEL in digests else FORMAT, published(partial.parents[1])
    atomic.write_text(partial / STATE, json.dumps({"format": number} | state, indent=1) + "\n", like)
    digests = digests | {STATE: file_sha256(partial / STATE)}
    atomic.write_text(partial / MANIFEST, write_manifest(digests), like)
    path = partial.with_name(partial.name.removeprefix(".").removesuffix(".partial"))
    replaced = removal_path(path.parent, int(path.name.removeprefix("step-")))
    if is_ours(path):
        os.rename(path, replaced)
    os.rename(partial, path)
    atomic.flush(path.parent)
    remove_leftover(replaced)
    return path


def write_manifest(digests: dict[str, str]) -> str:
    return json.dumps(dict(sorted(digests.items())), indent=1) + "\n"


def manifest(folder: Path) -> str:
    """Return the text of manifest.json for the files in a folder."""
    return write_manifest({name: file_sha256(folder / name) for name in listed(folder)})


def listed(folder: Path) -> list[str]:
    """Return the files that the manifest of a checkpoint lists."""
    return sorted(name for name in os.listdir(folder) if name != MANIFEST)


def file_sha256(path: Path) -> str:
    with atomic.name_errors(path), path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def is_intact(path: Path, share: slice = slice(None)) -> bool:
    """Return whether the files of a checkpoint, or a share of them, match its manifest. Raise UserError if
    they can't be read."""
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
        text, names = (path / MANIFEST).read_bytes(), listed(path)
        digests = {name: file_sha256(path / name) for name in names[share]}
        if len(digests) < len(names):  # others check the rest
            digests = stated_digests(text, names) | digests
        return text == write_manifest(digests).encode()
    except MISMATCHES:
        return False
    except OSError as e:
        raise unreadable(e, path) from None


def stated_digests(text: bytes, names: Iterable[str]) -> dict[str, str]:
    """Return the digests that a manifest states for these files; none if it is damaged."""
    try:
        stated = parse_json(text)
        return {name: str(stated[name]) for name in names}
    except (ValueError, TypeError, KeyError):
        return {}


def unreadable(error: OSError, path: Path) -> UserError:
    code = errno.errorcode.get(error.errno or 0, "error")
    return UserError(
        f"{error.filename or path}: cannot be read ({code}: {os_reason(error)}); nothing was changed, "
        "try again when it can be"
    )


def newer_format(path: Path) -> int | None:
    """Return the format of a checkpoint if a later version wrote it: the rest of it may be unknown, too."""
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
        if folder.parent.is_file():
            return []  # the folder is a single file, such as a GGUF
        raise unreadable(e, folder) from None
    return sorted(int(match[1]) for name in names if (match := STEP.fullmatch(name)))


def newest(folder: Path, check: Callable[[Path], bool] = is_intact) -> tuple[Path | None, list[Path]]:
    """Return the last intact checkpoint, and the damaged ones after it."""
    damaged: list[Path] = []
    for step in reversed(steps(folder)):
        path = folder / f"step-{step}"
        if check(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


def load(path: Path) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Return the model, the optimizer state and the training state of a checkpoint."""
    model, optimizer, state = open_parts(path)
    return model.read_all(), optimizer.read_all(), state


def open_parts(path: Path) -> tuple[Parts, Parts, dict[str, Any]]:
    """Return the model and the optimizer state of a checkpoint, to be read in any division, and its state."""
    state = read_json(path / STATE)
    number = state.pop("format", 0)
    if type(number) is not int or not 0 <= number <= FORMAT:
        raise UserError(f"{path / STATE}: format is {number!r}, not a number up to {FORMAT}; {REPLACE}")
    return open_part(path, "model"), open_part(path, "optimizer"), state


def open_part(path: Path, kind: str) -> Parts:
    """Return the "model" or the "optimizer" state of a checkpoint."""
    return Parts([path / name for name in part_names(kind, count_parts(path))])


def count_parts(path: Path) -> int:
    """Return the number of parts of a checkpoint."""
    counts = (int(match[3]) for name in os.listdir(path) if (match := PART.fullmatch(name)))
    return max(counts, default=1)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that its step can be saved again; return its new path."""
    os.rename(path, aside := name_aside(path))
    atomic.flush(path.parent)
    return aside


def name_aside(path: Path) -> Path:
    """A free name for what is damaged of a file or folder."""
    aside, n = path.with_name(f"{path.name}.damaged"), 1
    while not atomic.is_missing(aside):
        n += 1
        aside = path.with_name(f"{path.name}.damaged-{n}")
    return aside


def average(models: Iterable[Tensors]) -> Tensors:
    """Average the weights of checkpoints (Vaswani et al. 2017, 6.1); integers are taken from the last one."""
    count, sums = 0, Tensors()  # in float64, so that a large sum does not swallow small terms
    for last in models:
        count += 1
        for name, t in last.items():
            if t.is_floating_point():
                sums[name] = sums[name].add_(t) if name in sums else t.to(torch.float64, copy=True)
    return last | {name: (total / count).to(last[name].dtype) for name, total in sums.items()}


def remove_old(folder: Path, keep: int, needed: Collection[int] = ()) -> list[Path]:
    """Remove all but the last `keep` checkpoints and those that are needed. Return those that could not be
    removed because they contain other files."""
    return remove(folder, [step for step in steps(folder)[:-keep] if step not in needed])


def remove(folder: Path, numbers: Iterable[int]) -> list[Path]:
    """Remove the checkpoints of these steps. Return those that stay because they contain other files."""
    stay = []
    for step in numbers:
        path = folder / f"step-{step}"
        if is_ours(path):
            os.rename(path, removal_path(folder, step))
        else:
            stay.append(path)
    remove_partial(folder)
    return stay


def is_ours(path: Path) -> bool:
    """Return whether a folder holds the files of a checkpoint and nothing else."""
    if path.is_symlink() or not path.is_dir():
        return False
    count, entries = count_parts(path), tuple(os.scandir(path))
    names = {MANIFEST, STATE, *part_names("model", count), *part_names("optimizer", count)}
    return names == {e.name for e in entries if e.is_file(follow_symlinks=False)} and len(entries) == len(
        names
    )


def remove_partial(folder: Path) -> None:
    """Remove the remains of checkpoints that a killed process was writing or removing."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        if PARTIAL.fullmatch(name):
            remove_leftover(folder / name)


def remove_leftover(path: Path) -> None:
    """Remove the files of a checkpoint from a folder, and the folder, unless other files are in it."""
    if path.is_symlink() or not path.is_dir():
        return
    for name in os.listdir(path):
        original = name.removeprefix(".").removesuffix(".partial") if name.endswith(".partial") else name
        if original in FILES or PART.fullmatch(original):
            with contextlib.suppress(IsADirectoryError):
                (path / name).unlink(missing_ok=True)
    if not os.listdir(path):
        path.rmdir()
