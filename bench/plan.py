"""Train many small models, to find the rules by which a run's settings are chosen (docs/plan.md).

    python -m bench.plan run SWEEP ... --data DIR [--workers 14] [--seconds 250] [--out rows.jsonl]
    python -m bench.plan page [rows.jsonl ...]
    python -m bench.plan estimates --data DIR [--minutes 0.25] [--threads 2] [--processor] [--out FILE]
    python -m bench.plan kinds DIR [--seconds 20] [--seed 1] [--again 2] [--only KIND ...] [--out FILE]

`run` trains the models of a sweep (bench/rows/sweeps.py), several at once: each worker starts Python once and
takes one training after another. Each row of the output is a training: its settings, and every evaluation.
What is not finished in time is written with what it has. `page` adds rows to docs/plan.json, and makes the
tables and plots of docs/plan.md from them. `estimates` compares the time and the memory that --dry-run prints
with those of trainings (bench/rows/estimates.py). `kinds` compares the plan with the best of ten settings by
hand on the sets of bench.kinds, which it makes in DIR (bench/rows/hand_tuning.py).
"""

import argparse
import contextlib
import gc
import gzip
import itertools
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

from bench.kinds import RECIPES
from bench.rows import estimates, hand_tuning
from bench.rows.plan_page import add_rows, write_page
from bench.rows.sweeps import SWEEPS, Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run")
    run.add_argument("sweeps", nargs="+", choices=list(SWEEPS))
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--workers", type=int, default=14)
    run.add_argument("--seconds", type=float, default=250)
    run.add_argument("--folder", type=Path, default=Path("/dev/shm/sweeps"))
    run.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    page = commands.add_parser("page")
    page.add_argument("rows", nargs="*", type=Path)
    estimate = commands.add_parser("estimates")
    estimate.add_argument("--data", type=Path, required=True)
    estimate.add_argument("--minutes", type=float, default=0.25)
    estimate.add_argument("--threads", type=int, default=2)
    estimate.add_argument(
        "--processor", action="store_true", help="time of the processor: others use it, too"
    )
    estimate.add_argument("--only", nargs="+", default=[])
    estimate.add_argument("--out", type=Path, help="a file that gets a line of JSON for each training")
    estimate.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    kinds = commands.add_parser("kinds")
    kinds.add_argument("folder", type=Path)
    kinds.add_argument("--seconds", type=float, default=20)
    kinds.add_argument("--seed", type=int, default=1)
    kinds.add_argument(
        "--again", type=int, default=2, help="other seeds, with which the best is trained again"
    )
    kinds.add_argument("--only", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    kinds.add_argument("--out", type=Path, help="a file that gets a line of JSON for each set")
    options = parser.parse_args()
    if options.command == "run":
        run_jobs(options)
    elif options.command == "estimates":
        how = (options.minutes, options.threads, options.processor)
        estimates.compare(options.data, *how, options.only, options.device, options.out)
    elif options.command == "kinds":
        how_long = (options.seconds, options.seed, options.again)
        hand_tuning.compare(options.folder, options.only, *how_long, options.out)
    else:
        add_rows(options.rows)
        write_page()


def run_jobs(options: argparse.Namespace) -> None:
    jobs = [job for name in options.sweeps for job in sorted(SWEEPS[name], key=lambda job: -job.cost)]
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    for i, job in enumerate(jobs):
        queue.put((i, job))
    began = time.monotonic()
    arguments = (queue, done, options.folder, options.data, options.seconds - 10)
    workers = [context.Process(target=work, args=arguments) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    finished: dict[int, dict[str, Any]] = {}
    while len(finished) < len(jobs) and any(worker.is_alive() for worker in workers):
        if time.monotonic() - began > options.seconds:
            break
        with contextlib.suppress(Exception):
            i, result = done.get(timeout=1)
            finished[i] = result
    for worker in workers:
        worker.kill()
    with open(options.out, "a") as file:
        for i, job in enumerate(jobs):
            result = finished.get(i) or {"unfinished": True} | read_run(options.folder / str(i))
            if result.get("evaluations") or result.get("error"):
                file.write(json.dumps(job.describe() | result) + "\n")
    errors = [result["error"] for result in finished.values() if "error" in result]
    print(
        f"{len(finished)} of {len(jobs)} trainings in {time.monotonic() - began:.0f} s, {len(errors)} failed"
    )
    for error in sorted(set(errors))[:5]:
        print("  ", error[:300])
    shutil.rmtree(options.folder, ignore_errors=True)


def work(queue: Any, done: Any, folder: Path, data: Path, seconds: float) -> None:
    """Train one job after another."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import torch

    import regard
    from regard.training.reporter import Reporter

    Reporter.show_sample = lambda *arguments: None  # type: ignore[method-assign]
    torch.set_num_threads(1)
    while time.monotonic() - began < seconds:
        try:
            i, job = queue.get(timeout=1)
        except Exception:
            return
        try:
            done.put((i, train_job(regard, job, folder / str(i), data)))
        except BaseException as error:
            done.put((i, {"error": f"{job.sweep} {job.settings}: {type(error).__name__}: {error}"}))
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train_job(regard: Any, job: Job, folder: Path, data: Path) -> dict[str, Any]:
    began = time.monotonic()
    settings = {
        "train.evaluate": max(1, job.steps // job.evaluations),
        "train.save": 10**9,
        "train.log": max(1, job.steps // 10),
    }
    files, valid, score = (
        [find_data(data, name, folder) for name in names] for names in (job.data, job.valid, job.score)
    )
    model = regard.train(
        job.recipe,
        *files,
        valid=valid,
        out=folder,
        steps=job.steps,
        set=settings | job.settings,
    )
    result = read_run(folder) | {"seconds": round(time.monotonic() - began, 1)}
    result["parameters"] = sum(p.numel() for p in model.model.parameters())
    if score:
        result["score"] = model.score(*score)
    shutil.rmtree(folder)
    return result


def find_data(data: Path, name: str, folder: Path) -> str:
    """The path of a file; of "file.gz#300", that of a file with its first 300 lines."""
    name, _, count = name.partition("#")
    if not count:
        return str(data / name)
    part = folder.with_name(f"{folder.name}-{Path(name).stem}")
    with gzip.open(data / name, "rt") as file:
        part.write_text("".join(itertools.islice(file, int(count))))
    return str(part)


def read_run(folder: Path) -> dict[str, Any]:
    """The evaluations of a run, and the losses of its steps."""
    path = folder / "log.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    names = ("loss", "accuracy", "matthews", "spearman", "bits_per_byte", "perplexity")
    keep = ("step", *(f"valid_{name}" for name in names))
    return {
        "evaluations": [
            {k: round(row[k], 5) for k in keep if k in row} for row in rows if "valid_loss" in row
        ],
        "losses": [[row["step"], round(row["loss"], 4)] for row in rows if "loss" in row],
        "elapsed": next((round(row["elapsed"], 2) for row in reversed(rows) if "elapsed" in row), None),
    }


if __name__ == "__main__":
    main()
