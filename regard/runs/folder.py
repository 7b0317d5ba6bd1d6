"""Write a run's folder, and read its settings and tokenizers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard.convert.huggingface.files import ADAPTER_CONFIG
from regard.convert.huggingface.tokenizer_json import tokenizer_config
from regard.errors import UserError
from regard.files import atomic
from regard.files.atomic import Draft, new_folder
from regard.files.regular import list_matching
from regard.files.untrusted import read_json
from regard.runs import recipe
from regard.runs.checkpoints import steps
from regard.runs.layout import (
    ANSWERS,
    BASE,
    CHECKPOINTS,
    CONFIG,
    CURVE,
    FILM,
    FOLDS,
    GENERATION,
    LOG,
    ORIGINS,
    RECIPE,
    TARGET_TOKENIZER,
    TEMPLATE,
    TENSORBOARD,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WANDB,
    published,
)
from regard.tasks.task import Task
from regard.text.tokenizer import Tokenizer


def begin(folder: Path, model: nn.Module, task: Task, sections: recipe.Sections) -> None:
    """Create the run folder with everything that exists before training, atomically."""
    with new_folder(folder, "--out") as draft:
        publish(draft, model, task, sections)


def publish(
    draft: Draft, model: nn.Module, task: Task, sections: recipe.Sections, comments: Sequence[str] = ()
) -> None:
    """Write everything that exists before training to a draft, and publish it."""
    kind = str(sections["model"]["kind"])
    write_model_files(draft.path, model, task, kind, task.generation, sections["task"])
    (draft.path / RECIPE).write_text(recipe.to_toml(sections, comments), encoding="utf-8")
    (draft.path / LOG).touch()
    draft.publish(last=RECIPE)  # this file makes the folder a run


def write_model_files(
    folder: Path,
    model: nn.Module,
    task: Task,
    kind: str,
    generation: dict[str, Any],
    section: dict[str, Any] | None = None,
) -> None:
    """Write the settings and the tokenizers of a model's folder. `section` is a recipe's [task]."""
    config = {
        "architectures": [type(model).__name__],
        "model_type": f"regard-{kind}",
        "task": asdict(task.config) if section is None else section,
    } | {k: v for k, v in asdict(model.config).items() if v is not None}  # type: ignore[call-overload]
    end = None if task.tokenizer is None else task.tokenizer.end
    ends = {} if end is None else {"eos_token_id": list(task.ends) if len(task.ends) > 1 else end}
    for name, content in ((CONFIG, config), (GENERATION, ends | generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if task.tokenizer is not None:
        task.tokenizer.save(folder / TOKENIZER)
    if task.template is not None:
        settings = tokenizer_config(task.tokenizer.inner.to_str(), end, task.context) | task.template.specials
        (folder / TEMPLATE).write_text(task.template.text, encoding="utf-8")
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if task.target_tokenizer is not None:
        task.target_tokenizer.save(folder / TARGET_TOKENIZER)


def discard_unsaved(folder: Path) -> None:
    """Remove the files of `publish` and the trainer, unless there are weights, checkpoints or teachers'
    answers, which took time to make."""
    if (
        not atomic.is_missing(published(folder))
        or steps(folder / CHECKPOINTS)
        or list_matching(folder, ANSWERS)
    ):
        return
    written = (CONFIG, GENERATION, RECIPE, LOG, TOKENIZER, TARGET_TOKENIZER, CURVE, FOLDS, TENSORBOARD, WANDB)
    for name in (*written, TEMPLATE, TOKENIZER_CONFIG, BASE, ORIGINS, ADAPTER_CONFIG, FILM):
        atomic.remove(folder / name)
    atomic.remove_empty([folder / CHECKPOINTS])


def load_tokenizers(folder: Path) -> list[Tokenizer]:
    """Load the tokenizer, and the target's own if there is one."""
    names = [TOKENIZER] + ([TARGET_TOKENIZER] if (folder / TARGET_TOKENIZER).exists() else [])
    return [Tokenizer.load(folder / name) for name in names]


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model's folder."""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent}: no such model folder")
    settings: dict[str, Any] = read_json(path)
    return settings
