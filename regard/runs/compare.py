"""Compare runs: settings that differ, scores and curves. Needs no torch."""

from collections.abc import Sequence
from typing import Any

from regard.draw.terminal import duration
from regard.runs.layout import LOG, read_log
from regard.runs.summary import RunSummary

Rows = dict[str, list[Any]]  # a value of each run, by name
Points = tuple[list[int], list[float]]  # steps and losses


def differing_settings(runs: Sequence[RunSummary]) -> Rows:
    """Return the settings that differ between runs, by `section.key`; None if a run lacks one."""
    settings = [
        {f"{name}.{key}": value for name, section in run.sections.items() for key, value in section.items()}
        | {"data.files": run.files, "data.valid": run.valid, "data.from": run.base}
        | {"data.teacher": run.teachers}
        for run in runs
    ]
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = {key: [values.get(key) for values in settings] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def compare_figures(runs: Sequence[RunSummary]) -> Rows:
    """Return the size, the time and the best evaluation of each run."""
    rows: Rows = {
        "state": [run.state for run in runs],
        "weights": [run.parameters for run in runs],
        "steps": [run.step for run in runs],
        "time": [duration(run.seconds) for run in runs],
        "best at step": [(run.best or {}).get("step") for run in runs],
    }
    names = dict.fromkeys(name for run in runs for name in run.best or () if name.startswith("valid_"))
    return rows | {name: [(run.best or {}).get(name) for run in runs] for name in names}


def loss_curves(runs: Sequence[RunSummary]) -> tuple[str, dict[str, Points]]:
    """Return the validation loss of each run by its name, or else the training loss; and which."""
    logs = {name: read_log(run.folder / LOG) for name, run in zip(run_names(runs), runs, strict=True)}
    key = "valid_loss" if all(any("valid_loss" in row for row in rows) for rows in logs.values()) else "loss"
    curves: dict[str, Points] = {}
    for name, rows in logs.items():
        points = sorted({row["step"]: row[key] for row in rows if row.get(key) is not None}.items())
        curves[name] = [step for step, _ in points], [value for _, value in points]
    return ("validation loss" if key == "valid_loss" else "loss"), curves


def run_names(runs: Sequence[RunSummary]) -> list[str]:
    """Return the folders' names, or their paths if two names are equal."""
    names = [run.folder.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]
