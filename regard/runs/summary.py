"""Summarize a run from the files of its folder, without loading the model. Needs no torch, so it is quick."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regard.errors import UserError
from regard.files.header import read_header
from regard.files.locks import is_locked
from regard.files.untrusted import read_json
from regard.runs import recipe
from regard.runs.layout import CHECKPOINTS, CONFIG, LOG, RECIPE, STEP, Row, parse_rows, published, read_lines

State = Literal["training", "stopped", "finished", "broken"]
METRICS = ("spans", "f1", "words_accuracy", "accuracy")  # that choose the best, if a log does not say
DEEPEST = 4  # how deep folders are searched


@dataclass(kw_only=True)
class RunSummary:
    """A run: its model, its data, its progress and its best score."""

    folder: Path
    state: State = "broken"
    problem: str | None = None  # why it is broken
    sections: recipe.Sections = field(default_factory=dict)  # of its recipe
    files: list[str] = field(default_factory=list)  # training data
    valid: list[str] = field(default_factory=list)
    base: str | None = None  # the model that it was fine-tuned from
    teachers: list[str] = field(default_factory=list)  # its teachers
    parameters: int | None = None
    step: int = 0
    seconds: float = 0.0
    metric: str = "loss"  # the metric that chooses the best evaluation
    best: Row | None = None  # the best evaluation
    worse: int = 0  # evaluations after it
    changed: float = 0.0  # when the log was last written, in seconds since 1970

    @property
    def task(self) -> str:
        return str(self.sections.get("task", {}).get("name", "?"))

    @property
    def kind(self) -> str:
        return str(self.sections.get("model", {}).get("kind", "?"))

    @property
    def figure(self) -> float | None:
        """The best value of the metric that chooses the best evaluation."""
        value = (self.best or {}).get(f"valid_{self.metric}")
        return value if isinstance(value, int | float) and math.isfinite(value) else None

    def to_json(self) -> dict[str, Any]:
        scores = {name.removeprefix("valid_"): value for name, value in (self.best or {}).items()}
        scores.pop("best", None)
        return {
            "run": str(self.folder),
            "state": self.state,
            "problem": self.problem,
            "task": self.task,
            "kind": self.kind,
            "data": self.files,
            "from": self.base,
            "parameters": self.parameters,
            "step": self.step,
            "seconds": round(self.seconds, 1),
            "metric": self.metric,
            "best": scores,
            "changed": round(self.changed),
        }


def is_run(folder: Path) -> bool:
    return (folder / RECIPE).is_file()


def find_runs(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Yield the runs in a folder and in the folders below it; runs inside runs are not searched."""
    if is_run(folder):
        yield folder
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return
    for entry in entries if depth else ():
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from find_runs(Path(entry.path), depth - 1)


def list_runs(folders: Iterable[str]) -> list[RunSummary]:
    """Return all runs in these folders, the most recently changed first."""
    runs: dict[Path, RunSummary] = {}
    for name in folders:
        if not (folder := Path(name)).is_dir():
            raise UserError(f"{name}: no such folder; give one that has runs in it")
        runs |= {path: read_run(path) for path in find_runs(folder)}
    return sorted(runs.values(), key=lambda run: -run.changed)


def read_run(folder: Path) -> RunSummary:
    """Summarize a run. If a file can't be read, the run is broken, and the reason names the file."""
    run = RunSummary(folder=folder)
    training = is_locked(folder)
    try:
        run.sections = recipe.read_file(folder / RECIPE)
        run.files, run.valid, run.base, run.teachers = recipe.take_sources(run.sections, folder / RECIPE)
        read_progress(run)
        read_json(folder / CONFIG)
        if (weights := published(folder)).exists():
            run.parameters = read_header(weights).weights
        elif not training and not any(checkpoint_steps(folder)):
            raise UserError(
                f"{folder}: no {weights.name} and no checkpoint; it ended before the first was saved"
            )
    except (UserError, OSError) as e:
        run.problem = str(e)
    if training:
        run.state = "training"
    elif run.problem is None:
        run.state = "finished" if is_finished(run) else "stopped"
    return run


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, oldest first."""
    names = os.listdir(folder / CHECKPOINTS) if (folder / CHECKPOINTS).is_dir() else []
    return sorted(int(match[1]) for name in names if (match := STEP.fullmatch(name)))


def read_progress(run: RunSummary) -> None:
    """Read the progress of a run and its best evaluation from its log, parsing only the lines needed."""
    lines = read_lines(run.folder / LOG)
    run.changed = (run.folder / (LOG if lines else RECIPE)).stat().st_mtime
    for line in reversed(lines):
        if b'"elapsed"' in line and (rows := parse_rows([line])):
            run.step, run.seconds = rows[0]["step"], float(rows[0]["elapsed"])
            break
    evaluations = parse_rows(line for line in lines if b'"valid_loss"' in line)
    run.metric, run.best = best_evaluation(evaluations)
    if run.best:
        run.worse = sum(row["step"] > run.best["step"] for row in evaluations)


def best_evaluation(rows: list[Row]) -> tuple[str, Row | None]:
    """Return the best of the evaluations, and the metric that chose it."""
    if marked := [row for row in rows if "best" in row]:
        return str(marked[-1]["best"]), marked[-1]
    rows = [row for row in rows if isinstance(row.get("valid_loss"), int | float)]
    if not rows:
        return "loss", None
    metric = next((name for name in METRICS if all(f"valid_{name}" in row for row in rows)), "loss")
    if metric == "loss":
        return metric, min(rows, key=lambda row: row["valid_loss"])
    return metric, max(rows, key=lambda row: (row[f"valid_{metric}"], -row["valid_loss"]))


def is_finished(run: RunSummary) -> bool:
    """Return whether a run has used up its steps, its minutes or its patience."""
    section = run.sections.get("train", {})
    steps, minutes, patience = (section.get(name) for name in ("steps", "minutes", "patience"))
    return bool(
        (steps and run.step >= steps)
        or (minutes and run.seconds >= 60 * minutes)
        or (patience and run.worse >= patience)
    )
