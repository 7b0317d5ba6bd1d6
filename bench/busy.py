"""Training on the processor beside other work, by the number of threads.

    python bench/busy.py [--recipes chat] [--threads 2 1] [--others 0 1 2] [--steps 30] [--rounds 2]

Trains a recipe on its built-in data, in turns with each number of threads, while `others` processes compute.
Prints the steps per second of the best round, and their ratio to the first number of threads. Ends with one
JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOG = 5  # steps from one row of the log to the next


def rate(recipe: str, threads: int, steps: int) -> float:
    """Steps per second after the first few."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["train", recipe, "--steps", str(steps), "--set", f"train.log={LOG}", "--out", str(out)]
        subprocess.run(
            [sys.executable, "-m", "regard", *words], env=environment, check=True, capture_output=True
        )
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    times = {row["step"]: row["elapsed"] for row in rows if "elapsed" in row}
    first, last = sorted(times)[1], max(times)
    return (last - first) / (times[last] - times[first])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["chat"])
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--others", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    o = parser.parse_args()
    results: dict[str, dict[int, float]] = {}
    for count in o.others:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        try:
            for recipe in o.recipes:
                rates = [{n: rate(recipe, n, o.steps) for n in o.threads} for _ in range(o.rounds)]
                best = {n: max(each[n] for each in rates) for n in o.threads}
                results[f"{recipe} beside {count}"] = best
                cells = [
                    f"{n} threads: {best[n]:.2f}/s ({best[n] / best[o.threads[0]]:.2f} x)" for n in o.threads
                ]
                print(f"{recipe} beside {count} others   {'   '.join(cells)}", flush=True)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
