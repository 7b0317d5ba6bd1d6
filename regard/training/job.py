"""A training job: the recipe, the data, and the run folder."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import errors
from regard.core.recurrent import CELLS
from regard.data.remote import fetch
from regard.errors import UserError
from regard.files import atomic
from regard.files.atomic import Draft
from regard.files.locks import check_unlocked, lock_folder
from regard.files.regular import check_name
from regard.models import MODELS, RecurrentLM
from regard.runs import recipe
from regard.runs.folder import discard_unsaved
from regard.runs.info import info
from regard.runs.layout import RECIPE
from regard.tasks import TASKS, Task
from regard.training import distributed
from regard.training.settings import find_sections

# Settings that may differ when a run is resumed: they don't change what a step computes, up to rounding and
# the masks of dropout, which depend on micro, device and the number of processes as on the seed.
BUDGET = {"steps", "epochs", "minutes", "patience"}
FREE = BUDGET | {"micro", "evaluate", "save", "keep", "guard", "log", "tracker", "tensorboard"}
FREE |= {"device", "compile", "parallel", "shard", "recompute"}
FREE_DATA = {"data.max_bytes", "data.memory_gb", "data.shortlist"}
LENGTHS = {"train.steps", "train.epochs"}  # of which one defines how long to train
WRITERS = ("write", "converse")  # tasks of models that continue texts


@dataclass
class Job:
    """A recipe with its data, its base and its folder."""

    folder: Path
    sections: recipe.Sections  # the recipe with all changes
    data: list[str]  # files; none: the task's built-in ones
    valid: list[str]
    base: str | Path | None  # a model to start from
    resumes: bool  # the run is already in its folder
    draft: Draft | None = None  # of the folder of a new run, in the first process
    built_in: bool = False  # the data are the task's built-in ones
    own_kind: bool = True  # the model is of the recipe's kind
    own_warmup: bool = False  # the warm-up was chosen for the number of steps
    notes: list[str] = field(default_factory=list)  # about the data
    comments: list[str] = field(default_factory=list)  # for the recipe: the reasons for its settings
    summary: list[str] = field(default_factory=list)  # of the plan, shown before training begins
    folds: dict[str, Any] | None = None  # the result of `folds.use_folds`
    teachers: list[str] = field(default_factory=list)  # models to learn from


def make_job(
    name: str,
    data: Sequence[str],
    valid: str | Sequence[str],
    out: str | Path | None,
    base: str | Path | None,
    teacher: str | Path | Sequence[str | Path],
    steps: int | None,
    epochs: float | None,
    minutes: float | None,
    set: Mapping[str, Any] | None,
    resume: bool,
) -> Job:
    """Make a job from a recipe and the options of the user."""
    changes = dict(set or {})
    lengths = {"train.steps": steps, "train.epochs": epochs, "train.minutes": minutes}
    changes |= {key: value for key, value in lengths.items() if value is not None}
    original = suit_base(recipe.read(name), base)
    sections = change_recipe(original, changes)
    files, held_out, parent, teachers = recipe.take_sources(sections, name)
    if files and data:  # a run's own recipe, for other data
        forget_data(sections["task"])
    usual = name if name in recipe.names() else sections["task"].get("name", "run")
    folder = Path(out) if out is not None else free_folder(Path("runs") / usual)
    base = base if base is not None else parent
    teachers = [str(t) for t in ([teacher] if isinstance(teacher, str | Path) else teacher)] or teachers
    valid = [valid] if isinstance(valid, str) else list(valid)
    data, valid = list(data) or files, valid or ([] if data else held_out)
    for path in (folder, base or "", *teachers, *data, *valid):
        check_name(os.path.abspath(path))  # which is written to the recipe
    data, valid = fetch(list(data)), fetch(valid)
    job = Job(
        folder, sections, list(data), valid, base, resume and (folder / RECIPE).is_file(), teachers=teachers
    )
    if job.resumes:
        resume_job(job, changes)
    elif base is not None:  # its sizes replace the recipe's, and must agree with the user's settings
        job.sections["model"] = {
            k.removeprefix("model."): v for k, v in changes.items() if k.startswith("model.")
        }
    job.own_kind = job.sections["model"].get("kind") == original["model"].get("kind")
    job.own_warmup = "train.warmup" in changes or (
        "warmup" in job.sections["train"] and not LENGTHS & changes.keys()
    )
    return job


# Settings


def suit_base(original: recipe.Sections, base: str | Path | None) -> recipe.Sections:
    """Return the recipe; or, if its kind of model differs from the base's, the recipe for language models: a
    chat can be trained from any language model."""
    task_class, _ = TASKS.get(str(original["task"].get("name")), (Task, None))
    if base is None or task_class.for_writers is None or info(base).get("task") not in WRITERS:
        return original
    return {"model": {}, "task": {"name": task_class.for_writers}, "data": {}, "train": {}}


def change_recipe(original: recipe.Sections, changes: dict[str, Any]) -> recipe.Sections:
    """Apply changes to the recipe, and remove settings that contradict them."""
    find_sections(original, changes)
    name_cell(original, changes)
    sections = recipe.change(original, changes)
    drop_length(sections["train"], changes)
    kind = changes.get("model.kind", sections["model"].get("kind"))
    if kind != original["model"].get("kind"):  # the recipe's settings are for another model
        sections["model"] = {
            k: v for k, v in sections["model"].items() if f"model.{k}" in changes or k == "preset"
        }
    if "train.minutes" in changes and not LENGTHS & changes.keys():
        for name in ("steps", "epochs"):  # the recipe's own budget
            sections["train"].pop(name, None)
    return sections


def drop_length(section: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Remove the steps or the epochs of a recipe, if the user sets the other."""
    chosen = LENGTHS & changes.keys()
    if len(chosen) > 1:
        raise UserError("--epochs and --steps both say how long to train; leave one out")
    for key in LENGTHS - chosen if chosen else ():
        section.pop(key.removeprefix("train."), None)


def name_cell(original: recipe.Sections, changes: dict[str, Any]) -> None:
    """For a task without an encoder-decoder, model.kind=lstm means a language model of such cells."""
    name = changes.get("task.name", original["task"].get("name"))
    kinds = TASKS[str(name)][0].kinds if name in TASKS else CELLS
    for section, key in ((changes, "model."), (original["model"], "")):
        if (kind := section.get(f"{key}kind")) in CELLS and kind not in kinds and RecurrentLM.like in kinds:
            section |= {f"{key}kind": "recurrent", f"{key}cell": kind}


def resume_job(job: Job, changes: Mapping[str, Any]) -> None:
    """Take over the run's own recipe, data and base; only settings in FREE and FREE_DATA may differ."""
    old = recipe.read_file(job.folder / RECIPE)
    if (kind := old["model"].get("kind")) not in MODELS:
        hint = errors.suggest(str(kind), MODELS)
        raise UserError(f"{job.folder / RECIPE}: model.kind={kind} is not a model; {hint}")
    preset = get_preset(MODELS[kind][2], changes.get("model.preset"))
    for key, now in ({f"model.{name}": value for name, value in preset.items()} | dict(changes)).items():
        section, _, name = key.partition(".")
        if section == "data" and name.startswith("columns."):
            was = (old["data"].get("columns") or {}).get(name.removeprefix("columns."))
            if was != now:
                raise UserError(f"{key}: {job.folder} was begun with {was}, not {now}; leave it out")
        elif (section == "train" and name in FREE) or key in FREE_DATA:
            old[section][name] = now
        elif name != "preset" and (was := old[section].get(name)) != now:
            raise UserError(
                f"{key}: {job.folder} was begun with {was}, not {now}; leave it out, or begin a new run"
            )
    drop_length(old["train"], changes)
    old["data"].setdefault("version", 1)  # of runs that are older than the other kinds
    files, held_out, job.base, job.teachers = recipe.take_sources(old, job.folder / RECIPE)
    job.sections, job.data, job.valid = old, job.data or fetch(files), job.valid or fetch(held_out)


def forget_data(section: dict[str, Any]) -> None:
    """Remove the task's settings that follow from its training data, such as the classes."""
    task_class, _ = TASKS.get(str(section.get("name")), (Task, None))
    for name in task_class.data_settings:
        section.pop(name, None)


def get_preset(presets: Mapping[str, dict[str, Any]], name: str | None) -> dict[str, Any]:
    if name is not None and name not in presets:
        raise UserError(f"model.preset={name} is not a preset; {errors.suggest(str(name), presets)}")
    return presets[name] if name else {}


# The folder


def free_folder(folder: Path) -> Path:
    """Return the folder, or its name with the first number that is free."""
    candidate, n = folder, 1
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate


def check_folder(folder: Path) -> None:
    """Raise UserError if a new run can't be written here."""
    if (folder / RECIPE).is_file():
        check_unlocked(folder, "--out")
        raise UserError(f"{folder} already holds a run; continue it with --resume, or choose another --out")
    atomic.check_empty(folder, "--out")


@contextlib.contextmanager
def exclusive_folder(job: Job) -> Iterator[None]:
    """Lock the run's folder while any process of this run is alive.

    A new run that fails before its first weights leaves nothing behind.
    """
    folder, existed = job.folder, job.folder.is_dir()
    distributed.barrier()  # all processes have seen that
    with contextlib.ExitStack() as stack:
        problem: Exception | None = None
        if distributed.RANK == 0:
            try:
                if job.resumes:
                    stack.enter_context(lock_folder(folder, "--out"))
                    if atomic.is_missing(folder / RECIPE):
                        raise UserError(f"{folder} was removed by another process just now; try again")
                else:
                    job.draft = stack.enter_context(atomic.new_folder(folder, "--out"))
            except (UserError, OSError) as e:
                problem = e
        refused = distributed.all_max(problem is not None)[0]
        if problem is not None:
            raise problem
        if refused:
            raise SystemExit(2)  # the first process reports why
        if distributed.RANK:
            home = atomic.draft_home(folder)
            if not existed:
                stack.callback(atomic.remove_empty, [folder, home])
            stack.enter_context(lock_folder(home, "--out", distributed.RANK, folder))
        distributed.barrier()
        try:
            yield
        except BaseException:
            if job.draft and job.draft.is_published:
                discard_unsaved(folder)
            raise
