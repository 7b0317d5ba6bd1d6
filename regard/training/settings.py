"""The settings of a recipe: their sections, defaults and meanings."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin

from regard import errors
from regard.convert.huggingface.family import EmptyWeights
from regard.errors import UserError
from regard.models import MODELS
from regard.runs import recipe
from regard.tasks import TASKS
from regard.training.config import TrainConfig

FROM_DATA = ("vocab", "target_vocab", "size", "channels", "mels")  # settings of models that follow from data
PLANNED = {  # settings that the plan chooses, unless the recipe or the user does
    "model": {"dim", "depth", "decoder_depth", "heads", "hidden", "context", "dropout"} | {"patch", "pre"},
    "data": {"tokenizer", "target_tokenizer", "vocab", "held_out"},
    "task": {"smoothing"},
    "train": {"steps", "minutes", "batch", "tokens", "optimizer", "lr", "warmup", "schedule", "beta2"}
    | {"weight_decay", "evaluate", "save", "patience", "ema", "precision", "compile"},
}
USUAL = {  # names that need no comment in the code
    "dim": "width of the hidden states",
    "vocab": "number of tokens; the data sets it",
    "dropout": "share of the values that are set to zero in training",
    "heads": "attention heads",
    "norm": "the normalization",
    "positions": "the position encoding",
    "ffn": "the feed-forward layer",
    "channels": "of a pixel: 3 for colours, 1 for grey",
    "encoder": "what reads the image",
    "decoder": "what writes the words",
    "decoder_depth": "layers of the decoder",
    "attention": "how a score is computed; none: one fixed vector",
    "cell": "the kind of recurrent cell",
    "patch": "width and height of a patch in pixels",
    "pool": "what the class is read from: the class token, or the mean of all patches",
    "eps": "of the norms",
    "low": "the lowest score, if the labels are scores",
    "high": "the highest score, if the labels are scores",
    "smoothing": "label smoothing: the share of the probability for the other classes",
    "next": "also predict whether one piece of text follows another",
    "mean": "of the data's values; None: as found in the data",
    "std": "the standard deviation of the data's values; None: as found in the data",
    "steps": "how many steps to train",
    "epochs": "how many times to read all data, instead of a number of steps",
    "minutes": "how long to train, instead of a number of steps",
    "optimizer": "muon: for the matrices, with AdamW for the rest",
    "lr": "the highest learning rate",
    "warmup": "steps until the learning rate is highest",
    "schedule": "how the learning rate falls",
    "weight_decay": "how much weights are pulled to zero",
    "beta2": "for AdamW: how slowly the mean of squared gradients changes",
    "clip": "the largest norm of a gradient; larger ones are scaled down",
    "seed": "random seed; the same seed gives the same run",
    "metric": "the metric that chooses the best weights; None: the one that suits the labels",
    "tracker": "TensorBoard, Weights & Biases or Trackio, which also get the log",
    "device": "where to train; auto: a GPU if there is one",
    "precision": "auto: bf16 on GPUs and CPUs that have it, where it is faster",
    "compile": "torch.compile; auto: where it is likely to pay off",
    "parallel": "how several GPUs share the work",
}
FIELD = re.compile(r"(?P<name>\w+): [^#]+(?:#\s*(?P<note>.+))?$")


def from_data(model_config: type[Any]) -> list[str]:
    """The settings of a model that follow from the data."""
    return [f.name for f in fields(model_config) if f.name in FROM_DATA]


def section_configs(sections: recipe.Sections) -> dict[str, list[type[Any]]]:
    """The dataclasses of a recipe's sections; for the model, all kinds if the recipe names none."""
    kind, name = sections["model"].get("kind"), sections["task"].get("name")
    model_configs = [
        config for known, (_, config, _) in MODELS.items() if kind not in MODELS or known == kind
    ]
    tasks = [TASKS[str(name)]] if name in TASKS else []
    return {
        "model": model_configs,
        "data": [task.data_config for task, _ in tasks],
        "task": [config for _, config in tasks],
        "train": [TrainConfig],
    }


def find_sections(sections: recipe.Sections, changes: dict[str, Any]) -> None:
    """Name the section of each change that lacks one: lr becomes train.lr."""
    for key in (*recipe.NAMES, "kind", "preset"):
        recipe.require_name(key, changes.get(key, ""))
    if all("." in key for key in changes):
        return
    kind = changes.get("model.kind", changes.get("kind", sections["model"].get("kind")))
    model = sections["model"] | {"kind": kind}
    homes: dict[str, list[str]] = {"kind": ["model"], "preset": ["model"]}
    for section, configs in section_configs(sections | {"model": model}).items():
        for config in configs:
            known = [f.name for f in fields(config) if not (section == "model" and f.name in FROM_DATA)]
            for name in (*known, *getattr(config, "ALIASES", {})):
                if section not in homes.setdefault(name, []):
                    homes[name].append(section)
    for key, value in list(changes.items()):
        del changes[key]  # keeps their order
        if "." not in key:
            candidates = [f"{section}.{key}" for section in homes.get(key, ())]
            if not candidates:
                close = errors.suggest(key, [f"{home[0]}.{name}" for name, home in homes.items()])
                close = close if close.startswith("did") else errors.suggest(key, homes)
                raise UserError(f"{key} is not a setting; {close}")
            if len(candidates) > 1:
                raise UserError(f"{key} is a setting of several sections; write {' or '.join(candidates)}")
            (key,) = candidates
        changes[key] = value


def describe_recipe(name: str) -> Iterator[str]:
    """Describe the settings of a recipe with their defaults, and the presets with their sizes, in lines."""
    sections = recipe.read(name)
    kind, preset = str(sections["model"].get("kind")), str(sections["model"].get("preset"))
    presets = MODELS[kind][2] if kind in MODELS else {}
    task, _ = TASKS.get(str(sections["task"].get("name")), (None, None))
    if vocab := getattr(task and task.data_config, "vocab", None):
        yield f"presets (--set preset=NAME), their weights with a vocabulary of {vocab:,}:"
    else:
        yield "presets (--set preset=NAME):"
    for own, values in presets.items():
        sizes = ", ".join(f"{key} {value}" for key, value in values.items())
        mark = " (default)" if own == preset else ""
        yield f"  {own:14} {count_weights(kind, values, sections):>14,} weights: {sizes}{mark}"
    yield ""
    yield "settings (--set NAME=VALUE); plan: chosen from the data, this machine and the time"
    for section, configs in section_configs(sections).items():
        chosen = (presets.get(preset, {}) if section == "model" else {}) | sections[section]
        for config in configs[:1]:
            notes = comments(config)
            for f in fields(config):
                if f.name == "name" or (section == "model" and f.name in FROM_DATA):
                    continue
                usual = "plan" if f.name in PLANNED[section] else "" if f.default is MISSING else f.default
                default = chosen.get(f.name, usual)
                choices = get_args(f.type) if get_origin(f.type) is Literal else ()
                about = notes.get(f.name) or USUAL.get(f.name) or ", ".join(map(str, choices))
                yield f"  {section + '.' + f.name:24} {default!s:12} {about}".rstrip()


def count_weights(kind: str, preset: dict[str, Any], sections: recipe.Sections) -> int:
    """The number of weights of a model, with the vocabulary of the recipe."""
    model_class, config, _ = MODELS[kind]
    own = {k: v for k, v in sections["model"].items() if k not in ("kind", "preset")}
    task, _ = TASKS[sections["task"]["name"]]
    sizes: dict[str, Any] = {
        "vocab": getattr(task.data_config, "vocab", 1),
        "size": 32,
        "channels": 3,
        "mels": 80,
    }
    sizes = {name: sizes.get(name) for name in from_data(config)}
    with EmptyWeights():
        model = model_class(config(**preset | own | sizes))
    return sum(p.numel() for p in model.parameters())


def type_name(kind: Any) -> str:
    """The name of a type as in a dataclass, or the values of a Literal."""
    if get_origin(kind) is Literal:
        return " ".join(f"`{value}`" for value in get_args(kind))
    return (
        kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
    )


def comments(config: Any) -> dict[str, str]:
    """The comments after or above the fields of a dataclass and its base classes."""
    notes: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        above: list[str] = []
        for line in map(str.strip, inspect.getsource(cls).splitlines()):
            if line.startswith("#"):
                above.append(line.removeprefix("#").strip())
                continue
            if (match := FIELD.match(line)) and (match["note"] or above):
                notes[match["name"]] = match["note"] or " ".join(above)
            above = []
    return notes
