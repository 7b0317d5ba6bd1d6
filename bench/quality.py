"""Train the rows of "The plan" in docs/results.md: one command each, no setting but --minutes and the seed.

    python -m bench.quality ROW[:SEED] ... --data DIR --out FOLDER [--cores 0-1] [--limit SECONDS]
    python -m bench.quality --list
    python -m bench.quality --table FILE.json ...

The rows are trained one after the other, on the given cores; a row that starts from another's model (`sst2`
from `fill`) finds it in FOLDER. After each, FOLDER/ROW-SEED.json has the commands, the plan, the steps, the
times, every evaluation and the scores. A row that fails or takes too long is written with its error, and the
next one begins. `--table` prints the lines of the document. DIR has a folder for each set, as README.md says
of them: multi30k, tinyshakespeare, wikitext2, dailydialog, sst2, reviews, flickr8k, fashion-mnist.
"""

import argparse
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard.errors import first_line

FALLING = ("loss", "perplexity", "bits_per_byte")  # figures that are better if they are smaller


@dataclass(frozen=True, kw_only=True)
class Row:
    """A training by the plan, the data that its model is scored on, and what is asked of it."""

    recipe: str
    data: tuple[str, ...]
    minutes: float
    about: str
    valid: tuple[str, ...] = ()
    base: str = ""  # the row whose model it starts from
    score: tuple[str, ...] = ()  # data and options of `regard score`
    figure: str = ""  # the score that counts
    asked: float | None = None
    cpu: bool = False

    def reached(self, value: float) -> bool:
        if self.asked is None:
            return True
        return value <= self.asked if self.figure in FALLING else value >= self.asked


TEXT, LAST = "tinyshakespeare/input.txt.gz", "tinyshakespeare/last.txt"
PAIRS = ("multi30k/train.en.gz", "multi30k/train.de.gz")
PAIRS_VALID = ("multi30k/val.en.gz", "multi30k/val.de.gz")
PAIRS_TEST = ("multi30k/test_2016_flickr.en.gz", "multi30k/test_2016_flickr.de.gz")
RUNNING = ("reviews/train.txt.xz", "wikitext2/train.txt.gz")
SST2, DEV = ("sst2/train.tsv.gz",), ("sst2/dev.tsv.gz",)
FASHION = ("fashion-mnist/train-images-idx3-ubyte.gz",)
FASHION_TEST = ("fashion-mnist/t10k-images-idx3-ubyte.gz",)
CHAT = ("dailydialog/train.tsv.gz",)
CHAT_VALID, CHAT_TEST = ("dailydialog/valid.tsv.gz",), ("dailydialog/test.tsv.gz",)
CAPTIONS, CAPTIONS_VALID = ("flickr8k/train.tsv.gz",), ("flickr8k/dev.tsv.gz",)
CAPTIONS_TEST = ("flickr8k/test.tsv.gz", "--num-beams", "5")


def write(minutes: float, asked: float, cpu: bool = False) -> Row:
    return Row(recipe="write", data=(TEXT,), minutes=minutes, about="Shakespeare, write", score=(LAST,),
               figure="loss", asked=asked, cpu=cpu)  # fmt: skip


def translate(minutes: float, asked: float | None, cpu: bool = False, pairs: int = 0) -> Row:
    data = tuple(f"{name}#{pairs}" for name in PAIRS) if pairs else PAIRS
    about = f"{pairs:,} pairs of Multi30k, translate" if pairs else "Multi30k en-de, translate, sacreBLEU"
    return Row(recipe="translate", data=data, minutes=minutes, about=about, valid=PAIRS_VALID,
               score=PAIRS_TEST, figure="bleu", asked=asked, cpu=cpu)  # fmt: skip


def fill(minutes: float, cpu: bool = False) -> Row:
    return Row(recipe="fill", data=RUNNING, minutes=minutes, about="reviews + WikiText-2, fill", cpu=cpu)


def classify(minutes: float, asked: float, base: str = "", cpu: bool = False) -> Row:
    about = "SST-2 after fill" if base else "SST-2 from scratch, classify"
    return Row(recipe="classify", data=SST2, minutes=minutes, about=about, base=base, score=DEV,
               figure="accuracy", asked=asked, cpu=cpu)  # fmt: skip


def see(minutes: float, asked: float, cpu: bool = False) -> Row:
    return Row(recipe="see", data=FASHION, minutes=minutes, about="Fashion-MNIST, see", score=FASHION_TEST,
               figure="accuracy", asked=asked, cpu=cpu)  # fmt: skip


def caption(minutes: float, asked: float, cpu: bool = False) -> Row:
    return Row(recipe="caption", data=CAPTIONS, minutes=minutes, about="Flickr8k, caption, BLEU-4",
               valid=CAPTIONS_VALID, score=CAPTIONS_TEST, figure="bleu", asked=asked, cpu=cpu)  # fmt: skip


def chat(minutes: float, asked: float | None, cpu: bool = False) -> Row:
    return Row(recipe="chat", data=CHAT, minutes=minutes, about="DailyDialog, chat", valid=CHAT_VALID,
               score=CHAT_TEST, figure="perplexity", asked=asked, cpu=cpu)  # fmt: skip


ROWS = {
    "write": write(1, 1.42),
    "wikitext": Row(
        recipe="write",
        data=("wikitext2/train.txt.gz",),
        minutes=10,
        about="WikiText-2, write, bits per byte (1.243: a perplexity of 80 for each word)",
        valid=("wikitext2/valid.txt.gz",),
        score=("wikitext2/test.txt.gz",),
        figure="bits_per_byte",
        asked=1.243,
    ),
    "translate": translate(5, 41.0),
    "translate-15": translate(15, 41.8),
    "fill": fill(5),
    "sst2": classify(1, 89, "fill"),
    "sst2-scratch": classify(1, 82),
    "see-3": see(3, 94.5),
    "see": see(10, 95.5),
    "caption": caption(4, 22),
    "chat": chat(5, 33),
    "cpu-write-3": write(3, 1.60, cpu=True),
    "cpu-write": write(10, 1.50, cpu=True),
    "cpu-translate": translate(15, 38.5, cpu=True),
    "cpu-translate-12": translate(12, 38.5, cpu=True),
    "cpu-translate-300": translate(1.3, None, cpu=True, pairs=300),
    "cpu-translate-3000": translate(1.3, None, cpu=True, pairs=3000),
    "cpu-translate-10000": translate(5, None, cpu=True, pairs=10_000),
    "cpu-fill": fill(15, cpu=True),
    "cpu-sst2": classify(5, 83, "cpu-fill", cpu=True),
    "cpu-fill-10": fill(10, cpu=True),
    "cpu-sst2-10": classify(5, 83, "cpu-fill-10", cpu=True),
    "cpu-sst2-scratch": classify(5, 80, cpu=True),
    "cpu-see": see(6, 90.5, cpu=True),
    "cpu-caption": caption(15, 14, cpu=True),
    "cpu-chat": chat(5, None, cpu=True),
}
SCORING = 400.0  # seconds that scoring may take
LATE = 150.0  # seconds that a training may take beyond its minutes: to start, read, compile and save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("quality"))
    parser.add_argument("--cores", help="such as 0-3,8; default: all")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds, after which nothing goes on")
    parser.add_argument("--hurry", type=float, default=1.0, help="multiply all minutes by this, to try it")
    parser.add_argument("--table", nargs="+", type=Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, row in ROWS.items():
            print(f"{name:20} {row.about}, {row.minutes:g} min {'on a CPU' if row.cpu else ''}")
    elif options.table:
        files = [json.loads(path.read_text()) for path in options.table]
        print(table([row for file in files for row in (file if isinstance(file, list) else [file])]))
    else:
        if options.cores:
            os.sched_setaffinity(0, read_cores(options.cores))
        ends = time.monotonic() + options.limit
        options.out.mkdir(parents=True, exist_ok=True)
        for name in options.rows:
            run_row(name, options.data, options.out, options.hurry, ends)


def read_cores(text: str) -> set[int]:
    """The numbers in 0-3,8."""
    parts = [part.partition("-") for part in text.split(",")]
    return {n for first, _, last in parts for n in range(int(first), int(last or first) + 1)}


def run_row(name: str, data: Path, out: Path, hurry: float, ends: float) -> None:
    """Train and score a row, and write what came of it, whatever that is."""
    title, _, number = name.partition(":")
    row, seed = ROWS[title], int(number or 1)
    stem = f"{title}-{seed}"
    result: dict[str, Any] = {"row": title, "seed": seed, "cores": sorted(os.sched_getaffinity(0))}
    file, run, minutes = out / f"{stem}.json", out / stem, row.minutes * hurry
    result |= {"minutes": minutes, "started": round(time.time())}
    try:
        command = ["train", row.recipe, *paths(row.data, data, out), "--minutes", f"{minutes:g}"]
        for path in paths(row.valid, data, out):
            command += ["--valid", path]
        command += ["--from", str(out / f"{row.base}-1")] if row.base else []
        command += ["--set", f"train.seed={seed}", "--out", str(run)]
        command += ["--device", "cpu"] if row.cpu else []
        result |= execute("train", command, out / f"{stem}.log", row.cpu, ends, 60 * minutes + LATE)
        result |= read_run(run, out / f"{stem}.err")
        file.write_text(json.dumps(result))
        if row.score:
            command = ["score", str(run), *paths(row.score, data, out), "--json"]
            log = out / f"{stem}-score.json"
            result |= execute("score", command, log, row.cpu, ends, SCORING)
            result["scores"] = json.loads(log.read_text().splitlines()[-1])
    except Exception as error:  # the next row begins
        result["error"] = first_line(error)[:500]
        result |= read_run(run, out / f"{stem}.err")
    file.write_text(json.dumps(result))
    figures = {k: v for k, v in result.get("scores", {}).items() if isinstance(v, float)}
    print(f"{stem}: {figures or result.get('error') or 'trained'}", flush=True)


def execute(
    name: str, arguments: list[str], log: Path, cpu: bool, ends: float, seconds: float
) -> dict[str, Any]:
    """Run a command of regard, and return its time; raise an error if it fails or takes too long."""
    environment = os.environ | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if cpu else {}
    began = time.monotonic()
    with open(log, "w") as out, open(log.with_suffix(".err"), "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "regard", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(max(1.0, min(seconds, ends - began)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(f"{name} took more than {time.monotonic() - began:.0f} s") from None
    if code:
        last = [*log.with_suffix(".err").read_text().splitlines(), *log.read_text().splitlines(), ""][:3]
        raise RuntimeError(f"{name} ended with {code}: {' | '.join(last)}")
    took = round(time.monotonic() - began, 1)
    return {f"{name}_command": " ".join(arguments), f"{name}_seconds": took}


def paths(names: tuple[str, ...], data: Path, out: Path) -> Iterator[str]:
    """Files of the sets; options stay as they are. Parts of files are written to `out`."""
    for name in names:
        if not re.search(r"[./]", name):
            yield name
        elif name == LAST:
            yield str(write_part(data / TEXT, out / "last.txt", lambda text: text[len(text) * 9 // 10 :]))
        elif "#" in name:
            name, _, count = name.partition("#")
            first = partial(first_lines, int(count))
            yield str(write_part(data / name, out / f"{count}-{Path(name).stem}", first))
        else:
            yield str(data / name)


def first_lines(count: int, text: str) -> str:
    return "".join(text.splitlines(True)[:count])


def write_part(source: Path, target: Path, part: Callable[[str], str]) -> Path:
    if not target.exists():
        aside = target.with_name(f"{target.name}.{os.getpid()}")
        aside.write_text(part(gzip.decompress(source.read_bytes()).decode()))
        aside.replace(target)
    return target


def read_run(run: Path, log: Path) -> dict[str, Any]:
    """The plan that was printed, and the steps, the time and the evaluations of a run."""
    printed = log.read_text().splitlines() if log.is_file() else []
    first = next((i for i, line in enumerate(printed) if line.startswith("plan:")), len(printed))
    plan = [line for line in printed[first : first + 7] if line.startswith(("plan:", "  "))]
    path = run / "log.jsonl"
    rows = (
        [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        if path.is_file()
        else []
    )
    evaluations = [
        {"step": row["step"]}
        | {k: round(v, 4) for k, v in row.items() if k.startswith("valid_") and isinstance(v, float)}
        for row in rows
        if "valid_loss" in row
    ]
    return {
        "plan": plan,
        "steps": max((row["step"] for row in rows), default=0),
        "elapsed": max((row.get("elapsed", 0.0) for row in rows), default=0.0),
        "evaluations": evaluations,
        "notices": [row["notice"] for row in rows if "notice" in row],
        "pace": [[r["step"], round(r["elapsed"], 1)] for r in rows if "loss" in r and "elapsed" in r][::10],
    }


def table(results: list[dict[str, Any]]) -> str:
    """A line for each row: what was asked, and what the seeds reached; those of a GPU first."""
    lines = ["| data | asked | reached | |", "|---|---|---|---|"]
    for name, row in sorted(ROWS.items(), key=lambda item: item[1].cpu):
        mine = sorted((r for r in results if r["row"] == name), key=lambda r: r["seed"])
        if not mine or not row.score:
            continue
        done = [r for r in mine if "scores" in r]
        values = [scale(row, r["scores"][row.figure]) for r in done]
        digits = 3 if row.figure in ("loss", "bits_per_byte") else 1
        words = " ".join(f"{value:.{digits}f}" for value in values)
        if len(values) > 1:
            words += f" (mean **{sum(values) / len(values):.{digits}f}**)"
        words += "".join(f"; seed {r['seed']}: {r['error']}" for r in mine if "error" in r)
        times = ", ".join(f"{r['train_seconds']:.0f} s" for r in done)
        steps = ", ".join(f"{r['steps']:,} steps" for r in done)
        verdict = ""
        if row.asked is not None and values:
            verdict = "yes; " if row.reached(sum(values) / len(values)) else "**no**; "
        sign = "<=" if row.figure in FALLING else ">="
        asked = (
            ("two cores, " if row.cpu else "")
            + f"{row.minutes:g} min"
            + (f" {sign} {row.asked:g}" if row.asked is not None else "")
        )
        lines.append(f"| {row.about} | {asked} | {words} | {verdict}{times}, {steps} |")
    return "\n".join(lines)


def scale(row: Row, value: float) -> float:
    """Accuracies in percent."""
    return 100 * value if row.figure == "accuracy" and value <= 1 else value


if __name__ == "__main__":
    main()
