"""`regard runs` and `regard info`: list runs and describe models. Neither imports torch."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from regard.draw.terminal import duration, hills, quantity, visible
from regard.errors import UserError
from regard.runs.compare import Points, compare_figures, differing_settings, loss_curves, run_names
from regard.runs.info import info as describe
from regard.runs.summary import RunSummary, is_run, list_runs, read_run

SORTS = {  # by the name of --sort
    "changed": lambda run: -run.changed,
    "name": lambda run: str(run.folder),
    "best": lambda run: (run.metric, run.figure is None, rank(run)),
    "size": lambda run: -(run.parameters or 0),
    "time": lambda run: -run.seconds,
}
CURVE_LINES = 4
BUILTIN = Path(__file__).parents[1] / "builtin"


def rank(run: RunSummary) -> float:
    """The key of a run for sorting; lower comes first."""
    figure = run.figure or 0.0
    return figure if run.metric == "loss" else -figure


def runs(options: argparse.Namespace) -> None:
    folders = options.dir or ["runs"]
    if len(folders) > 1 and all(is_run(Path(folder)) for folder in folders):
        compare([read_run(Path(folder)) for folder in folders], options)
        return
    if options.save:
        raise UserError("--save draws the curves of two runs; give the folders of both")
    listed = sorted(list_runs(folders), key=SORTS[options.sort])
    if options.json:
        for run in listed:
            print(json.dumps(run.to_json(), ensure_ascii=False))
        return
    if not listed:
        raise UserError(f"{', '.join(folders)}: no runs here; `regard train` writes them")
    head = ["run", "task", "data", "weights", "best", "step", "time", "state"]
    print_table([head, *(list_row(run) for run in listed)], right={3, 5, 6})
    for run in listed:
        if run.problem:
            print(visible(f"{run.folder}: {run.problem}"), file=sys.stderr)


def list_row(run: RunSummary) -> list[str]:
    files = [Path(file).name if Path(file).parent != BUILTIN else "built-in" for file in run.files]
    data = (files[0] if files else "") + (f" +{len(files) - 1}" if len(files) > 1 else "")
    best = "" if run.figure is None else f"{run.metric} {run.figure:.4g}"
    size = "" if run.parameters is None else quantity(run.parameters)
    task = run.task if run.base is None else f"{run.task} from {Path(run.base).name}"
    return [str(run.folder), task, data, size, best, f"{run.step:,}", duration(run.seconds), run.state]


def compare(compared: Sequence[RunSummary], options: argparse.Namespace) -> None:
    """Print what differs between runs, and draw their curves."""
    settings, figures = differing_settings(compared), compare_figures(compared)
    title, curves = loss_curves(compared)
    if options.save:
        save_curves(title, curves, options.save)
    if options.json:
        row = {"runs": [run.to_json() for run in compared], "settings": settings}
        print(json.dumps(row | {"curves": curves}, ensure_ascii=False))
        return
    names = run_names(compared)
    print_table([["settings that differ", *names], *(compare_row(key, v) for key, v in settings.items())])
    print()
    print_table([["figures", *names], *([key, *map(format_value, v)] for key, v in figures.items())])
    print_curves(title, curves)
    if options.save:
        print(options.save)


def compare_row(key: str, values: Sequence[Any]) -> list[str]:
    """The values of a setting, shortened unless they would look the same."""
    short = list(map(format_value, values))
    return [key, *(short if len(set(short)) > 1 else map(str, values))]


def save_curves(title: str, curves: dict[str, Points], path: str) -> None:
    import numpy as np

    from regard.draw.picture import check_suffix, draw
    from regard.draw.plots import Curves

    check_suffix(path)
    series = {name: (np.asarray(x), np.asarray(y, np.float64)) for name, (x, y) in curves.items() if len(x)}
    if not series:
        raise UserError(f"--save {path}: nothing is logged yet, so there are no curves")
    draw(Curves(title, "step", series)).save(path)


def print_curves(title: str, curves: dict[str, Points]) -> None:
    """Draw the curves one above the other, on the same axes, as the display of a training does."""
    values = [y for _, ys in curves.values() for y in ys]
    if not values:
        return
    low, high, last = min(values), max(values), max(x[-1] for x, _ in curves.values() if x)
    labels = [f"{high:.2f}", *[""] * (CURVE_LINES - 2), f"{low:.2f}"]
    margin = max(map(len, labels))
    width = shutil.get_terminal_size().columns - margin - 2
    can_draw = "utf" in (sys.stdout.encoding or "").lower()
    for name, (steps, losses) in curves.items():
        if not losses:
            continue
        print(f"\n{visible(name)}: {title}, to step {steps[-1]:,}")
        room = max(1, round(width * steps[-1] / last))
        ink = " ▁▂▃▄▅▆▇█" if can_draw else " .:-=+*#@"
        for label, line in zip(labels, hills(losses, room, CURVE_LINES, ink, (low, high)), strict=True):
            print(f"{label:>{margin}} {line}".rstrip())


def format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(os.path.basename(str(one)) for one in value) or "-"
    return str(value)


def print_table(rows: Sequence[Sequence[str]], right: Sequence[int] | set[int] = ()) -> None:
    """Print columns side by side; those in `right` are aligned to the right."""
    cells = [[visible(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(aligned).rstrip())


def info(options: argparse.Namespace) -> None:
    facts = describe(options.model)
    if options.json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        lines = value if name == "understood" else [format_fact(name, value)]
        for label, line in zip_longest([name.replace("_", " ")], lines, fillvalue=""):
            print(f"{label:18} {visible(line)}")


def format_fact(name: str, value: Any) -> str:
    if name == "bytes":
        return f"{quantity(value)}B" if value >= 1000 else f"{value} B"
    if name == "seconds":
        return duration(value)
    if name == "parameters":
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(one)}" for key, one in value.items())
    if name == "classes" and len(value) > 12:
        return f"{len(value)}: {', '.join(value[:12])}, ..."
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return format_value(value)
