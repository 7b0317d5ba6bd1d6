"""Cross-validation of small data sets: find the best number of steps, and score every row by a model that was
not trained on it. Then train on all rows for this number of steps."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from regard.data.reading import ReadConfig
from regard.errors import UserError
from regard.files import atomic
from regard.files.regular import list_matching
from regard.files.untrusted import read_json
from regard.runs.layout import FOLDS, LOG, RECIPE, read_log
from regard.runs.recipe import Sections
from regard.training import distributed
from regard.training.config import TrainConfig
from regard.training.job import Job, resume_job

EVALUATIONS = 10  # evaluations of each fold, at least: the best number of steps is one of these


def use_folds(job: Job, config: TrainConfig, run_job: Callable[[Job], object]) -> TrainConfig:
    """Find the best number of steps, and return the settings to train on all rows for as many."""
    assert config.steps is not None, "checked by TrainConfig"
    job.folds = cross_validate(job, config, run_job)
    job.sections["data"]["holdout"] = 0.0
    steps = job.folds["steps"]
    warmup = config.warmup if job.own_warmup else round(config.warmup * steps / config.steps)
    return replace(config, steps=steps, warmup=warmup, minutes=minutes_each(config))


def cross_validate(job: Job, config: TrainConfig, run_job: Callable[[Job], object]) -> dict[str, Any]:
    """Train on all but one part of the data, for each part. Return `folds`, `steps`, and for each metric at
    that step its mean over the folds and their standard deviation.

    Every fold is a separate run in a folder beside the run's; only its evaluations are kept. If interrupted
    and started again, it continues with the unfinished fold.
    """
    if job.valid:
        raise UserError(f"train.folds={config.folds}: data to evaluate on are given; leave one of them out")
    folder, evaluations = folds_folder(job), []
    about = [
        [path, os.path.getsize(path), os.stat(path).st_mtime] for path in job.data if os.path.isfile(path)
    ]
    for fold in range(config.folds):
        out, file, sections = folder / str(fold + 1), folder / f"{fold + 1}.json", fold_sections(job, config)
        same = {"settings": json.loads(json.dumps(sections)), "data": about}
        done = file.is_file()
        distributed.barrier()  # all processes have seen that
        if not done:
            run_job(fold_job(job, out, sections, fold))
            if distributed.RANK == 0:
                rows = [row for row in read_log(out / LOG) if "valid_loss" in row and "averaged" not in row]
                atomic.write_text(file, json.dumps(same | {"rows": rows}))
                atomic.remove(out)
            distributed.barrier()
        result = read_json(file)
        if any(result[key] != value for key, value in same.items()):
            raise UserError(
                f"{file}: this fold had other settings or data; give the same, or remove {folder}"
            )
        if not result["rows"]:
            raise UserError(f"train.folds={config.folds}: too few rows to divide; use fewer folds, or 0")
        evaluations.append(result["rows"])
    return choose_steps(
        evaluations, evaluations[0][0]["best"]
    )  # the first is the best so far, by this metric


def folds_folder(job: Job) -> Path:
    return job.folder.with_name(f"{job.folder.name}.folds")


def fold_sections(job: Job, config: TrainConfig) -> Sections:
    """The settings that all folds share; each fold takes its share of the time."""
    assert config.steps is not None, "checked by TrainConfig"
    often = min(config.evaluate, max(1, config.steps // EVALUATIONS))
    own = {"folds": 0, "evaluate": often, "minutes": minutes_each(config), "patience": None, "average": 1}
    train = {name: value for name, value in (vars(config) | own).items() if value is not None}
    data = {"version": ReadConfig().version} | job.sections["data"] | {"holdout": 1 / config.folds}
    return job.sections | {"train": train, "data": data}


def fold_job(job: Job, out: Path, sections: Sections, fold: int) -> Job:
    """The job of a fold; a fold that was begun is resumed."""
    sections = {name: dict(section) for name, section in sections.items()}
    sections["data"]["fold"] = fold
    new = Job(out, sections, list(job.data), [], job.base, (out / RECIPE).is_file(), own_warmup=True)
    if new.resumes:
        flat = {
            f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()
        }
        resume_job(new, flat)
    return new


def minutes_each(config: TrainConfig) -> float | None:
    """The time of a fold, and of the run on all rows."""
    return config.minutes and config.minutes / (config.folds + 1)


def choose_steps(folds: list[list[dict[str, Any]]], by: str) -> dict[str, Any]:
    """The step with the best mean of the metric over the folds; among equals, the lowest loss."""
    at = [{int(row["step"]): row for row in rows} for rows in folds]
    steps = sorted(set.intersection(*(set(rows) for rows in at)))

    def rank(step: int) -> tuple[float, float]:
        loss = -fmean(rows[step]["valid_loss"] for rows in at)
        return (loss if by == "loss" else fmean(rows[step][f"valid_{by}"] for rows in at)), loss

    best = max(steps, key=rank)
    names = [key for key in at[0][best] if key.startswith("valid_") and all(key in rows[best] for rows in at)]
    columns = {key: [rows[best][key] for rows in at] for key in names}
    scores = {key: [fmean(column), stdev(column)] for key, column in columns.items()}
    return {"folds": len(folds), "steps": best, "by": by, "scores": scores}


def describe_folds(result: dict[str, Any]) -> str:
    name = f"valid_{result['by']}"
    mean, spread = result["scores"][name]
    return (
        f"{result['folds']} folds: {name} {mean:.4f} ± {spread:.4f}, best after {result['steps']} steps; "
        "now all rows are trained on for as long"
    )


def score_table(folder: Path) -> str:
    """The lines of the model card with the scores of cross-validation; none if there was none."""
    if atomic.is_missing(file := folder / FOLDS):
        return ""
    result = read_json(file)
    try:
        return format_scores(result)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{file}: not the scores of cross-validation; restore it, or move it away") from None


def format_scores(result: dict[str, Any]) -> str:
    rows = "".join(f"| {key} | {mean:.4f} ± {sd:.4f} |\n" for key, (mean, sd) in result["scores"].items())
    head = f"| {result['folds']} folds, after {result['steps']} steps: mean ± standard deviation | |"
    return f"{head}\n|---|---|\n{rows}"


def remove_folds(job: Job) -> None:
    """Remove the files of `cross_validate`, once the run has its result."""
    folder = folds_folder(job)
    if distributed.RANK or not folder.is_dir():
        return
    for file in list_matching(folder, "*.json"):
        if file.stem.isdecimal():
            atomic.remove(file.with_suffix(""))  # where it was killed between the two
            atomic.remove(file)
    atomic.remove_empty([folder])
