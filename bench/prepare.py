"""What `regard prepare` takes for texts of several sizes, and how soon training from its shards begins.

    python bench/prepare.py [GB ...] [--tokenizer bpe] [--parts N] [--folder FOLDER]

Each size is one generated file, or one for each of N parts, which are prepared one after the other, as by N
machines (`--part`), and joined; a process has one thread. Prints the processor time of `regard prepare`, of
all parts together, the largest memory of one, and the time from the start of `regard train` to its first
step, by the clock and of the processor, which depends little on what else the machine does. Files are removed
at once. Ends with one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

GB = 10**9
WORDS, COMMON, DRAWN = 10**6, 8000, 2**18  # of the language; frequent ones; words drawn at once
TINY = {"dim": 32, "depth": 2, "heads": 2, "context": 64}


def write_text(path: Path, size: int, part: int = 0) -> None:
    """Write made-up words, as frequent as in a language and as long, in lines: each part others.

    By Zipf's law, a word is as rare as its rank says; behind the first some thousand, rarer
    (Ferrer i Cancho & Solé 2001).
    """
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    ranks = np.arange(1, WORDS + 1)
    lengths = np.clip(2 + np.log2(ranks) / 3 + rng.normal(0, 1.5, WORDS), 1, 16).astype(int)
    chosen = letters[np.minimum(rng.exponential(6, (WORDS, 16)).astype(int), 25)]
    words = np.array(["".join(row[:n]) for row, n in zip(chosen, lengths, strict=True)], dtype=object)
    ends = np.array([" ", ", ", ". ", ".\n", " 17 "], dtype=object)
    chances = np.cumsum(np.where(ranks <= COMMON, 1 / ranks, COMMON**0.5 / ranks**1.5))
    rng, written = np.random.default_rng([1, part]), 0
    with path.open("wb") as file:
        while written < size:
            text = np.empty((DRAWN, 2), dtype=object)
            text[:, 0] = words[np.searchsorted(chances, rng.random(DRAWN) * chances[-1])]
            text[:, 1] = ends[rng.choice(5, DRAWN, p=[0.87, 0.06, 0.05, 0.01, 0.01])]
            written += file.write("".join(text.ravel().tolist()).encode())


def start(*words: object) -> subprocess.Popen[str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "regard", *map(str, words)]
    return subprocess.Popen(command, env=os.environ | threads, stdout=-1, stderr=-1, text=True)


def prepare(text: Path, shards: Path, *options: str) -> dict[str, float]:
    process = start("prepare", text, "--out", shards, *options)
    begun = time.monotonic()
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, said
    seconds = usage.ru_utime + usage.ru_stime
    return {"processor_s": seconds, "clock_s": time.monotonic() - begun, "peak_MB": usage.ru_maxrss / 1000}


def processor_time(pid: int) -> float:
    """Seconds that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_step(shards: Path, out: Path) -> dict[str, float]:
    """Seconds from the command to the line of the first step."""
    settings = [f"--set=model.{name}={value}" for name, value in TINY.items()]
    begun = time.monotonic()
    process = start("train", "write", shards, "--out", out, "--steps", 10**6, "--batch", 4, *settings)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            if line.startswith("step 1/"):
                clock, processor = time.monotonic() - begun, processor_time(process.pid)
                return {"first_step_s": clock, "first_step_processor_s": processor}
            said += line
        raise AssertionError(said)
    finally:
        process.kill()
        process.communicate()


def measure(size: float, tokenizer: str, parts: int, folder: Path) -> dict[str, Any]:
    texts, shards = folder / "texts", folder / "shards"
    texts.mkdir()
    for part in range(parts):
        write_text(texts / f"{part:05d}.txt", int(size * GB / parts), part)
    chosen = ["--set", f"data.tokenizer={tokenizer}"]
    numbers = [["--part", f"{part + 1}/{parts}"] for part in range(parts)] if parts > 1 else [[]]
    runs = [prepare(texts, shards, *chosen, *number) for number in numbers]
    index = json.loads((shards / "shards.json").read_text())
    assert len(index.get("parts", [0])) == parts
    row = {"GB": size, "parts": parts, "tokens": index["train"]["tokens"] + index["valid"]["tokens"]}
    row |= {key: sum(run[key] for run in runs) for key in ("processor_s", "clock_s")}
    row |= {"peak_MB": max(run["peak_MB"] for run in runs)}
    for text in texts.iterdir():
        text.unlink()
    row |= first_step(shards, folder / "run")
    return {name: round(value, 2) for name, value in row.items()}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sizes", nargs="*", type=float, default=[0.1, 0.3], metavar="GB")
    p.add_argument("--tokenizer", default="bpe")
    p.add_argument("--parts", type=int, default=1, metavar="N")
    p.add_argument("--folder", type=Path, help="with room for half as much again as the largest text")
    o = p.parse_args()
    rows = []
    for size in o.sizes:
        with tempfile.TemporaryDirectory(dir=o.folder) as folder:
            rows.append(measure(size, o.tokenizer, o.parts, Path(folder)))
        print(rows[-1], flush=True)
    print(json.dumps({"tokenizer": o.tokenizer, "parts": o.parts, "rows": rows}))


if __name__ == "__main__":
    main()
