"""Loss by the processor's clock: what each version of this code reaches in the same time on one thread.

    python bench/clock.py TEXT --code FOLDER [FOLDER ...] [--minutes 1 3] [--set KEY=VALUE]... [--rounds 3]

Each FOLDER is a checkout of this project. A small GPT of characters learns TEXT for as many steps as that
code takes in the given minutes of one processor, with a schedule of that length. Steps are timed first, in
turns, and the best round counts. Prints a table, and one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = {
    "model.preset": "tiny",
    "data.tokenizer": "char",
    "train.batch": 12,
    "train.lr": 4e-3,
    "train.optimizer": "muon",
    "train.precision": "bf16",
    "train.compile": "off",
}
TIMED = 40, 160  # steps; the difference of both runs leaves out starting
CHILD = """
import json, sys, time
import torch
torch.set_num_threads(1)
import regard
data, out, steps, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
start = time.process_time()
often = {"train.evaluate": steps, "train.save": steps}
regard.train("write", data, out=out, steps=steps, set=settings | often)
print(json.dumps(time.process_time() - start))
"""


def train(code: Path, data: Path, steps: int, settings: dict[str, object]) -> tuple[float, float]:
    """Train by a checkout's code. Return the processor's time in seconds, and the validation loss."""
    environment = os.environ | {"PYTHONPATH": str(code.absolute()), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [str(data.absolute()), str(out), str(steps), json.dumps(settings)]
        command = [sys.executable, "-c", CHILD, *words]
        done = subprocess.run(
            command, env=environment, cwd=folder, check=True, capture_output=True, text=True
        )
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    losses = [row["valid_loss"] for row in rows if "valid_loss" in row]
    return float(done.stdout.splitlines()[-1]), losses[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--code", nargs="+", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    settings = SETTINGS | {key: value for key, _, value in (one.partition("=") for one in options.set)}
    seconds: dict[str, float] = {}
    for _ in range(options.rounds):
        for code in options.code:
            few, many = (train(code, options.text, steps, settings)[0] for steps in TIMED)
            step = (many - few) / (TIMED[1] - TIMED[0])
            seconds[str(code)] = min(step, seconds.get(str(code), step))
    results = []
    for minutes in options.minutes:
        for code in options.code:
            steps = round(60 * minutes / seconds[str(code)])
            _, loss = train(code, options.text, steps, settings)
            row = {"code": str(code), "minutes": minutes, "steps": steps, "loss": loss}
            results.append(row | {"milliseconds": 1e3 * seconds[str(code)]})
            line = "{minutes:5g} min  {steps:6,} steps of {milliseconds:5.1f} ms  loss {loss:.4f}  {code}"
            print(line.format(**results[-1]), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
