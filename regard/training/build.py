"""Train a model: from a recipe and data to a run folder."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard import errors
from regard.convert.huggingface.hub import HUB
from regard.data import Corpus
from regard.data.archives import path_exists
from regard.data.memory import name_data, name_several
from regard.data.reading import EXAMPLE, ReadConfig, describe_sources, read_together
from regard.data.remote import original_name
from regard.data.splitting import use_splits
from regard.errors import UserError
from regard.files import atomic
from regard.models import MODELS
from regard.runs import recipe
from regard.runs.adapter import write_base
from regard.runs.folder import load_tokenizers, publish
from regard.runs.layout import FOLDS, RECIPE, TEMPLATE
from regard.runs.load import check_config, load, load_task
from regard.runs.model import Model
from regard.tasks import TASKS, DataRequest, Task
from regard.training import distributed
from regard.training.checkpointer import find_checkpoint
from regard.training.config import limit_warmup
from regard.training.folds import describe_folds, remove_folds, use_folds
from regard.training.gather import gather_pairs
from regard.training.initial import ModelFactory, first_weights, load_base, load_parent
from regard.training.job import Job, check_folder, exclusive_folder, get_preset, make_job
from regard.training.live import LivePage, opened_page
from regard.training.machine import choose_device, explain_limits
from regard.training.origins import write_origins
from regard.training.plan.follow import follow_plan, plan_job
from regard.training.plan.plan import Plan
from regard.training.plan.speed import find_machine
from regard.training.settings import from_data
from regard.training.teacher import check_teachable, learn_answers, learn_probabilities
from regard.training.trainer import TrainConfig, Trainer


def train(
    name: str = "write",
    *data: Any,
    valid: Any = (),
    out: str | Path | None = None,
    base: str | Path | None = None,
    teacher: str | Path | Sequence[str | Path] = (),
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    set: Mapping[str, Any] | None = None,
    resume: bool = False,
    look: bool | str = False,
) -> Model:
    """Train with the recipe `name`, a built-in one or a .toml file. `base` is a model to start from, and
    `teacher` one or several to learn from (distillation). Data are paths, or rows: texts, tuples,
    dictionaries, data frames, iterators (see `regard.data.memory`). With `look`, a page shows the model while
    it learns, and until this process ends; if `look` is a text, the page shows the model on it."""
    data, valid = tuple(map(name_data, data)), name_several(valid)
    job = make_job(name, data, valid, out, base, teacher, steps, epochs, minutes, set, resume)
    if not job.resumes:
        check_folder(job.folder)
    with opened_page(look, job.folder) as live:
        device = run_job(job, live)
    return load(job.folder, device)


def run_job(job: Job, live: LivePage | None = None) -> torch.device:
    """Train a job, with a page if it was asked for; return the device that was chosen."""
    config, reading = check_sections(job)
    device = choose_device(config.device)
    with distributed.process_group(device), explain_limits(job.folder), exclusive_folder(job):
        with read_together(reading):
            trainer = assemble(job, config, device)
        trainer.live = live
        remove_folds(job)
        trainer.run()
        distributed.barrier()  # every process has read the folder
    return device


def plan(
    name: str = "write",
    *data: str,
    valid: str | Sequence[str] = (),
    base: str | Path | None = None,
    teacher: str | Path | Sequence[str | Path] = (),
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    set: Mapping[str, Any] | None = None,
    machine: str | None = None,
) -> Plan:
    """Return the plan of `train`, for this machine or one with a known name. Nothing is written."""
    job = make_job(name, data, valid, None, base, teacher, steps, epochs, minutes, set, resume=False)
    config, reading = check_sections(job)
    where = find_machine(machine, choose_device(config.device))
    with read_together(reading):
        task_class, _ = find_task(job.sections["task"].get("name"), config)
        if job.teachers:
            check_teachable(task_class, job.sections["task"]["name"])
        parent = load_base(job.base) if job.base else None
        kind = choose_kind(job, parent, task_class)
        check_settings(job, kind, parent)
        use_data(job, task_class)
        return plan_job(job, kind, parent, where, where.bf16)


def check_sections(job: Job) -> tuple[TrainConfig, ReadConfig]:
    """Check the settings of training, as far as the plan has not filled them, and of reading."""
    train = job.sections["train"]
    budget = {} if {"steps", "epochs", "minutes"} & train.keys() else {"steps": 1}
    config = recipe.fill("train", train | budget, TrainConfig)
    recipe.restore_types(train, config)
    if config.epochs and job.sections["data"].get("stream"):
        raise UserError("--epochs: the length of data.stream is not known; give --steps or --minutes instead")
    names = [field.name for field in fields(ReadConfig)]
    settings = {key: value for key, value in job.sections["data"].items() if key in names}
    return config, recipe.fill("data", settings, ReadConfig)  # for the base, too


# The model and its data


def assemble(job: Job, config: TrainConfig, device: torch.device) -> Trainer:
    """Make and check all parts of a run before its folder is created."""
    sections, going = job.sections, job.resumes
    task_class, task_config = find_task(sections["task"].get("name"), config)
    if job.teachers:
        check_teachable(task_class, sections["task"]["name"])
    started = going and find_checkpoint(job.folder)[0] is not None
    parent = load_parent(job, config, started)
    inherit_settings(job, parent, task_class)
    kind = choose_kind(job, parent, task_class)
    check_settings(job, kind, parent)
    use_data(job, task_class)
    if not going:
        config = plan_training(job, kind, parent, device)
    if config.adapter and (parent is None or not config.lora):
        raise UserError(
            "--adapter keeps what changes in a model; give that with --from MODEL, and train.lora > 0"
        )
    settings = model_settings(job, kind)
    if sections["data"].get("stream"):  # a resumed run keeps this number, with any number of processes
        sections["data"].setdefault("parts", distributed.WORLD)
    data_config = recipe.fill("data", sections["data"], task_class.data_config)
    base_task = parent.task if parent else restore_task(job, kind, settings, task_class) if going else None
    corpus = read_data(job, kind, settings, parent, base_task, data_config)
    if not going:  # a resumed run keeps its settings, without those that later versions added
        sections["task"] = corpus.task_settings | sections["task"]
    section = recipe.fill("task", sections["task"], task_config)
    factory = ModelFactory(job, kind, settings, corpus, data_config, task_class, section, config)
    model = factory.make(parent, started).to(device).train()
    task = task_class(section, corpus.tokenizer, model.config.context, corpus.target_tokenizer)  # type: ignore[union-attr, arg-type]
    if base_task is not None:
        task.continue_from(base_task)
    task.gather = gather_pairs
    if config.epochs:
        config = replace(config, steps=count_steps(task, corpus, config))
        config = config if going else fit_warmup(job, config, corpus.notes)
    return start(job, kind, model, task, corpus, data_config, config, device, factory.make_first)


def inherit_settings(job: Job, parent: Model | None, task_class: type[Task]) -> None:
    """Take settings that the recipe leaves open from the base, if it was trained for the same task."""
    section = job.sections["task"]
    if parent and parent.task.config.name == section["name"]:
        inherited = {name: getattr(parent.task.config, name) for name in task_class.inherits}
        job.sections["task"] = {k: v for k, v in inherited.items() if v is not None} | section


def plan_training(job: Job, kind: str, parent: Model | None, device: torch.device) -> TrainConfig:
    """Plan a new run, and return its [train] settings."""
    follow_plan(job, kind, parent, device)
    config = recipe.fill("train", job.sections["train"], TrainConfig)
    config = fit_warmup(job, config, job.notes)
    if config.folds and job.sections["data"].get("stream"):
        raise UserError(
            "train.folds divides all data, of which data.stream reads few at a time; leave one out"
        )
    return use_folds(job, config, run_job) if config.folds else config


def fit_warmup(job: Job, config: TrainConfig, notes: list[str]) -> TrainConfig:
    """Return the settings with a warm-up that fits the steps.

    A warm-up that the user set stays, since the run may be continued; if it is too long, a note says so.
    """
    if not job.own_warmup:
        return limit_warmup(config)
    if config.steps and config.steps < config.warmup:
        what = f"train.warmup={config.warmup} is more than the {config.steps} steps of this run"
        notes.append(f"{what}, so that its learning rate does not reach train.lr; set it lower")
    return config


def count_steps(task: Task, corpus: Corpus, config: TrainConfig) -> int:
    """The number of steps of train.epochs passes over the data."""
    samples = task.samples(corpus.train, config.seed, config.batch, config.tokens)
    return math.ceil((config.epochs or 0) * samples.steps_per_epoch)


def find_task(name: Any, config: TrainConfig) -> tuple[type[Task], type[Any]]:
    if name not in TASKS:
        raise UserError(f"task.name={name} is not a task; {errors.suggest(str(name), TASKS)}")
    task_class, task_config = TASKS[name]
    if config.micro and not task_class.divisible_batches:
        raise UserError(
            f"train.micro={config.micro}: {name} compares all of a batch, which can't be divided; "
            "make train.batch smaller"
        )
    return task_class, task_config


def choose_kind(job: Job, parent: Model | None, task_class: type[Task]) -> str:
    """The kind of the model, from the recipe or the base."""
    kind = str(job.sections["model"].get("kind") or (parent and parent.kind))
    if parent and kind != parent.kind:
        raise UserError(f"model.kind={kind}: the model in {job.base} is of kind {parent.kind}")
    suited = [
        name for name, (model, *_) in MODELS.items() if getattr(model, "like", name) in task_class.kinds
    ]
    if kind not in suited:
        name = job.sections["task"]["name"]
        raise UserError(f"model.kind={kind} cannot {name}; {errors.suggest(kind, suited)}")
    return kind


def model_settings(job: Job, kind: str) -> dict[str, Any]:
    """The settings of the model, including its preset's."""
    section = job.sections["model"]
    own = {k: v for k, v in section.items() if k not in ("kind", "preset")}
    return get_preset(MODELS[kind][2], section.get("preset")) | own


def check_settings(job: Job, kind: str, parent: Model | None) -> tuple[int, Any]:
    """Check all settings before the data are read. Return the context, and the settings of the task."""
    task_class, task_config = TASKS[job.sections["task"]["name"]]
    unknown = dict.fromkeys(from_data(MODELS[kind][1]), 1)
    model = recipe.fill("model", model_settings(job, kind), MODELS[kind][1], **unknown)
    config = recipe.fill("task", job.sections["task"], task_config)
    task_class.check_model(config, kind)
    data = recipe.fill("data", job.sections["data"], task_class.data_config)
    for name, settings in (("model", model), ("task", config), ("data", data)):
        recipe.restore_types(job.sections[name], settings)
    return parent.task.context if parent else model.context, config


def use_data(job: Job, task_class: type[Task]) -> None:
    """Take the built-in data if none are given, and a folder's own splits."""
    if not job.data:
        here = Path(__file__).parents[1] / "builtin"
        job.data, held = ([str(here / name) for name in names] for names in task_class.builtin)
        job.valid, job.built_in = job.valid or held, True
    with read_together() as reading:
        job.data, job.valid = use_splits(
            job.data, job.valid, task_class.has_class_folders, task_class.has_media
        )
    trained_on = {os.path.realpath(path) for path in job.data}
    repeated = [path for path in job.valid if os.path.realpath(path) in trained_on]
    job.notes = [
        *reading.notes,
        *(f"{path} is also trained on, so its scores mean little" for path in repeated),
    ]


def read_data(
    job: Job,
    kind: str,
    settings: dict[str, Any],
    parent: Model | None,
    base_task: Task | None,
    data_config: Any,
) -> Corpus:
    """Read the data, and derive settings from them."""
    task_class, _ = TASKS[job.sections["task"]["name"]]
    context, config = check_settings(job, kind, parent)
    if parent:
        tokenizers = parent.tokenizers
    else:
        teachers = job.teachers[:1] if task_class.learns_from == "probabilities" else []
        known = [job.folder] if job.resumes else [Path(path) for path in teachers]
        has_tokenizers = known and "vocab" in from_data(MODELS[kind][1])
        tokenizers = load_tokenizers(known[0]) if has_tokenizers else []
    with read_together(max_bytes=data_config.max_bytes, version=data_config.version) as reading:
        corpus = task_class.read(
            DataRequest(job.data, job.valid, data_config, config, context, tokenizers, base_task)
        )
    notes, corpus.notes = [*job.notes, *reading.notes, *corpus.notes], []
    corpus.files = [] if data_config.stream else list(reading.files)  # a stream may be too long for a SHA-256
    corpus.summary = describe_sources(reading.sources.values(), describe_split(job, corpus), notes=notes)
    return corpus


def describe_split(job: Job, corpus: Corpus) -> str:
    """Describe the data to train and to evaluate on."""
    train = f"{corpus.train.describe()} to train on"
    if corpus.valid is None:
        return f"{train}, nothing to evaluate on"
    origin = ", ".join(job.valid[:2]) if job.valid else "held out of the same data"
    return f"{train}, {corpus.valid.describe()} to evaluate on ({origin})"


def restore_task(job: Job, kind: str, settings: dict[str, Any], task_class: type[Task]) -> Task | None:
    """The task of a resumed run, from its folder, if it has a chat template."""
    if not (job.folder / TEMPLATE).exists():
        return None
    tokenizer, *_ = load_tokenizers(job.folder)
    sizes = recipe.fill("model", settings, MODELS[kind][1], vocab=tokenizer.vocab)
    section = recipe.fill("task", job.sections["task"], TASKS[job.sections["task"]["name"]][1])
    return load_task(job.folder, task_class, section, sizes)


def start(
    job: Job,
    kind: str,
    model: nn.Module,
    task: Task,
    corpus: Corpus,
    data_config: Any,
    config: TrainConfig,
    device: torch.device,
    make_first_model: Callable[[], nn.Module],
) -> Trainer:
    """Write the resolved recipe to the folder; then train, or continue from the last checkpoint."""
    derived = from_data(MODELS[kind][1])
    resolved = {
        "model": {"kind": kind} | {f: v for f, v in vars(model.config).items() if f not in derived},
        "task": job.sections["task"],
        "data": vars(data_config)
        | {"files": absolute(job.data), "valid": absolute(job.valid)}
        | ({"from": os.path.abspath(job.base)} if job.base else {})
        | ({"teacher": absolute(job.teachers)} if job.teachers else {}),
        "train": vars(config),
    }
    if job.summary:
        print("\n".join(job.summary), file=sys.stderr)
    if job.draft is not None:
        if job.folds:
            (job.draft.path / FOLDS).write_text(json.dumps(job.folds, indent=2) + "\n", encoding="utf-8")
        if config.adapter:
            base = str(job.base) if str(job.base).startswith(HUB) else os.path.abspath(str(job.base))
            write_base(job.draft.path, model, base, config.lora, config.lora_alpha)
        origins = {"from": [] if config.adapter or not job.base else [str(job.base)]}
        origins |= {"teacher": job.teachers, "weights": first_weights(data_config)}
        write_origins(job.draft.path, origins)
        understood = [line for line in corpus.summary if not line.startswith(EXAMPLE)]
        publish(job.draft, model, task, resolved, [*job.comments, *understood])
    elif job.resumes:
        check_config(job.folder, model, task, kind)
    distributed.barrier()  # the others wait until the folder is there
    if job.teachers and task.learns_from == "answers":
        config = learn_answers(job.folder, job.teachers, task, corpus, device, config)
    trainer = Trainer(job.folder, task, model, corpus, config, device, make_first_model)
    if job.folds:
        trainer.reporter.notice(describe_folds(job.folds))
    if job.teachers and task.learns_from == "probabilities":
        learn_probabilities(trainer.objective, job.folder, job.teachers, task, device)
    if job.resumes:
        trainer.restore()
        text = recipe.to_toml(resolved, recipe.read_comments(job.folder / RECIPE))
        trainer.changes.append(lambda: atomic.write_text(job.folder / RECIPE, text))  # may differ
    return trainer


def absolute(paths: Sequence[str]) -> list[str]:
    return [original_name(os.path.abspath(p)) if path_exists(p) else p for p in paths]
