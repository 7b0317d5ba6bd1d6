"""What fewer bits cost: size of the file, peak memory and scores of every family in each precision.

    python -m bench.precisions [--only NAME ...] [--steps 100] [--folder DIR]
    python -m bench.precisions RUN=DATA [RUN=DATA ...]

Without runs, trains a small model of each family on the built-in data first, in DIR, where those that are
there are used again. Each figure comes from a process of its own, which loads the folder that `regard export`
writes in this precision. The memory is that of loading it and of one answer, above a process that has
imported everything; it needs Linux. Prints a table in Markdown, and ends with one JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import regard
from regard.runs.export import export
from regard.runs.layout import WEIGHTS
from regard.runs.score import evaluate
from regard.tasks.request import DataRequest

PRECISIONS = ("float32", "bfloat16", "int8", "int4")
BUILT_IN = Path(regard.__file__).parent / "builtin"
FIGURES = ("perplexity", "bleu", "accuracy")  # those that a score has, or its loss
SMALL = {"model.dim": 64, "train.device": "cpu", "train.precision": "fp32", "train.lr": 3e-3}
HEADS = {"model.depth": 2, "model.heads": 2}
CELLS = {"model.kind": "lstm", "model.depth": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("write", HEADS),
    "lstm": ("write", CELLS),
    "transformer": ("translate", HEADS),
    "seq2seq": ("translate", CELLS | {"model.attention": "additive"}),
    "bert": ("fill", HEADS),
    "bert, classes": ("classify", HEADS),
    "t5": ("restore", HEADS),
    "vit": ("see", HEADS),
    "captioner": ("caption", {"model.heads": 2}),
    "captioner, transformer": (
        "caption",
        {"model.heads": 2, "model.encoder": "vit", "model.decoder": "transformer"},
    ),
}


def train(name: str, folder: Path, steps: int) -> Path:
    """The run of a family, trained on the built-in data."""
    recipe, settings = FAMILIES[name]
    run = folder / name.replace(", ", "-")
    if not (run / WEIGHTS).exists():
        regard.train(recipe, out=run, steps=steps, set=SMALL | settings)
    return run


def measure(run: Path, data: str, dtype: str) -> dict[str, float]:
    """The figures of a run in one precision, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        if dtype == "float32":
            folder = run
        else:
            export(regard.load(run, "cpu"), folder, dtype=dtype)
        size = (folder / WEIGHTS).stat().st_size / 2**20
        words = [sys.executable, "-m", "bench.precisions", "--measure", str(folder), data]
        result = subprocess.run(words, check=True, capture_output=True, text=True)
    return {"file": size, **json.loads(result.stdout.splitlines()[-1])}


def figures(folder: str, data: str) -> dict[str, float]:
    """The memory of loading and answering, and the scores, of this process."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = kilobytes("VmRSS")
    model = regard.load(folder, "cpu")
    task = model.task
    example: Any = task.example_input()
    model.ask([example])
    peak = (kilobytes("VmHWM") - before) / 2**10
    built_in = task.builtin[1] or task.builtin[0]
    if data or built_in:
        scores = model.score(data or str(BUILT_IN / built_in[0]))
    else:  # images that are drawn
        request = DataRequest([], [], task.data_config(), task.config, task.context, model.tokenizers)
        scores = evaluate(model, type(task).read(request).valid)
    names = [name for name in FIGURES if name in scores] or ["loss"]
    return {"memory": peak} | {name: scores[name] for name in names}


def kilobytes(name: str) -> int:
    """A line of what Linux says about this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """A line for each family and figure."""
    lines = [f"| | | {' | '.join(PRECISIONS)} |", "|" + "---|" * (2 + len(PRECISIONS))]
    for name, rows in results.items():
        for n, figure in enumerate(rows[PRECISIONS[0]]):
            unit = ", MiB" if figure in ("file", "memory") else ""
            digits = 1 if unit else 3
            cells = [f"{rows[dtype][figure]:.{digits}f}" for dtype in PRECISIONS]
            lines.append(f"| {'' if n else name} | {figure}{unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN=DATA", help="a run, and held-out data")
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the runs are (default: a temporary folder)")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "DATA"), help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.measure:
        print(json.dumps(figures(*o.measure)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = o.folder or Path(scratch)
        given_runs = [run.partition("=") for run in o.runs]
        runs = {Path(run).name: (Path(run), data) for run, _, data in given_runs}
        results: dict[str, dict[str, dict[str, float]]] = {}
        for name in list(runs) or o.only:
            run, data = runs.get(name) or (train(name, folder, o.steps), "")
            results[name] = {dtype: measure(run, data, dtype) for dtype in PRECISIONS}
            print(table({name: results[name]}), file=sys.stderr, flush=True)
    print(table(results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
