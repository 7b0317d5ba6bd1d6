"""Folders of sentence-transformers: an encoder, pooling of its hidden states, and perhaps normalisation.

Reimers & Gurevych 2019.
"""

from pathlib import Path
from typing import Any

from regard.convert.huggingface.files import CONFIG
from regard.errors import UserError
from regard.files.untrusted import read_json, write_json

MODULES = "modules.json"  # the list of a folder's modules
LENGTHS = "sentence_bert_config.json"
POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}  # their names: ours


def read_modules(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of the encoder, and the settings of the task: how hidden states become one vector."""
    path = folder / MODULES
    modules = read_json(path, list)
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise UserError(f"{path}: should list the modules of a model, each with type and path")
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise UserError(
            f"{path}: the modules {', '.join(kinds) or '(none)'} are not supported; supported: Transformer, "
            "Pooling and perhaps Normalize"
        )
    places = [str(module["path"]) for module in modules[:2]]
    if any(Path(place).is_absolute() or ".." in Path(place).parts for place in places):
        raise UserError(f"{path}: a module's path leads out of the folder; remove it")
    encoder, pooling = (folder / place for place in places)
    settings: dict[str, Any] = {"pooling": read_pooling(pooling / CONFIG), "normalize": len(kinds) == 3}
    lengths = encoder / LENGTHS
    longest = read_json(lengths).get("max_seq_length") if lengths.exists() else None
    return encoder, settings | ({} if longest is None else {"longest": longest})


def read_pooling(path: Path) -> str:
    config = read_json(path)
    mode = config.get("pooling_mode")  # older files have a boolean for each mode instead
    prefix = "pooling_mode_"
    flags = [k.removeprefix(prefix) for k, v in config.items() if k.startswith(prefix) and v is True]
    modes = [str(mode)] if mode else flags
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(
            f"{path}: pooling_mode={', '.join(modes) or '(none)'} is not supported; supported: mean, cls"
        )
    return POOLINGS[modes[0]]


def write_modules(folder: Path, task: dict[str, Any], dim: int) -> None:
    """Write the files that make a folder with an encoder one of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if task["normalize"] else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / LENGTHS, {"max_seq_length": task.get("longest"), "do_lower_case": False})
    for path in paths[1 : len(kinds)]:
        (folder / path).mkdir()
    pooling: dict[str, Any] = {"word_embedding_dimension": dim}
    for mode in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"):
        pooling[f"pooling_mode_{mode}"] = POOLINGS.get(mode) == task["pooling"]
    write_json(folder / paths[1] / CONFIG, pooling)
