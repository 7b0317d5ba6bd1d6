"""Folders of token ids for texts that do not fit in memory: written by `prepare`, then read in windows."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.documents import reiterable_chunks, text_size
from regard.data.encoding import (
    DataConfig,
    EncodedBatch,
    Parts,
    dtype_for,
    encode_texts,
    split_texts,
    texts_to_learn_from,
    tokenizer_for,
)
from regard.data.reading import read_together
from regard.data.shard import Shard
from regard.data.splitting import use_splits
from regard.data.streams import Stream
from regard.draw.terminal import progress
from regard.errors import UserError, first_line, os_reason
from regard.files.atomic import atomic_folder
from regard.files.regular import check_name
from regard.files.untrusted import read_text
from regard.text.tokenizer import Tokenizer

SHARD_TOKENS = 2**26  # in a file
INDEX = "shards.json"
VERSION = 1  # of the index
MAX_INDEX = 2**26  # bytes


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
    parts: list[np.ndarray | Shard] = []
    size = 0
    for folder in folders:
        about = _read_index(Path(folder), tokenizer)
        for side in sides:
            shards = [
                Shard(
                    Path(folder) / Path(entry["name"]).name,
                    about["dtype"],
                    entry["tokens"],
                    entry["sha256"],
                    tokenizer.vocab,
                )
                for entry in about[side]["files"]
            ]
            if parts and shards and tokenizer.end is not None:
                parts.append(np.array([tokenizer.end], dtype=about["dtype"]))
            parts += shards
            size += about[side]["bytes"]
    return Stream(parts, size)


def _read_index(folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    file = folder / INDEX
    try:
        about: dict[str, Any] = json.loads(read_text(file, MAX_INDEX))
        if about["version"] != VERSION or about["dtype"] not in ("uint16", "uint32"):
            raise ValueError(f"version {about['version']}, {about['dtype']}; known is version {VERSION}")
        sides = [about[side] for side in ("train", "valid")]
        entries = [entry for side in sides for entry in side["files"]]
        numbers = [side["bytes"] for side in sides] + [entry["tokens"] for entry in entries]
        texts = [entry[key] for entry in entries for key in ("name", "sha256")]
        if not (all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts)):
            raise ValueError("a value is of another kind")
        digest = about["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: damaged ({first_line(error)}); prepare the folder again") from None
    if digest != tokenizer.digest:
        raise UserError(
            f"{folder / 'tokenizer.json'}: not the tokenizer of these shards; prepare the folder again"
        )
    return about


class _ShardWriter:
    """Writes the ids of one side of the split to .npy files of at most `size` tokens, as they come."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype, size: int) -> None:
        self.folder, self.side, self.dtype, self.size = folder, side, dtype, size
        self.file: BufferedRandom | None = None
        self.filled = 0  # tokens in it
        self.about: dict[str, Any] = {"documents": 0, "bytes": 0, "tokens": 0, "files": []}

    def write(self, batch: EncodedBatch) -> None:
        self.about["documents"] += batch.documents
        self.about["bytes"] += batch.bytes
        self.about["tokens"] += len(batch.ids)
        ids = batch.ids
        while len(ids):
            if self.file is None:
                name = f"{self.side}-{len(self.about['files']):05d}.npy"
                self.file = open(self.folder / name, "w+b")  # noqa: SIM115 - closed below
                self.write_header(self.size)
            head = ids[: self.size - self.filled]
            self.file.write(head.data)
            self.filled += len(head)
            ids = ids[len(head) :]
            if self.filled == self.size:
                self.finish_file()

    def write_header(self, tokens: int) -> None:
        """Write the header of .npy, which is as long for fewer tokens."""
        assert self.file is not None
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def finish_file(self) -> None:
        if self.file is None:
            return
        start = self.file.tell() - self.filled * self.dtype.itemsize
        self.file.seek(0)
        self.write_header(self.filled)
        assert self.file.tell() == start, "the ids begin after the header"
        self.file.seek(0)
        digest = hashlib.file_digest(self.file, "sha256").hexdigest()
        name = os.path.basename(self.file.name)
        self.about["files"].append({"name": name, "tokens": self.filled, "sha256": digest})
        self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        self.file, self.filled = None, 0


def prepare(
    paths: Sequence[str],
    out: str | Path,
    config: DataConfig,
    specials: Sequence[str],
    valid_paths: Sequence[str] = (),
    shard: int = SHARD_TOKENS,
) -> dict[str, Any]:
    """Write texts of any size to a folder of token shards for `load_corpus`; return its shards.json.

    The texts are read in chunks, up to three times: to count them, to train the tokenizer and to encode them.
    So the memory does not depend on their size: some hundred megabytes for each core, and while a tokenizer
    is trained, what its trainer keeps. Only standard input and pipes, which can be read once, are held. The
    ids are those of the whole texts. The folder appears at `out` only when it is complete.
    """
    out = Path(os.path.abspath(out))
    check_name(out)
    for inputs in (paths, valid_paths):
        if is_prepared(inputs):
            raise UserError(f"{inputs[0]}: prepared already; give the texts")
    try:
        reading_as = read_together(
            config.max_bytes, config.version, columns=config.columns, stream=config.stream
        )
        with atomic_folder(out, "--out") as draft, reading_as as reading:
            paths, valid_paths = use_splits(paths, valid_paths, has_classes=False)
            valid = reiterable_chunks(valid_paths) if valid_paths else None
            parts = split_texts(reiterable_chunks(paths), valid, config.holdout)
            with progress("bytes prepared", text_size([*paths, *valid_paths])) as advance:
                tokenizer = tokenizer_for(texts_to_learn_from(parts), config, specials)
                about = _write_shards(parts, tokenizer, draft, shard, advance)
    except OSError as error:  # errors of reading are UserErrors already
        raise UserError(
            f"{out}: cannot be written ({os_reason(error)}); free space or choose another folder"
        ) from None
    for note in reading.notes:
        print(note, file=sys.stderr)
    train, valid_tokens = about["train"]["tokens"], about["valid"]["tokens"]
    print(f"prepared {train:,} tokens for training and {valid_tokens:,} held out", file=sys.stderr)
    return about


def _write_shards(
    parts: Parts, tokenizer: Tokenizer, folder: Path, size: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    dtype = dtype_for(tokenizer)
    with (
        contextlib.closing(_ShardWriter(folder, "train", dtype, size)) as train,
        contextlib.closing(_ShardWriter(folder, "valid", dtype, size)) as valid,
    ):
        for batch in encode_texts(parts, tokenizer):
            (valid if batch.held_out else train).write(batch)
            advance(batch.bytes)
        train.finish_file()
        valid.finish_file()
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
