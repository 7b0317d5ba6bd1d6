"""Folders of token ids for texts that do not fit in memory: written by `prepare`, then read in windows."""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.archives import file_size, split_path
from regard.data.documents import choose_texts, list_documents, reiterable_chunks, text_size
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
from regard.data.memory import is_memory
from regard.data.reading import describe_guesses, read_together
from regard.data.remote import fetch, is_remote, list_remote, remote_size
from regard.data.shard import Shard
from regard.data.splitting import use_splits
from regard.data.streams import Stream
from regard.draw.terminal import progress
from regard.errors import UserError, first_line, os_reason
from regard.files.atomic import as_private_as, atomic_folder, is_missing, write_text
from regard.files.regular import check_name
from regard.files.untrusted import parse_json, read_json, read_text
from regard.text.tokenizer import Tokenizer

SHARD_TOKENS = 2**26  # in a file
INDEX = "shards.json"
VERSION = 1  # of the index
VERSION_OF_PARTS = 2  # of an index of parts, which are prepared folders
PART = re.compile(r"part-([0-9]{5})-of-([0-9]{5})")  # the name of a part's folder

Part = tuple[int, int]  # its number, from 1 on, and the number of parts
MAX_INDEX = 2**26  # bytes


def is_prepared(paths: Sequence[str]) -> bool:
    """Return whether these are folders that `prepare` wrote; raise UserError if only some are, or if
    parts are missing."""
    for path in paths:
        check_parts(Path(path))
    has_index = {str(path): (Path(path) / INDEX).is_file() for path in paths}
    if len(set(has_index.values())) > 1:
        folder = next(path for path in has_index if has_index[path])
        other = next(path for path in has_index if not has_index[path])
        raise UserError(f"{folder}: a prepared folder, but {other} is not; prepare both or neither")
    return any(has_index.values())


def concat_shards(folders: Sequence[str], sides: Sequence[str], tokenizer: Tokenizer) -> Stream:
    """Return the shards of these folders as one stream, with the end token also between folders."""
    parts: list[np.ndarray | Shard] = []
    size = 0
    for folder in (part for path in folders for part in _list_parts(Path(path))):
        about = _read_index(folder, tokenizer)
        for side in sides:
            shards = [
                Shard(
                    folder / Path(entry["name"]).name,
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
        about: dict[str, Any] = parse_json(read_text(file, MAX_INDEX))
        if about["version"] != VERSION or about["dtype"] not in ("uint16", "uint32"):
            raise ValueError(f"version {about['version']}, {about['dtype']}; known is version {VERSION}")
        sides = [about[side] for side in ("train", "valid")]
        entries = [entry for side in sides for entry in side["files"]]
        numbers = [side["bytes"] for side in sides] + [entry["tokens"] for entry in entries]
        texts = [entry[key] for entry in entries for key in ("name", "sha256")]
        if not (all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts)):
            raise ValueError("a value has the wrong type")
        digest = about["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: damaged ({first_line(error)}); prepare the folder again") from None
    if digest != tokenizer.digest:
        raise UserError(
            f"{folder / 'tokenizer.json'}: not the tokenizer of these shards; prepare the folder again"
        )
    return about


def _list_parts(folder: Path) -> list[Path]:
    """Return the folders that hold the shards of a prepared folder: its parts, or itself."""
    file = folder / INDEX
    try:
        about = parse_json(read_text(file, MAX_INDEX))
        if about["version"] != VERSION_OF_PARTS:
            return [folder]
        digests = {str(name): str(digest) for name, digest in about["parts"].items()}
        if not all(map(PART.fullmatch, digests)):
            raise ValueError("a part has another name")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: damaged ({first_line(error)}); prepare the folder again") from None
    for name, digest in digests.items():
        text = read_text(folder / name / INDEX, MAX_INDEX)
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise UserError(f"{folder / name / INDEX}: not that of {file}; prepare this part again")
    return [folder / name for name in sorted(digests)]


def check_parts(folder: Path) -> None:
    """Raise UserError if a folder has some of the parts that `prepare` writes, but not all."""
    if not folder.is_dir() or (folder / INDEX).is_file():
        return
    matches = [match for path in folder.iterdir() if (match := PART.fullmatch(path.name))]
    if matches:
        count = int(matches[0][2])
        missing = sorted({*range(1, count + 1)} - {int(match[1]) for match in matches})
        which = ", ".join(f"{n}/{count}" for n in missing[:3])
        raise UserError(
            f"{folder}: {len(missing)} of {count} parts are missing; prepare them with --part {which}"
            + ("" if len(missing) <= 3 else ", ...")
        )


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
        """Write the header of .npy, whose length does not depend on the number of tokens."""
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
    part: Part | None = None,
) -> dict[str, Any]:
    """Write texts of any size to a folder of token shards for `load_corpus`; return its shards.json.

    A `part` has every n-th file, in its own folder inside `out`; when the last one is written, they are
    joined. All use the tokenizer that the first one learns, and each holds out some of its own texts.

    The texts are read in chunks, up to four times: to divide them, to choose what the tokenizer learns, to
    train it and to encode them. So the memory does not depend on their size: some hundred megabytes for each
    core, and the memory of the tokenizer's trainer, which reads no more than `encoding.LEARNED` says. Only
    standard input and pipes, which can be read once, are held, and a few numbers for each document. The
    ids are the same as for whole texts. The folder appears at `out` only when it is complete, and is as
    private as the texts.
    """
    out = Path(os.path.abspath(out))
    check_name(out)
    target = out if part is None else out / f"part-{part[0]:05d}-of-{part[1]:05d}"
    for inputs in (paths, valid_paths):
        if is_prepared(inputs):
            raise UserError(f"{inputs[0]}: prepared already; give the texts")
    try:
        if part and (earlier := finished_part(out, target, paths, valid_paths, config, part)):
            print(f"{target}: prepared already; delete it to prepare it again", file=sys.stderr)
            report_parts(out, part[1])
            return earlier
        with (
            as_private_as(_named_files([*paths, *valid_paths])),
            atomic_folder(target, "--out") as draft,
            read_together(config) as reading,
        ):
            own, first, request, valid_paths = choose_files(paths, valid_paths, config, part)
            if own != first:  # they are part of the first part
                config, valid_paths = replace(config, holdout=0 if valid_paths else config.holdout), ()
            valid = reiterable_chunks(valid_paths) if valid_paths else None
            parts = split_texts(reiterable_chunks(own), valid, config.holdout)
            learnable = parts if own == first else split_texts(reiterable_chunks(first), None, config.holdout)
            with progress("bytes prepared", text_size([*own, *valid_paths])) as advance:
                tokenizer = tokenizer_for(texts_to_learn_from(learnable), config, specials)
                about = _write_shards(parts, tokenizer, draft, shard, advance, request)
        for note in describe_guesses(reading):
            print(note, file=sys.stderr)
        train, valid_tokens = about["train"]["tokens"], about["valid"]["tokens"]
        print(f"prepared {train:,} tokens for training and {valid_tokens:,} held out", file=sys.stderr)
        if part:
            report_parts(out, part[1])
    except OSError as error:  # errors of reading are already UserErrors
        raise UserError(
            f"{out}: cannot be written ({os_reason(error)}); free space or choose another folder"
        ) from None
    return about


def _named_files(paths: Iterable[str]) -> Iterator[Path]:
    """The files and folders on this machine that paths name, and everything in the folders."""
    for path in (Path((split_path(path) or (path,))[0]) for path in paths if not is_memory(path)):
        if path.exists():
            yield path
            yield from (inner for inner in path.rglob("*") if inner.exists())


def choose_files(
    paths: Sequence[str], valid_paths: Sequence[str], config: DataConfig, part: Part | None
) -> tuple[Sequence[str], Sequence[str], dict[str, str], Sequence[str]]:
    """Return what `divide_files` does, and the files to validate on; remote ones are copied first."""
    valid_paths = fetch(list(valid_paths))
    paths = list(paths) if part else fetch(list(paths))
    paths, valid_paths = use_splits(paths, valid_paths, has_classes=False)
    return *divide_files(paths, valid_paths, config, part), valid_paths


def finished_part(
    out: Path, target: Path, paths: Sequence[str], valid_paths: Sequence[str], config: DataConfig, part: Part
) -> dict[str, Any] | None:
    """Return the index of a part that is there, of the same files and settings, if parts are not joined yet:
    the process that wrote it may have ended before that."""
    if is_missing(target / INDEX) or not is_missing(out / INDEX):
        return None
    with read_together(config):
        _, _, request, _ = choose_files(paths, valid_paths, config, part)
    about = read_json(target / INDEX, limit=MAX_INDEX)
    return about if request.items() <= about.items() else None


def report_parts(out: Path, count: int) -> None:
    """Join the parts if all are there, and print how many are missing."""
    missing = join_parts(out, count)
    rest = f"{missing} of {count} parts are missing" if missing else f"all {count} parts are joined"
    print(f"{out}: {rest}", file=sys.stderr)


def divide_files(
    paths: Sequence[str], valid_paths: Sequence[str], config: DataConfig, part: Part | None
) -> tuple[Sequence[str], Sequence[str], dict[str, str]]:
    """Return the files of a part, those of the first part, and digests of settings that all parts share."""
    if part is None:
        return paths, paths, {}
    number, count = part
    files: list[str] = []
    for path in paths:  # only the files of this part are copied from a remote folder
        files += (choose_texts(list_remote(path)) if is_remote(path) else []) or list_documents([path])
    if len(files) < count:
        raise UserError(
            f"--part {number}/{count}: there are {len(files)} files; split them, or take fewer parts"
        )
    if config.tokenizer == "char":
        raise UserError("--part: data.tokenizer=char needs all parts; give data.tokenizer=bpe, or a file")
    names = [os.path.basename(name) for name in (*files, *valid_paths)]
    sizes = [remote_size(file) if is_remote(file) else file_size(file) for file in files]
    shared = {"request": [names, count, vars(config)], "sizes": sizes}
    own, first = fetch(files[number - 1 :: count]), fetch(files[::count])
    return own, first, {key: _digest(json.dumps(value, default=str)) for key, value in shared.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def join_parts(out: Path, count: int) -> int:
    """Write the index of a folder if all of its parts are there; return how many are missing.

    The process that writes the last part does this; two at the same time write the same.
    """
    names = [f"part-{n:05d}-of-{count:05d}" for n in range(1, count + 1)]
    there = [name for name in names if (out / name / INDEX).is_file()]
    if len(there) < count:
        return count - len(there)
    texts = {name: read_text(out / name / INDEX, MAX_INDEX) for name in names}
    indexes = {name: read_json(out / name / INDEX, limit=MAX_INDEX) for name in names}
    first, like = indexes[names[0]], out / names[0] / INDEX
    sizes = next((about["sizes"] for about in indexes.values() if "sizes" in about), None)
    for name, about in indexes.items():
        about.setdefault("sizes", sizes)  # earlier versions wrote none
        for key in ("request", "sizes", "tokenizer", "dtype"):
            if about.get(key) != first.get(key):
                raise UserError(
                    f"{out / name}: prepared from other files or with other settings than {names[0]}; "
                    "delete it, and prepare it again"
                )
    write_text(out / "tokenizer.json", read_text(like.with_name("tokenizer.json"), MAX_INDEX), like)
    index: dict[str, Any] = {
        "version": VERSION_OF_PARTS,
        "tokenizer": first["tokenizer"],
        "dtype": first["dtype"],
    }
    for side in ("train", "valid"):
        keys = ("documents", "bytes", "tokens")
        index[side] = {key: sum(about[side][key] for about in indexes.values()) for key in keys}
    index["parts"] = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    write_text(out / INDEX, json.dumps(index, indent=1) + "\n", like)
    return 0


def _write_shards(
    parts: Parts,
    tokenizer: Tokenizer,
    folder: Path,
    size: int,
    advance: Callable[[int], None],
    request: dict[str, str],
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
    (folder / INDEX).write_text(json.dumps(about | request, indent=1) + "\n", "utf-8")
    return about
