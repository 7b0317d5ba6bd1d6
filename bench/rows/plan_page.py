"""The tables and plots of docs/plan.md, from the rows of docs/plan.json."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.rows.document import fill

from regard.draw.plots import Curves
from regard.draw.svg import svg

DOCS = Path(__file__).parents[2] / "docs"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """The best evaluation of trainings, by two of their settings."""

    name: str
    sweep: str  # or several
    down: str  # the setting of a row
    across: str  # the setting of a column
    title: str
    figure: str = "valid_loss"
    where: tuple[tuple[str, Any], ...] = ()  # settings that select trainings
    plotted: bool = False  # learning rates across, on a scale of doublings

    def cells(self, rows: Iterable[Row]) -> dict[tuple[Any, Any], float]:
        names = self.sweep.split()
        chosen = [r for r in rows if r["sweep"] in names and all(get(r, k) == v for k, v in self.where)]
        return {(get(r, self.down), get(r, self.across)): best(r, self.figure) for r in chosen}


TEXT_LENGTH = 1_003_854  # characters of Shakespeare that are trained on
CLASSIFIER = {
    "model.dim": 128,
    "model.depth": 2,
    "model.dropout": 0.3,
    "task.mean": True,
    "train.optimizer": "adamw",
    "train.lr": 1e-3,
    "train.weight_decay": 0.01,
    "steps": 400,
}
TABLES = (
    Table("width", "width-muon", "model.dim", "train.lr", "Muon: width and learning rate", plotted=True),
    Table("adamw", "adamw", "model.dim", "train.lr", "AdamW: width and learning rate", plotted=True),
    Table(
        *("batch", "batch width-muon", "tokens", "train.lr", "Batch and learning rate"),
        where=(("model.dim", 128),),
        plotted=True,
    ),
    Table("depth", "depth", "model.depth", "train.lr", "Depth and learning rate"),
    Table("schedule", "schedule", "steps", "train.schedule", "Schedules"),
    Table("warmup", "warmup", "steps", "warm-up", "Warm-up, share of the run"),
    Table("decay", "decay", "steps", "train.weight_decay", "Weight decay"),
    Table("fill", "fill", "norm", "train.lr", "Masked words: norms", plotted=True),
    Table("wiki", "wiki", "steps", "data.vocab", "Vocabulary", "valid_bits_per_byte", (("model.dim", 256),)),
    Table("pairs", "pairs", "pairs", "dropout", "Few pairs", "score"),
)


def get(row: Row, key: str) -> Any:
    """A setting of a training, or what follows from several."""
    s = row["settings"]
    if key == "tokens":
        return s["train.batch"] * s["model.context"]
    if key == "steps":
        return row["steps"]
    if key == "warm-up":
        return round(s["train.warmup"] / row["steps"], 2)
    if key == "norm":
        return f"dim {s['model.dim']}, norms {'before' if s['model.pre'] else 'after'}"
    if key == "dropout":
        return s["model.dropout"]
    if key == "pairs":
        return f"{row['files'].partition('#')[2]} pairs, dim {s['model.dim']}"
    return s.get(key)


def best(row: Row, figure: str) -> float:
    if figure == "score":
        return float(row.get("bleu", math.nan))
    values = [e[figure] for e in row["evaluations"] if figure in e]
    return (max if figure == "valid_accuracy" else min)(values, default=math.nan)


def order(values: Iterable[Any]) -> list[Any]:
    return list(
        dict.fromkeys(sorted(values, key=lambda v: (isinstance(v, str), v if not isinstance(v, str) else 0)))
    )


def label(value: Any) -> str:
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def markdown(table: Table, rows: list[Row]) -> str:
    """The table; the best of each line in bold."""
    cells = table.cells(rows)
    across, down = order(x for _, x in cells), order(y for y, _ in cells)
    lines = [f"| {table.down.partition('.')[2] or table.down} | " + " | ".join(map(label, across)) + " |"]
    lines.append("|---" + "|--:" * len(across) + "|")
    digits = 1 if table.figure == "score" else 3
    for y in down:
        values = [cells.get((y, x), math.nan) for x in across]
        top = (max if table.figure in ("score", "valid_accuracy") else min)(
            (v for v in values if v == v), default=0
        )
        words = ["" if v != v else f"**{v:.{digits}f}**" if v == top else f"{v:.{digits}f}" for v in values]
        lines.append(f"| {label(y)} | " + " | ".join(words) + " |")
    return "\n".join(lines)


def memorising(rows: Iterable[Row]) -> str:
    """Best and last evaluation of runs of many passes, which were stopped by the clock."""
    lines = [
        "| dim | dropout | weight decay | best | at pass | last | at pass |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    chosen = [row for row in rows if row["sweep"] == "regularise"]
    for row in sorted(
        chosen, key=lambda r: (r["settings"]["model.dim"], get(r, "dropout"), get(r, "train.weight_decay"))
    ):
        s, losses = row["settings"], [(e["valid_loss"], e["step"]) for e in row["evaluations"]]
        low, last = min(losses), losses[-1]
        each = s["train.batch"] * s["model.context"] / TEXT_LENGTH
        lines.append(
            f"| {s['model.dim']} | {s['model.dropout']:g} | {s['train.weight_decay']:g} | {low[0]:.3f} | "
            f"{low[1] * each:.0f} | {last[0]:.3f} | {last[1] * each:.0f} |"
        )
    return "\n".join(lines)


def one_by_one(rows: Iterable[Row], sweep: str, usual: Mapping[str, Any], figure: str) -> str:
    """A line for each training: what is not as usual, and the best evaluation."""
    lines = ["| changed | best |", "|---|--:|"]
    for row in rows:
        if row["sweep"] == sweep:
            other = {k: v for k, v in row["settings"].items() if k in usual and usual[k] != v}
            other |= {
                k: v
                for k, v in row["settings"].items()
                if k.partition(".")[2] in ("pre", "smoothing", "vocab")
            }
            steps = f"{row['steps']:,} steps" if row["steps"] != usual["steps"] else ""
            words = [f"{k.partition('.')[2]} {label(v)}" for k, v in other.items()] + (
                [steps] if steps else []
            )
            lines.append(f"| {', '.join(words) or 'nothing'} | {100 * best(row, figure):.1f} |")
    return "\n".join(lines)


def plot(table: Table, rows: list[Row]) -> str:
    cells, curves = table.cells(rows), {}
    for y in order(y for y, _ in cells):
        xs = [x for down, x in cells if down == y]
        xs.sort()
        short = label(y).replace("dim ", "").replace(", norms", "")
        curves[short] = np.log2(np.array(xs) / 1e-3), np.array([cells[y, x] for x in xs])
    return svg(Curves(table.title, "learning rate, doublings of 0.001", curves).scene())


def compact(row: Row) -> dict[str, Any]:
    """What docs/plan.json keeps of a training."""
    keep = {
        k: row[k] for k in ("sweep", "recipe", "steps", "settings", "evaluations", "parameters") if k in row
    }
    keep["files"] = row["data"]
    if "score" in row:
        keep["bleu"] = round(row["score"]["bleu"], 2)
    if row.get("unfinished"):
        keep["unfinished"] = True
    return keep


def add_rows(paths: Iterable[Path]) -> None:
    """Add the trainings in these files to docs/plan.json; newer ones replace those with the same settings."""
    file = DOCS / "plan.json"
    old = json.loads(file.read_text()) if file.is_file() else []
    rows = [compact(json.loads(line)) for path in paths for line in path.read_text().splitlines()]
    merged: dict[str, Row] = {}
    for row in [*old, *(row for row in rows if row.get("evaluations"))]:
        key = json.dumps([row["sweep"], row["files"], row["steps"], row["settings"]], sort_keys=True)
        if key not in merged or not row.get("unfinished"):
            merged[key] = row
    lines = ",\n".join(json.dumps(row) for row in merged.values())
    file.write_text(f"[\n{lines}\n]\n")


def write_page() -> None:
    rows = json.loads((DOCS / "plan.json").read_text())
    page = DOCS / "plan.md"
    text = page.read_text(encoding="utf-8")
    text = fill(text, "memorising", memorising(rows))
    rows = [row for row in rows if not row.get("unfinished")]
    text = fill(text, "classify", one_by_one(rows, "classify", CLASSIFIER, "valid_accuracy"))
    for table in TABLES:
        if f"<!-- {table.name} -->" not in text or not table.cells(rows):
            continue
        text = fill(text, table.name, markdown(table, rows))
        if table.plotted:
            (DOCS / "pictures" / f"plan-{table.name}.svg").write_text(plot(table, rows), encoding="utf-8")
    page.write_text(text, encoding="utf-8")
