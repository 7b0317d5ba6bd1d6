"""Folders of token ids for texts that are too large to hold: written by `prepare`, read in place."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.display import progress
from regard.errors import Mistake
from regard.text import Tokenizer, one_line

from .encoding import DataConfig, Ids, Parts, dtype_for, encoded, split, tokenizer_for
from .reading import documents_again, size, why
from .sampling import Stream

SHARD = 2**26  # tokens in a file
INDEX = "shards.json"
VERSION = 1  # of the index


def prepared(paths: Sequence[str]) -> bool:
    """Whether these are folders that `prepare` made; all of them, or none."""
    marks = {str(path): (Path(path) / INDEX).is_file() for path in paths}
    if len(set(marks.values())) > 1:
        folder, other = next(p for p in marks if marks[p]), next(p for p in marks if not marks[p])
        raise Mistake(f"{folder}: prepared, but {other} is not; prepare both or neither")
    return any(marks.values())


def joined(folders: Sequence[str], sides: Sequence[str], tokenizer: Tokenizer) -> Stream:
    """The shards of these folders on disk as one stream, with the end token between the folders too."""
    parts: list[np.ndarray] = []
    size = 0
    for folder in folders:
        about = _read_index(Path(folder), tokenizer)
        for side in sides:
            arrays = [_shard(Path(folder), entry, about["dtype"]) for entry in about[side]["files"]]
            if parts and arrays and tokenizer.end is not None:
                parts.append(np.array([tokenizer.end], dtype=about["dtype"]))
            parts += arrays
            size += about[side]["bytes"]
    return Stream(parts, size)


def _read_index(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    file = folder / INDEX
    try:
        about: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if about["version"] != VERSION or about["dtype"] not in ("uint16", "uint32"):
            raise ValueError(f"version {about['version']}, {about['dtype']}; known is version {VERSION}")
        needed = [about[side][key] for side in ("train", "valid") for key in ("bytes", "files")]
        needed += [entry[key] for files in needed[1::2] for entry in files for key in ("name", "tokens")]
        digest = about["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Mistake(f"{file}: damaged ({one_line(error)}); prepare the folder again") from None
    if digest != tokenizer.digest:
        raise Mistake(f"{folder / 'tokenizer.json'}: not the one of these shards; prepare the folder again")
    return about


def _shard(folder: Path, entry: dict[str, Any], dtype: str) -> np.ndarray:
    file = folder / Path(entry["name"]).name
    try:
        ids: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise Mistake(f"{file}: missing; prepare the folder again") from None
    except (OSError, ValueError, EOFError) as error:
        raise Mistake(f"{file}: damaged ({one_line(error)}); prepare the folder again") from None
    if ids.dtype != dtype or ids.shape != (entry["tokens"],):
        found, meant = f"{ids.dtype} {ids.shape}", f"{dtype} {(entry['tokens'],)}"
        raise Mistake(f"{file}: damaged ({found} instead of {meant}); prepare the folder again")
    return ids


class _Shards:
    """Writes the ids of one side to files of at most `size` tokens."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype, size: int) -> None:
        self.folder, self.side = folder, side
        self.buffer = np.empty(size, dtype)
        self.filled = 0
        self.about: dict[str, Any] = {"documents": 0, "bytes": 0, "tokens": 0, "files": []}

    def write(self, some: Ids) -> None:
        self.about["documents"] += some.documents
        self.about["bytes"] += some.bytes
        self.about["tokens"] += len(some.ids)
        ids = some.ids
        while len(ids):
            taken = ids[: len(self.buffer) - self.filled]
            self.buffer[self.filled : self.filled + len(taken)] = taken
            self.filled += len(taken)
            ids = ids[len(taken) :]
            if self.filled == len(self.buffer):
                self.flush()

    def flush(self) -> None:
        if not self.filled:
            return
        name = f"{self.side}-{len(self.about['files']):05d}.npy"
        np.save(self.folder / name, self.buffer[: self.filled], allow_pickle=False)
        with open(self.folder / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.about["files"].append({"name": name, "tokens": self.filled, "sha256": digest})
        self.filled = 0


def prepare(
    paths: Sequence[str],
    out: str | Path,
    config: DataConfig,
    specials: Sequence[str],
    valid_paths: Sequence[str] = (),
    shard: int = SHARD,
) -> dict[str, Any]:
    """Turns texts of any size into a folder of token shards for `corpus`, and returns its shards.json.

    Nothing appears at `out` before it is complete.
    """
    out = Path(os.path.abspath(out))
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise Mistake(f"{out}: exists already; choose another folder or delete it")
    for given in (paths, valid_paths):
        if prepared(given):
            raise Mistake(f"{given[0]}: prepared already; give the texts")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        valid = documents_again(valid_paths) if valid_paths else None
        parts = split(documents_again(paths), valid, config.holdout)
        with progress("bytes prepared", size([*paths, *valid_paths])) as advance:
            about = _write(parts, tokenizer_for(parts, config, specials), draft, shard, advance)
        if out.exists():
            out.rmdir()
        draft.rename(out)
    except OSError as error:  # those of reading are mistakes by now
        raise Mistake(f"{out}: cannot be written ({why(error)}); free space or choose another") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    kept, held = about["train"]["tokens"], about["valid"]["tokens"]
    print(f"prepared {kept:,} tokens for training and {held:,} held out", file=sys.stderr)
    return about


def _write(
    parts: Parts, tokenizer: Tokenizer, folder: Path, size: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    dtype = dtype_for(tokenizer)
    train, valid = _Shards(folder, "train", dtype, size), _Shards(folder, "valid", dtype, size)
    for some in encoded(parts, tokenizer):
        (valid if some.held else train).write(some)
        advance(some.bytes)
    train.flush()
    valid.flush()
    tokenizer.save(folder / "tokenizer.json")
    about = {
        "version": VERSION,
        "tokenizer": tokenizer.digest,
        "dtype": str(dtype),
        "train": train.about,
        "valid": valid.about,
    }
    (folder / INDEX).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return about
