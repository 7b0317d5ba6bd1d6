"""Training on the processor beside other work: how threads that wait for each other do it.

    python bench/busy.py [--recipes write chat] [--spins default 1000 10000] [--others 0 2] [--steps 30]
                         [--rounds 3]

Trains a recipe on its built-in data, in turns with each number of spins: how often a thread of OpenMP looks
for more work before it sleeps (GOMP_SPINCOUNT; `default` is libgomp's own, `regard` the command's). `others`
are processes that compute meanwhile. Prints the steps per second of the best round, and their ratio to the
first number of spins. Ends with one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOG = 5  # steps from one row of the log to the next


def rate(recipe: str, spins: str, steps: int) -> float:
    """Steps per second after the first few."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    program = [sys.executable, "-m", "regard"]
    if spins != "regard":
        environment |= {} if spins == "default" else {"GOMP_SPINCOUNT": spins}
        program = [sys.executable, "-c", "import sys; from regard.cli import main; main(sys.argv[1:])"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["train", recipe, "--steps", str(steps), "--set", f"train.log={LOG}", "--out", str(out)]
        subprocess.run([*program, *words], env=environment, check=True, capture_output=True)
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    times = {row["step"]: row["elapsed"] for row in rows if "elapsed" in row}
    first, last = sorted(times)[1], max(times)
    return (last - first) / (times[last] - times[first])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["write", "chat"])
    parser.add_argument("--spins", nargs="+", default=["default", "1000", "10000"])
    parser.add_argument("--others", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for others in o.others:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        try:
            for recipe in o.recipes:
                rates = [{s: rate(recipe, s, o.steps) for s in o.spins} for _ in range(o.rounds)]
                best = {spins: max(each[spins] for each in rates) for spins in o.spins}
                ratios = {spins: best[spins] / best[o.spins[0]] for spins in o.spins}
                results[f"{recipe} beside {others}"] = best
                cells = [f"{spins}: {best[spins]:.2f}/s ({ratios[spins]:.2f} x)" for spins in o.spins]
                print(f"{recipe} beside {others} others   {'   '.join(cells)}", flush=True)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
