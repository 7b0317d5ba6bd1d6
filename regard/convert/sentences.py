"""Folders of sentence-transformers: an encoder, how its tokens' vectors become a text's, and perhaps a norm.

Reimers & Gurevych 2019.
"""

from pathlib import Path
from typing import Any

from ..errors import Mistake
from .files import CONFIG, read_json, write_json

MODULES = "modules.json"  # the parts of a folder
LENGTHS = "sentence_bert_config.json"
POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}  # theirs: ours


def read_parts(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where a folder has its encoder, and how tokens' vectors become a text's."""
    where = folder / MODULES
    parts = read_json(where, list)
    if not all(isinstance(part, dict) and {"type", "path"} <= part.keys() for part in parts):
        raise Mistake(f"{where}: should list the parts of a model, each with type and path")
    kinds = [str(part["type"]).rsplit(".", 1)[-1] for part in parts]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        known = "Transformer, Pooling and perhaps Normalize"
        raise Mistake(f"{where}: its parts are {', '.join(kinds) or 'none'}; known are {known}")
    places = [str(part["path"]) for part in parts[:2]]
    if any(Path(place).is_absolute() or ".." in Path(place).parts for place in places):
        raise Mistake(f"{where}: a part's path leads out of the folder; remove it")
    encoder, pooling = (folder / place for place in places)
    about = read_json(pooling / CONFIG)
    named = about.get("pooling_mode")  # as of late; before, each had a yes or no
    modes = [named] if named else [k.removeprefix("pooling_mode_") for k, v in about.items() if v is True]
    modes = [mode for mode in modes if named or f"pooling_mode_{mode}" in about]
    if len(modes) != 1 or str(modes[0]) not in POOLINGS:
        raise Mistake(f"{pooling / CONFIG}: pools by {', '.join(map(str, modes))}; known are mean and cls")
    found: dict[str, Any] = {"pooling": POOLINGS[str(modes[0])], "normalize": kinds[2:] == ["Normalize"]}
    beside = encoder / LENGTHS
    longest = read_json(beside).get("max_seq_length") if beside.exists() else None
    return encoder, found | ({} if longest is None else {"longest": longest})


def write_parts(folder: Path, task: dict[str, Any], dim: int) -> None:
    """What makes a folder with an encoder one of sentence-transformers."""
    parts = ["Transformer", "Pooling", *(["Normalize"] if task["normalize"] else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{part}"}
        for i, part in enumerate(parts)
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / LENGTHS, {"max_seq_length": task.get("longest"), "do_lower_case": False})
    for path in paths[1 : len(parts)]:
        (folder / path).mkdir()
    pooling: dict[str, Any] = {"word_embedding_dimension": dim}
    for theirs in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"):
        pooling[f"pooling_mode_{theirs}"] = POOLINGS.get(theirs) == task["pooling"]
    write_json(folder / paths[1] / CONFIG, pooling)
