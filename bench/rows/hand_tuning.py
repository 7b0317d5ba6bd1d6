"""The plan next to tuning by hand: for each set of bench.kinds, the best of ten settings that were fixed.

Each training has the same seed, and the same time of the processor, so that other programs don't matter. What
a setting leaves open, the plan chooses, so that the ten profit from it, too. A figure is the best evaluation
of a run on the set's test file; by hand, it is the best of ten such runs, which is a little too good: the
luckiest of ten. So the chosen setting and the plan are trained again with other seeds, whose mean is fair.
"""

import contextlib
import io
import json
import math
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.kinds import RECIPES, write_set

BY_HAND: list[dict[str, Any]] = [
    {"model.dim": dim, "model.depth": depth, "model.heads": heads, "model.dropout": dropout}
    | {"train.optimizer": optimizer, "train.lr": lr, "train.batch": batch}
    for dim, depth, heads, dropout, optimizer, lr, batch in (
        (128, 2, 4, 0.1, "adamw", 1e-3, 32),
        (128, 2, 4, 0.1, "adamw", 3e-3, 32),
        (128, 2, 4, 0.1, "adamw", 3e-4, 32),
        (128, 2, 4, 0.3, "adamw", 1e-3, 32),
        (64, 2, 2, 0.1, "adamw", 2e-3, 32),
        (64, 2, 2, 0.0, "adamw", 3e-3, 16),
        (256, 3, 4, 0.1, "adamw", 5e-4, 32),
        (128, 2, 4, 0.1, "muon", 4e-3, 32),
        (64, 3, 2, 0.1, "muon", 8e-3, 16),
        (128, 4, 4, 0.1, "muon", 2e-3, 64),
    )
]


def compare(
    folder: Path, kinds: list[str], seconds: float, seed: int, again: int = 0, out: Path | None = None
) -> None:
    """Print a table, and one line of JSON; write one for each set to `out`."""
    import torch

    from regard.training import trainer
    from regard.training.reporter import Reporter

    torch.set_num_threads(1)
    Reporter.show_sample = lambda *arguments: None  # type: ignore[method-assign]
    trainer.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    rows = []
    print(
        "| set | figure | plan | best by hand | which | plan / hand | again: plan | by hand | plan / hand |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in kinds:
        if not (folder / name).exists():
            write_set(folder / name, name, megabytes=2)
        row = compare_kind(folder / name, name, seconds, seed, again)
        rows.append(row)
        if out is not None:
            with open(out, "a") as file:
                file.write(json.dumps(row | {"seconds": seconds, "seed": seed}) + "\n")
        figures = [f"{row[key]:.4f}" for key in ("plan", "best")]
        figures += [str(row["which"]), f"{row['plan'] / max(1e-9, row['best']):.3f}"]
        if again:
            figures += [f"{row[key]:.4f}" for key in ("plan_again", "best_again")]
            figures.append(f"{row['plan_again'] / max(1e-9, row['best_again']):.3f}")
        print("| " + " | ".join([name, row["figure"], *figures]) + " |", flush=True)
    within = sum(row["plan"] >= 0.97 * row["best"] for row in rows)
    fair = sum(row["plan_again"] >= 0.97 * row["best_again"] for row in rows) if again else None
    summary = {"within_3_percent": within, "within_3_percent_again": fair, "of": len(rows)}
    print(json.dumps({"seconds": seconds, "sets": rows, **summary}))


def compare_kind(folder: Path, name: str, seconds: float, seed: int, again: int) -> dict[str, Any]:
    """The figures of the plan and of each setting by hand; and the means of the plan and of the best setting
    over this many other seeds."""
    train_file, test_file = (next(folder.glob(f"{part}.*"), None) for part in ("train", "test"))

    def run(settings: dict[str, Any], seed: int) -> tuple[str, float]:
        data, valid = str(train_file), str(test_file or train_file)
        return train_once(name, data, valid, seconds, settings | {"train.seed": seed})

    (figure, plan), *by_hand = (run(settings, seed) for settings in ({}, *BY_HAND))
    values = [value for _, value in by_hand]
    best = max(values)
    row = {"set": name, "figure": figure, "plan": plan, "best": best, "which": 1 + values.index(best)}
    row["by_hand"] = values
    if again:
        seeds = range(seed + 1, seed + 1 + again)
        for key, settings in (("plan", {}), ("best", BY_HAND[values.index(best)])):
            row[f"{key}_again"] = sum(run(settings, other)[1] for other in seeds) / again
    return row


def train_once(
    name: str, data: str, valid: str, seconds: float, settings: dict[str, Any]
) -> tuple[str, float]:
    """The name and the value of the best evaluation of a run; larger is better."""
    from regard.training.build import train

    folder = Path(tempfile.mkdtemp())
    try:
        more = settings | {"train.device": "cpu", "train.compile": "off"}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            train(RECIPES[name], data, valid=valid, out=folder / "run", minutes=seconds / 60, set=more)
        rows = [json.loads(line) for line in (folder / "run/log.jsonl").read_text().splitlines()]
    finally:
        shutil.rmtree(folder)
    evaluations = [row for row in rows if "valid_loss" in row]
    if RECIPES[name] in ("translate", "write"):
        return "exp(-loss)", max(math.exp(-row["valid_loss"]) for row in evaluations)
    figure = {"unbalanced": "matthews", "price": "spearman"}.get(name, "accuracy")
    return figure, max(row[f"valid_{figure}"] for row in evaluations)
