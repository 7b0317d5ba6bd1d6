"""What --dry-run says of time and memory, and what then happens, for many recipes and sizes."""

import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Case:
    """A training by the plan."""

    recipe: str
    data: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


TEXT, WIKI = ("tinyshakespeare/input.txt.gz",), ("wikitext2/valid.txt.gz",)
PAIRS = ("multi30k/train.en.gz", "multi30k/train.de.gz")


def of_width(recipe: str, data: tuple[str, ...], *widths: int) -> list[Case]:
    return [Case(recipe, data, {"model.dim": dim}) for dim in widths]


CASES = [
    *of_width("write", TEXT, 64, 128, 256, 512),
    *of_width("fill", WIKI, 64, 128, 256),
    *of_width("classify", ("sst2/train.tsv.gz",), 64, 128),
    *of_width("translate", PAIRS, 128, 256),
    *of_width("chat", ("dailydialog/train.tsv.gz",), 128),
    *of_width("see", (), 64, 128),
    *of_width("tag", (), 128),
    *of_width("restore", WIKI, 128),
]


def measure(
    case: Case, data: Path, minutes: float, threads: int, by_processor: bool, device: str, results: Any
) -> None:
    """Plan and train, in a process of its own; put the figures into `results`. Time may be that of the
    processor, where others use it, too."""
    import torch

    from regard.training import trainer
    from regard.training.build import plan, train
    from regard.training.reporter import Reporter

    torch.set_num_threads(threads)
    if by_processor:
        trainer.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    Reporter.show_sample = lambda *arguments: None  # type: ignore[method-assign]
    files = [str(data / name) for name in case.data]
    settings = case.settings | {"train.device": device}
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            planned = plan(case.recipe, *files, minutes=minutes, set=settings)
            run = Path(folder) / "run"
            model = train(case.recipe, *files, out=run, minutes=minutes, set=settings)
        rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = max(row.get("elapsed", 0.0) for row in rows)
    steps = max(row["step"] for row in rows if "loss" in row)
    used = torch.cuda.max_memory_reserved() if device == "cuda" else 0
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    results.put(
        {
            "recipe": case.recipe,
            "settings": case.settings,
            "weights": sum(p.numel() for p in model.model.parameters()),
            "steps": steps,
            "seconds": last,
            "expected_seconds": planned.seconds() * steps / planned.steps,
            "bytes": used or 1024 * int(status["VmHWM"].split()[0]),
            "expected_bytes": planned.memory(),
            "batch": planned.batch,
            "cost": vars(planned.cost),
            "peak": planned.request.machine.peak if planned.request.machine else None,
            "pace": planned.request.machine.pace if planned.request.machine else None,
            "stepping": [[r["step"], round(r["elapsed"], 2)] for r in rows if "loss" in r],
            "evaluations": sum("valid_loss" in r for r in rows),
        }
    )


def compare(
    data: Path,
    minutes: float,
    threads: int,
    by_processor: bool,
    only: list[str],
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Print a table, and one line of JSON; write one for each training to `out`."""
    context = multiprocessing.get_context("spawn")
    rows = []
    print("| recipe | settings | weights | steps | seconds | expected | GB | expected |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for case in CASES:
        if only and case.recipe not in only:
            continue
        results = context.Queue()
        worker = context.Process(
            target=measure, args=(case, data, minutes, threads, by_processor, device, results)
        )
        worker.start()
        while worker.is_alive() and results.empty():
            worker.join(timeout=0.2)
        if results.empty():
            print(f"| {case.recipe} | {case.settings} | failed |")
            continue
        row = results.get()
        worker.join()
        rows.append(row)
        if out is not None:
            with open(out, "a") as file:
                file.write(json.dumps(row) + "\n")
        settings = ", ".join(f"{k} {v}" for k, v in case.settings.items())
        seconds = f"{row['seconds']:.1f} | {row['expected_seconds']:.1f}"
        memory = f"{row['bytes'] / 1e9:.3f} | {row['expected_bytes'] / 1e9:.3f}"
        print(
            f"| {case.recipe} | {settings} | {row['weights']:,} | {row['steps']:,} | {seconds} | {memory} |",
            flush=True,
        )
    times = [row["expected_seconds"] / row["seconds"] for row in rows]
    bytes_ = [row["expected_bytes"] / row["bytes"] for row in rows]
    print(
        json.dumps(
            {
                "device": device,
                "cases": rows,
                "time_within_20_percent": sum(abs(x - 1) <= 0.2 for x in times),
                "memory_within_10_percent": sum(abs(x - 1) <= 0.1 for x in bytes_),
                "of": len(rows),
            }
        )
    )
