"""Folders of token ids for texts that do not fit in memory: written by `prepare`, then memory-mapped."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.documents import reiterable_documents, text_size
from regard.data.encoding import (
    DataConfig,
    EncodedBatch,
    Parts,
    dtype_for,
    encode_texts,
    split_texts,
    tokenizer_for,
)
from regard.data.streams import Stream
from regard.draw.terminal import progress
from regard.errors import UserError, first_line, os_reason
from regard.files.atomic import atomic_folder
from regard.text.tokenizer import Tokenizer

SHARD_TOKENS = 2**26  # in a file
INDEX = "shards.json"
VERSION = 1  # of the index


def is_prepared(paths: Sequence[str]) -> bool:
    """Return whether these are folders that `prepare` wrote; raise UserError if only some are."""
    has_index = {str(path): (Path(path) / INDEX).is_file() for path in paths}
    if len(set(has_index.values())) > 1:
        folder = next(path for path in has_index if has_index[path])
        other = next(path for path in has_index if not has_index[path])
        raise UserError(f"{folder}: a prepared folder, but {other} is not; prepare both or neither")
    return any(has_index.values())


def concat_shards(folders: Sequence[str], sides: Sequence[str], tokenizer: Tokenizer) -> Stream:
    """Return the shards of these folders as one stream, with the end token between folders too."""
    parts: list[np.ndarray] = []
    size = 0
    for folder in folders:
        about = _read_index(Path(folder), tokenizer)
        for side in sides:
            arrays = [_load_shard(Path(folder), entry, about["dtype"]) for entry in about[side]["files"]]
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
        raise UserError(f"{file}: damaged ({first_line(error)}); prepare the folder again") from None
    if digest != tokenizer.digest:
        raise UserError(
            f"{folder / 'tokenizer.json'}: not the tokenizer of these shards; prepare the folder again"
        )
    return about


def _load_shard(folder: Path, entry: dict[str, Any], dtype: str) -> np.ndarray:
    file = folder / Path(entry["name"]).name
    try:
        ids: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{file}: missing; prepare the folder again") from None
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{file}: damaged ({first_line(error)}); prepare the folder again") from None
    if ids.dtype != dtype or ids.shape != (entry["tokens"],):
        actual, expected = f"{ids.dtype} {ids.shape}", f"{dtype} {(entry['tokens'],)}"
        raise UserError(f"{file}: damaged ({actual} instead of {expected}); prepare the folder again")
    return ids


class _ShardWriter:
    """Writes the ids of one side of the split to files of at most `size` tokens."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype, size: int) -> None:
        self.folder, self.side = folder, side
        self.buffer = np.empty(size, dtype)
        self.filled = 0
        self.about: dict[str, Any] = {"documents": 0, "bytes": 0, "tokens": 0, "files": []}

    def write(self, batch: EncodedBatch) -> None:
        self.about["documents"] += batch.documents
        self.about["bytes"] += batch.bytes
        self.about["tokens"] += len(batch.ids)
        ids = batch.ids
        while len(ids):
            head = ids[: len(self.buffer) - self.filled]
            self.buffer[self.filled : self.filled + len(head)] = head
            self.filled += len(head)
            ids = ids[len(head) :]
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
    shard: int = SHARD_TOKENS,
) -> dict[str, Any]:
    """Write texts of any size to a folder of token shards for `load_corpus`; return its shards.json.

    The folder appears at `out` only when it is complete.
    """
    out = Path(os.path.abspath(out))
    for inputs in (paths, valid_paths):
        if is_prepared(inputs):
            raise UserError(f"{inputs[0]}: prepared already; give the texts")
    try:
        # A name of its own: two processes that prepare the same folder must not write into each other's.
        with atomic_folder(out, "--out", suffix=f"{os.getpid()}.partial") as draft:
            valid = reiterable_documents(valid_paths) if valid_paths else None
            parts = split_texts(reiterable_documents(paths), valid, config.holdout)
            with progress("bytes prepared", text_size([*paths, *valid_paths])) as advance:
                about = _write_shards(parts, tokenizer_for(parts, config, specials), draft, shard, advance)
    except OSError as error:  # errors of reading are UserErrors already
        raise UserError(
            f"{out}: cannot be written ({os_reason(error)}); free space or choose another folder"
        ) from None
    train, valid_tokens = about["train"]["tokens"], about["valid"]["tokens"]
    print(f"prepared {train:,} tokens for training and {valid_tokens:,} held out", file=sys.stderr)
    return about


def _write_shards(
    parts: Parts, tokenizer: Tokenizer, folder: Path, size: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    dtype = dtype_for(tokenizer)
    train, valid = _ShardWriter(folder, "train", dtype, size), _ShardWriter(folder, "valid", dtype, size)
    for batch in encode_texts(parts, tokenizer):
        (valid if batch.held_out else train).write(batch)
        advance(batch.bytes)
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
