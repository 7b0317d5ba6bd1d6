"""A run's folder: how it is begun, and how a trained model comes back out of it."""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import recipe
from .checkpoint import read_tensors
from .display import progress
from .errors import Mistake
from .generate import Sampling
from .models import MODELS
from .tasks import TASKS, targets
from .text import Tokenizer

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
RECIPE = "recipe.toml"
LOG = "log.jsonl"


def best_device() -> torch.device:
    for kind in ("cuda", "mps"):
        if getattr(torch, kind).is_available():
            return torch.device(kind)
    return torch.device("cpu")


class Model:
    """A model with its tokenizer and its task: what people use. `model.model` is the nn.Module inside."""

    def __init__(self, model: nn.Module, task: Any, generation: dict[str, Any], folder: Path | None = None):
        self.model, self.task, self.generation, self.folder = model, task, generation, folder

    @property
    def tokenizer(self) -> Tokenizer:
        return self.task.tokenizer

    def stream(self, text: str | Sequence[str], **options: Any) -> Iterator[Any]:
        """The answer as it comes, piece by piece; for several texts, a list of pieces at a time.

        Options are those of `generate.Sampling`, `stop` (a string or several) and `num_return_sequences`.
        """
        options = self.generation | {k: v for k, v in options.items() if v is not None}
        stop, samples = options.pop("stop", ()), options.pop("num_return_sequences", 1)
        known = [f.name for f in fields(Sampling)]
        for name in options:
            if name not in known:
                hint = recipe.nearest(name, [*known, "stop", "num_return_sequences"])
                raise Mistake(f"{name} is not an option; {hint}")
        texts = [text] if isinstance(text, str) else text
        stops = [stop] if isinstance(stop, str) else stop
        for pieces in self.task.ask(self.model, texts, Sampling(**options), stops, samples):
            yield pieces[0] if isinstance(text, str) and samples == 1 else pieces

    def ask(self, text: str | Sequence[str], **options: Any) -> Any:
        """The answer to a text; for several texts or `num_return_sequences`, a list of answers."""
        pieces = list(self.stream(text, **options))
        if all(isinstance(piece, str) for piece in pieces):
            return "".join(pieces)
        return ["".join(row) for row in zip(*pieces, strict=True)]

    def score(self, *paths: str) -> dict[str, float]:
        """How well it does on held-out data, whole and in order."""
        if not paths:
            raise Mistake("there is nothing to score on; give at least one file or folder")
        stream = self.task.held_out(paths)
        device = next(self.model.parameters()).device
        size = max(1, 8192 // self.task.context)
        loss, count = 0.0, 0
        with torch.inference_mode(), progress("scoring", len(stream)) as advance:
            for batch in self.task.in_order(stream, size):
                loss += float(self.task.loss(self.model, *(t.to(device) for t in batch)))
                count += targets(batch)
                advance(targets(batch))
        return self.task.metrics(loss, count, stream)


def begin(folder: Path, model: nn.Module, task: Any, sections: recipe.Sections) -> None:
    """Make the folder with everything that stands before training, at once or not at all."""
    config = asdict(model.config)  # type: ignore[call-overload]
    config = {
        "architectures": [type(model).__name__],
        "model_type": f"regard-{sections['model']['kind']}",
        "task": sections["task"],
    } | {k: v for k, v in config.items() if v is not None}
    ends = {} if task.tokenizer.end is None else {"eos_token_id": task.tokenizer.end}
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        (beside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (beside / GENERATION).write_text(
            json.dumps(ends | task.generation, indent=2) + "\n", encoding="utf-8"
        )
        (beside / RECIPE).write_text(recipe.to_toml(sections), encoding="utf-8")
        (beside / LOG).touch()
        task.tokenizer.save(beside / TOKENIZER)
        if folder.is_dir():
            folder.rmdir()  # empty, or the caller would not have come here
        os.rename(beside, folder)
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Mistake(f"{folder} holds another run that began just now; choose another --out") from None
        if e.errno == errno.ENOTDIR:
            raise Mistake(f"{folder} is a file, or below one; choose another --out") from None
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load(folder: str | Path, device: str | torch.device | None = None) -> Model:
    """The trained model of a run's folder."""
    folder = Path(folder)
    made = _json(folder / CONFIG)
    kind = str(made.pop("model_type", "")).removeprefix("regard-")
    section = made.pop("task", None)
    if kind not in MODELS or not isinstance(section, dict) or str(section.get("name")) not in TASKS:
        raise Mistake(f"{folder / CONFIG}: not a model of Regard's (model_type is {kind or 'missing'!r})")
    if not (folder / WEIGHTS).is_file():
        raise Mistake(f"{folder}: no {WEIGHTS} yet; train it first, or go on with --resume")
    made.pop("architectures", None)
    module, config, _ = MODELS[kind]
    task_class, task_config = TASKS[section["name"]]
    try:
        model = module(recipe.fill("model", made, config))
    except ValueError as e:
        raise Mistake(f"{folder / CONFIG}: {e}") from None
    fit_weights(model, read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    model.to(device or best_device()).eval()
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    task = task_class(recipe.fill("task", section, task_config), tokenizer, model.config.context)
    generation = _json(folder / GENERATION) if (folder / GENERATION).exists() else {}
    generation.pop("eos_token_id", None)
    return Model(model, task, task.generation | generation, folder)


def fit_weights(model: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Weights into the model; a name or shape that differs is named."""
    want = model.state_dict()
    for name in sorted(want.keys() | weights.keys()):
        if name not in want or name not in weights or want[name].shape != weights[name].shape:
            raise Mistake(
                f"{path}: {name} does not fit the model; {CONFIG} and {WEIGHTS} don't belong together"
            )
    model.load_state_dict(weights)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise Mistake(f"{path.parent}: no such model folder") from None
        raise Mistake(f"{path.parent}: not a model folder, it has no {path.name}") from None
    except (OSError, ValueError) as e:
        raise Mistake(f"{path}: not readable as JSON: {e}") from None
    if not isinstance(found, dict):
        raise Mistake(f"{path}: should hold one JSON object")
    return found
