"""The initial model of a run: a new one, or one that was trained before."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data import Corpus
from regard.describe.export import without_head
from regard.errors import UserError
from regard.models import MODELS
from regard.quantize.model import dequantize_model
from regard.runs import lora, recipe
from regard.runs.adapter import find_base
from regard.runs.layout import BASE
from regard.runs.load import load_model
from regard.runs.model import Model
from regard.tasks import Task
from regard.training.config import TrainConfig
from regard.training.job import Job
from regard.training.optimizers import freeze
from regard.training.origins import check_origins
from regard.training.settings import from_data


def load_parent(job: Job, config: TrainConfig, started: bool) -> Model | None:
    """Load the model to start from. A run that has started needs none, as its checkpoints have all weights;
    but the base of an adapter must be unchanged."""
    torch.manual_seed(config.seed)  # heads that a folder lacks are initialized at random
    return load_same_base(job) if job.base and (config.adapter or not started) else None


def load_same_base(job: Job) -> Model | None:
    """Load the model that the run in the job's folder began with, if any; of a new run, any model."""
    if not job.base:
        return None
    if (job.folder / BASE).exists():
        find_base(job.folder)
    check_origins(job.folder, "from", [str(job.base)])
    return load_base(job.base)


def load_base(path: str | Path) -> Model:
    """Load the model to start from, with weights in float32."""
    model = load_model(path, "cpu")
    dequantize_model(model.model)
    return model


@dataclass(frozen=True)
class ModelFactory:
    """Makes the model of a run, with the recipe's heads and updates."""

    job: Job
    kind: str
    settings: dict[str, Any]  # of the model
    corpus: Corpus
    data_config: Any
    task_class: type[Task]
    task_config: Any
    config: TrainConfig

    def make(self, parent: Model | None, started: bool) -> nn.Module:
        """Make the model; a run that has `started` loads its weights afterwards."""
        torch.manual_seed(self.config.seed)
        if parent is not None:
            model = base_model(parent, self.job.base, self.settings)
        else:
            model = new_model(self.kind, self.settings, self.corpus)
            if not started:
                check_origins(self.job.folder, "weights", first_weights(self.data_config))
                self.task_class.init_from(model, self.data_config)
        model = self.task_class.add_head(model, self.task_config)
        if parent and parent.task.config.name == self.task_config.name:
            keep_head(parent, model, self.task_config)
        if self.config.lora:
            lora.add(model, self.config.lora, self.config.lora_alpha, only=self.config.adapter)
        if self.config.freeze:
            freeze(model, self.config.freeze)
        return model

    def make_first(self) -> nn.Module:
        """Make the model as it was before the first step, also when the run is resumed."""
        torch.manual_seed(self.config.seed)
        return self.make(load_same_base(self.job), started=False)


def first_weights(data_config: Any) -> list[str]:
    """The file of weights that a task's `init_from` reads, if it reads one."""
    return [path] if (path := getattr(data_config, "weights", None)) else []


def new_model(kind: str, settings: dict[str, Any], corpus: Corpus) -> nn.Module:
    model_class, model_config, _ = MODELS[kind]
    sizes: dict[str, int | None] = dict.fromkeys(from_data(model_config), 1)
    if "target_vocab" in sizes:
        other = corpus.target_tokenizer
        sizes["target_vocab"] = None if other is None else other.vocab
    if corpus.tokenizer is not None:
        sizes["vocab"] = corpus.tokenizer.vocab
    try:
        return model_class(recipe.fill("model", settings, model_config, **sizes | corpus.model_settings))
    except ValueError as e:
        raise UserError(f"model: {e}") from None


def base_model(parent: Model, base: str | Path | None, settings: dict[str, Any]) -> nn.Module:
    """Return the model to start from, without its head."""
    model = without_head(parent.model)
    model.requires_grad_(True)
    for key, value in settings.items():
        if getattr(model.config, key) != value:
            raise UserError(f"model.{key}={value}: the model in {base} has {getattr(model.config, key)}")
    return model


def keep_head(parent: Model, model: nn.Module, config: Any) -> None:
    """Keep the head of the model to start from, if it predicts the same classes, perhaps in another order."""
    (labels, *bounds), (new_labels, *new_bounds) = (
        [getattr(c, name, None) for name in ("labels", "low", "high")] for c in (parent.task.config, config)
    )
    same = bounds == new_bounds and sorted(labels or ()) == sorted(new_labels or ())
    if not getattr(model, "has_task_head", False) or not same:
        return
    rows = [labels.index(name) for name in new_labels] if labels and new_labels else slice(None)
    old = parent.model.head.state_dict()  # type: ignore[union-attr]
    model.head.load_state_dict({name: t[rows] for name, t in old.items()})  # type: ignore[union-attr]
