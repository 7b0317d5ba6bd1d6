"""Training: a recipe and data in, a run's folder out."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, distributed, lora, optim, recipe, run
from .errors import Mistake
from .models import MODELS, Electra, Labelled
from .recurrent import CELLS
from .tasks import TASKS
from .trainer import TrainConfig, Trainer

# What may differ when a run is resumed: none of these changes what a step computes.
BUDGET = {"steps", "minutes", "patience"}
FOLLOWING = ("vocab", "target_vocab", "size", "channels")  # settings of models that follow from the data
FREE = BUDGET | {"micro", "evaluate", "save", "keep", "log", "tensorboard", "device", "compile", "parallel"}


def train(
    name: str = "write",
    *data: str,
    valid: str | Sequence[str] = (),
    out: str | Path | None = None,
    base: str | Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    set: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> run.Model:
    """Train by the recipe called `name`, or in a .toml file; `base` is a model to start from."""
    changes = dict(set or {})
    if steps is not None:
        changes["train.steps"] = steps
    if minutes is not None:
        changes["train.minutes"] = minutes
    sections = recipe.change(recipe.read(name), changes)
    kind = changes.get("model.kind", sections["model"].get("kind"))
    if kind != recipe.read(name)["model"].get("kind"):  # the recipe's settings are for another model
        sections["model"] = {
            k: v for k, v in sections["model"].items() if f"model.{k}" in changes or k == "preset"
        }
    if "train.minutes" in changes and "train.steps" not in changes:
        sections["train"].pop("steps", None)  # the recipe's own budget gives way
    folder = Path(out) if out is not None else free_folder(Path("runs") / sections["task"].get("name", "run"))
    going_on = resume and (folder / run.RECIPE).is_file()
    if going_on:
        sections, data, valid, base = resumed(folder, changes, data, valid)
    elif folder.is_dir() and any(folder.iterdir()):
        if (folder / run.RECIPE).is_file():
            raise Mistake(f"{folder} already holds a run; go on with --resume, or choose another --out")
        raise Mistake(f"{folder} exists and is not empty; choose another --out")
    elif folder.exists() and not folder.is_dir():
        raise Mistake(f"{folder} is a file; choose another --out")
    elif base is not None:  # whose sizes hold; the recipe's give way, but what is asked for must agree
        asked = {key.removeprefix("model."): v for key, v in changes.items() if key.startswith("model.")}
        sections["model"] = asked
    valid = [valid] if isinstance(valid, str) else list(valid)

    config = recipe.fill("train", sections["train"], TrainConfig)
    device = choose_device(config.device)
    with distributed.together(device), tidied(folder):
        trainer = assemble(folder, sections, config, list(data), valid, base, going_on, device)
        trainer.run()
    return run.load(folder, device)


def free_folder(folder: Path) -> Path:
    """The folder, or its name with the first number that is free."""
    taken, n = folder, 1
    while taken.exists():
        n += 1
        taken = folder.with_name(f"{folder.name}-{n}")
    return taken


def resumed(
    folder: Path, changes: Mapping[str, Any], data: Sequence[str], valid: Any
) -> tuple[recipe.Sections, Any, Any, str | None]:
    """The run's own recipe, data and the model it started from.

    Only what a step's result does not depend on may be asked to differ.
    """
    old = recipe.read_file(folder / run.RECIPE)
    chosen = preset(MODELS[old["model"]["kind"]][2], changes.get("model.preset"))
    changes = {f"model.{name}": value for name, value in chosen.items()} | dict(changes)
    for key, now in changes.items():
        section, _, name = key.partition(".")
        if section == "train" and name in FREE:
            old["train"][name] = now
        elif name != "preset" and (was := old[section].get(name)) != now:
            raise Mistake(
                f"{key}: {folder} was begun with {was}, not {now}; leave it out, or begin a new run"
            )
    files, held_out, base = (old["data"].pop(name, None) for name in ("files", "valid", "from"))
    return old, data or files or [], valid or held_out or [], base


def preset(presets: Mapping[str, dict[str, Any]], name: str | None) -> dict[str, Any]:
    if name is not None and name not in presets:
        raise Mistake(f"model.preset={name} is not a preset; {recipe.nearest(str(name), presets)}")
    return presets[name] if name else {}


def choose_device(name: str) -> torch.device:
    device = run.best_device() if name == "auto" else torch.device(name)
    if device.type != "cpu" and not getattr(torch, device.type).is_available():
        raise Mistake(f"train.device={name}: torch finds no such device here; use train.device=auto")
    if device.type == "cuda":
        device = torch.device("cuda", distributed.LOCAL)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        keep_memory()
    return device


def keep_memory() -> None:
    """Have glibc keep the memory of large tensors for the next ones.

    Giving it back, asking for it again and the system's filling it with zeros took up to a fourth of a step.
    """
    trim_threshold, mmap_max = -1, -4  # their numbers in malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another system, another library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)


@contextlib.contextmanager
def tidied(folder: Path) -> Iterator[None]:
    """What the machine refuses becomes one line of advice; a run that never came to a save leaves nothing."""
    existed = folder.is_dir() and any(folder.iterdir())
    try:
        yield
    except BaseException as e:
        if not existed and not (folder / run.WEIGHTS).exists() and distributed.RANK == 0:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise Mistake(f"{folder}: {e.strerror or e}; make room and go on with --resume") from None
        short = ("out of memory", "can't allocate memory", "not enough memory")
        if isinstance(e, MemoryError) or (
            isinstance(e, RuntimeError) and any(words in str(e).lower() for words in short)
        ):
            raise Mistake(
                "out of memory; take fewer sequences at a time (--set train.micro=4, same result), "
                "or make model.context or model.dim smaller"
            ) from None
        raise


def keep_head(old: Any, was: Any, new: Any, now: Any) -> None:
    """The head of the model to start from stays, if it tells the same, perhaps in another order."""
    (told, *bounds), (wanted, *others) = (
        [getattr(config, name, None) for name in ("labels", "low", "high")] for config in (was, now)
    )
    if not isinstance(new, Labelled) or bounds != others or sorted(told or ()) != sorted(wanted or ()):
        return
    rows = [told.index(name) for name in wanted] if told and wanted else slice(None)
    new.head.load_state_dict({name: t[rows] for name, t in old.head.state_dict().items()})


def assemble(
    folder: Path,
    sections: recipe.Sections,
    config: TrainConfig,
    data: list[str],
    valid: list[str],
    base: str | Path | None,
    going_on: bool,
    device: torch.device,
) -> "Trainer":
    """Everything that a run needs, checked before the folder is made."""
    task_name = sections["task"].get("name")
    if task_name not in TASKS:
        raise Mistake(f"task.name={task_name} is not a task; {recipe.nearest(str(task_name), TASKS)}")
    task_class, task_config = TASKS[task_name]
    if config.micro and task_class.whole:
        raise Mistake(
            f"train.micro={config.micro}: {task_name} compares all of a batch, which can't be cut; "
            "make train.batch smaller"
        )
    begun = going_on and checkpoint.newest(folder / "checkpoints")[0] is not None
    torch.manual_seed(config.seed)  # heads that a folder lacks are drawn
    parent = run.load(base, "cpu") if base and not begun else None
    if parent and isinstance(parent.task, task_class):
        kept = {name: getattr(parent.task.config, name) for name in task_class.inherits}
        sections["task"] = {k: v for k, v in kept.items() if v is not None} | sections["task"]
    kind = str(sections["model"].get("kind") or (parent and parent.kind))
    if parent and kind != parent.kind:
        raise Mistake(f"model.kind={kind}: the model in {base} is of kind {parent.kind}")
    if kind not in task_class.kinds:
        raise Mistake(f"model.kind={kind} cannot {task_name}; {recipe.nearest(kind, task_class.kinds)}")
    made, model_config, presets = MODELS[kind]

    following = {f.name: 1 for f in fields(model_config) if f.name in FOLLOWING}
    old = going_on and "vocab" in following
    tokenizers = parent.tokenizers if parent else run.load_tokenizers(folder) if old else []
    settings = {k: v for k, v in sections["model"].items() if k not in ("kind", "preset")}
    settings = preset(presets, sections["model"].get("preset")) | settings
    first = recipe.fill("model", settings, model_config, **following)  # mistakes before the data are read
    context = parent.model.config.context if parent else first.context  # type: ignore[union-attr]
    if not data:
        here = Path(__file__).parent / "builtin"
        data, held = ([str(here / name) for name in names] for names in task_class.builtin)
        valid = valid or held
    data_config = recipe.fill("data", sections["data"], task_class.data)
    asked = recipe.fill("task", sections["task"], task_config)
    if getattr(asked, "forcing", 1) < 1 and kind not in CELLS:
        raise Mistake("task.forcing is for recurrent models; leave it out, or set model.kind=gru")
    corpus = task_class.read(data, valid, data_config, asked, context, tokenizers)
    sections["task"] = corpus.found | sections["task"]

    torch.manual_seed(config.seed)
    if parent is not None:
        model = parent.model
        if isinstance(model, Electra | Labelled):  # without what is on it
            model = model.model
        model.requires_grad_(True)
        for key, value in settings.items():
            if getattr(model.config, key) != value:
                raise Mistake(f"model.{key}={value}: the model in {base} has {getattr(model.config, key)}")
    else:
        try:
            if "target_vocab" in following:
                other = corpus.target_tokenizer
                following["target_vocab"] = other and other.vocab
            if corpus.tokenizer is not None:
                following["vocab"] = corpus.tokenizer.vocab
            following |= corpus.shape
            model = made(recipe.fill("model", settings, model_config, **following))
        except ValueError as e:
            raise Mistake(f"model: {e}") from None
        if not begun:
            task_class.primed(model, data_config)
    task_section = recipe.fill("task", sections["task"], task_config)
    model = task_class.headed(model, task_section)
    if parent and isinstance(parent.task, task_class):
        keep_head(parent.model, parent.task.config, model, task_section)
    if config.lora:
        lora.add(model, config.lora, config.lora_alpha)
    if config.freeze:
        optim.freeze(model, config.freeze)
    model.to(device).train()
    task = task_class(task_section, corpus.tokenizer, model.config.context, corpus.target_tokenizer)
    resolved = {
        "model": {"kind": kind} | {f: v for f, v in vars(model.config).items() if f not in following},
        "task": sections["task"],
        "data": vars(data_config)
        | {"files": [os.path.abspath(p) if os.path.exists(p) else p for p in data]}
        | {"valid": [os.path.abspath(p) if os.path.exists(p) else p for p in valid]}
        | ({"from": os.path.abspath(base)} if base else {}),
        "train": vars(config),
    }
    if distributed.RANK == 0 and not going_on:
        run.begin(folder, model, task, resolved)
    distributed.most(0)  # the others go on when the folder is there
    trainer = Trainer(folder, task, model, corpus, config, device)
    if going_on:
        trainer.restore()
        if distributed.RANK == 0:  # what may differ holds from now on
            checkpoint.write_text(folder / run.RECIPE, recipe.to_toml(resolved))
    return trainer
