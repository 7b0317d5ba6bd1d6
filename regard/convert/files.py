"""Folders in Hugging Face's layout as files: JSON and safetensors in, a whole folder out. No pickles."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..checkpoint import Tensors, read_tensors
from ..errors import Mistake
from ..files import read_text

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
INDEX = "model.safetensors.index.json"  # which file has which tensor, where they are spread over several
GENERATION = "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"  # what is done to pictures


def read_json(path: Path, kind: type = dict) -> Any:
    """What a JSON file holds, each key once."""
    try:
        found = json.loads(read_text(path), object_pairs_hook=once)
    except FileNotFoundError:
        raise Mistake(f"{path.parent}: not a model folder, it has no {path.name}") from None
    except Mistake:
        raise
    except (OSError, ValueError) as e:
        raise Mistake(f"{path}: not readable as JSON: {e}") from None
    except RecursionError:
        raise Mistake(f"{path}: not readable as JSON: nested too deeply") from None
    if not isinstance(found, kind):
        raise Mistake(f"{path}: should hold one JSON {'object' if kind is dict else 'list'}")
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def weights_file(folder: Path) -> Path:
    """The file that has a folder's tensors, or knows where they are."""
    if not folder.is_dir():
        raise Mistake(f"{folder}: no such model folder")
    where = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
    if not where.is_file():
        raise Mistake(f"{folder}: no {WEIGHTS}; save it again with save_pretrained(safe_serialization=True)")
    return where


def read_weights(where: Path) -> Tensors:
    return read_tensors(where) if where.name == WEIGHTS else read_shards(where)


def read_shards(index: Path) -> Tensors:
    """The tensors of all files that an index names, each where it says."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise Mistake(f"{index}: weight_map should name the file of every tensor")
    found: Tensors = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or not name.isprintable() or len(name) > 255:
            raise Mistake(f"{index}: the file {name} would be outside of the folder; remove it")
        if not (index.parent / name).is_file():
            raise Mistake(f"{index}: the file {name} is not there; copy it, too")
        part = read_tensors(index.parent / name)
        for tensor in part.keys() | {tensor for tensor, place in places.items() if place == name}:
            if places.get(tensor) != name or tensor not in part:
                raise Mistake(f"{index}: {tensor} is not where it says; {name} and it don't belong together")
        found |= part
    return found


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` at the end, or nothing does."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Mistake(f"{folder} is there already; choose another DIR")
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        yield beside
        if folder.is_dir():
            folder.rmdir()  # empty
        os.rename(beside, folder)
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise Mistake(f"{folder} is there already, or below a file; choose another DIR") from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
