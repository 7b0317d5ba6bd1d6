"""What `regard prepare` takes for texts of several sizes, and how soon training from its shards begins.

    python bench/prepare.py [GB ...] [--tokenizer bpe] [--parts N [--together]]
                            [--folder FOLDER]

Each size is one generated file, or one for each of N parts, which are prepared one after the other, or
together, as by N machines (`--part`), and joined; a process has one thread. Prints the processor time of
`regard prepare`, of all parts together, the largest memory of one, and the time from the start of `regard
train` to its first step, by the clock and of the processor, which depends little on what else the machine
does. Files are removed at once. Ends with one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

GB = 10**9
WORDS, COMMON, DRAWN = 10**6, 8000, 2**18  # of the language; frequent ones; words drawn at once
LONGEST = 16  # letters of a word
TINY = {"dim": 32, "depth": 2, "heads": 2, "context": 64}


def write_text(path: Path, size: int, part: int = 0) -> None:
    """Write made-up words, as frequent as in a language and as long, in lines: each part others.

    By Zipf's law, a word is as rare as its rank says; behind the first some thousand, rarer
    (Ferrer i Cancho & Solé 2001).
    """
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", np.uint8)
    ranks = np.arange(1, WORDS + 1)
    lengths = np.clip(2 + np.log2(ranks) / 3 + rng.normal(0, 1.5, WORDS), 1, LONGEST).astype(int)
    words = letters[np.minimum(rng.exponential(6, (WORDS, LONGEST)).astype(int), 25)]
    words[np.arange(LONGEST) >= lengths[:, None]] = 0
    ends = np.array([b" ", b", ", b". ", b".\n", b" 17 "]).view(np.uint8).reshape(5, -1)
    chances = np.cumsum(np.where(ranks <= COMMON, 1 / ranks, COMMON**0.5 / ranks**1.5))
    rng, written = np.random.default_rng([1, part]), 0
    with path.open("wb") as file:
        while written < size:
            drawn = words[np.searchsorted(chances, rng.random(DRAWN) * chances[-1])]
            text = np.hstack([drawn, ends[rng.choice(5, DRAWN, p=[0.87, 0.06, 0.05, 0.01, 0.01])]])
            written += file.write(text[text != 0].tobytes())


def start(*words: object) -> subprocess.Popen[str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "regard", *map(str, words)]
    return subprocess.Popen(command, env=os.environ | threads, stdout=-1, stderr=-1, text=True)


def prepare(text: Path, shards: Path, *options: str) -> dict[str, float]:
    process = start("prepare", text, "--out", shards, *options)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, said
    return {"processor_s": usage.ru_utime + usage.ru_stime, "peak_MB": usage.ru_maxrss / 1000}


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


def measure(size: float, o: argparse.Namespace, folder: Path) -> dict[str, Any]:
    tokenizer, parts = o.tokenizer, o.parts
    texts, shards = folder / "texts", folder / "shards"
    texts.mkdir()
    files = [texts / f"{part:05d}.txt" for part in range(parts)]
    with ProcessPoolExecutor(parts if o.together else 1) as pool:
        list(pool.map(write_text, files, [int(size * GB / parts)] * parts, range(parts)))
    chosen = ["--set", f"data.tokenizer={tokenizer}"]
    numbers = [["--part", f"{part + 1}/{parts}"] for part in range(parts)] if parts > 1 else [[]]
    begun = time.monotonic()
    with ThreadPoolExecutor(parts if o.together else 1) as threads:
        runs = list(threads.map(lambda number: prepare(texts, shards, *chosen, *number), numbers))
    clock = time.monotonic() - begun
    index = json.loads((shards / "shards.json").read_text())
    assert len(index.get("parts", [0])) == parts
    row = {"GB": size, "parts": parts, "tokens": index["train"]["tokens"] + index["valid"]["tokens"]}
    row |= {"processor_s": sum(run["processor_s"] for run in runs), "clock_s": clock}
    row |= {"peak_MB": max(run["peak_MB"] for run in runs)}
    for file in files:
        file.unlink()
    row |= first_step(shards, folder / "run")
    return {name: round(value, 2) for name, value in row.items()}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sizes", nargs="*", type=float, default=[0.1, 0.3], metavar="GB")
    p.add_argument("--tokenizer", default="bpe")
    p.add_argument("--parts", type=int, default=1, metavar="N")
    p.add_argument("--together", action="store_true", help="all parts at the same time, each on a core")
    p.add_argument("--folder", type=Path, help="with room for half as much again as the largest text")
    o = p.parse_args()
    rows = []
    for size in o.sizes:
        with tempfile.TemporaryDirectory(dir=o.folder) as folder:
            rows.append(measure(size, o, Path(folder)))
        print(rows[-1], flush=True)
    print(json.dumps({"tokenizer": o.tokenizer, "parts": o.parts, "together": o.together, "rows": rows}))


if __name__ == "__main__":
    main()
