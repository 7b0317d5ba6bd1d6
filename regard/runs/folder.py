"""The files of a run's folder."""

import errno
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard.errors import UserError
from regard.files.untrusted import read_json
from regard.runs import recipe
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"  # where what is written has a vocabulary of its own
GENERATION = "generation_config.json"
RECIPE = "recipe.toml"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"


def begin(folder: Path, model: nn.Module, task: Task, sections: recipe.Sections) -> None:
    """Create the folder with everything that exists before training, at once or not at all."""
    config = {
        "architectures": [type(model).__name__],
        "model_type": f"regard-{sections['model']['kind']}",
        "task": sections["task"],
    } | {k: v for k, v in asdict(model.config).items() if v is not None}  # type: ignore[call-overload]
    end = task.tokenizer and task.tokenizer.end
    ends = {} if end is None else {"eos_token_id": end}
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        for name, content in ((CONFIG, config), (GENERATION, ends | task.generation)):
            (beside / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (beside / RECIPE).write_text(recipe.to_toml(sections), encoding="utf-8")
        (beside / LOG).touch()
        if task.tokenizer is not None:
            task.tokenizer.save(beside / TOKENIZER)
        if task.target_tokenizer is not None:
            task.target_tokenizer.save(beside / TARGET_TOKENIZER)
        if folder.is_dir():
            folder.rmdir()  # empty, or the caller would not have come here
        os.rename(beside, folder)
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise UserError(f"{folder} holds another run that began just now; choose another --out") from None
        if e.errno == errno.ENOTDIR:
            raise UserError(f"{folder} is a file, or below one; choose another --out") from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load_tokenizers(folder: Path) -> list[Tokenizer]:
    """The tokenizer; and the target's own, if it has one."""
    names = [TOKENIZER] + ([TARGET_TOKENIZER] if (folder / TARGET_TOKENIZER).exists() else [])
    return [Tokenizer.load(folder / name) for name in names]


def read_settings(path: Path) -> dict[str, Any]:
    """A JSON file of a model's folder."""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such model folder")
    settings: dict[str, Any] = read_json(path)
    return settings
