"""File names of Hugging Face's folders, and their weights: safetensors only, never pickles."""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError
from regard.files.untrusted import read_json

if TYPE_CHECKING:
    from regard.files.tensors import Tensors

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"  # only in Regard's exports for other programs
INDEX = "model.safetensors.index.json"  # maps tensors to files, if there are several
GENERATION = "generation_config.json"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"  # of PEFT
PREPROCESSOR = "preprocessor_config.json"  # the preparation of images


def find_weights(folder: Path) -> Path:
    """The file with a folder's tensors, or the index of several."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder")
    path = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
    if not path.is_file():
        raise UserError(
            f"{folder}: no {WEIGHTS}; save it again with save_pretrained(safe_serialization=True)"
        )
    return path


def read_weights(path: Path) -> "Tensors":
    from regard.files.tensors import read_tensors  # needs torch, which `regard info` does without

    if path.name == WEIGHTS:
        return read_tensors(path)
    tensors: Tensors = {}
    for file, names in read_index(path).items():
        shard = read_tensors(path.parent / file)
        for name in shard.keys() ^ names:
            raise UserError(f"{path}: weight_map and {file} do not agree about {name}; copy all files again")
        tensors |= shard
    return tensors


def read_index(index: Path) -> dict[str, set[str]]:
    """The files that an index lists, each with the names of its tensors."""
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(file, str) for file in file_of.values()):
        raise UserError(f"{index}: weight_map should name the file of every tensor")
    files: dict[str, set[str]] = {file: set() for file in sorted(set(file_of.values()))}
    for file in files:
        if Path(file).name != file or not file.isprintable() or len(file) > 255:
            raise UserError(f"{index}: the file {file} would be outside of the folder; remove it")
        if not (index.parent / file).is_file():
            raise UserError(f"{index}: the file {file} is not there; copy it, too")
    for name, file in file_of.items():
        files[file].add(name)
    return files
