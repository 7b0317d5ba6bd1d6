"""Kill training runs with SIGKILL, resume them, and compare them with runs that were left alone, bit for bit.

    python -m bench.resume [--kills 3] [--steps 300] [--small] [--set KEY=VALUE]

A GPT on text, a translator and a ViT on JPEGs that are not kept in memory, all with Muon, as `regard train`
has them: on a GPU with CUDA graphs and batches made ahead, and images that are resized there. Runs that are
left alone take place twice: they tell whether the device repeats itself at all. Ends with one JSON line: for
each run, the largest difference of the weights, 0 if no bit differs.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from regard.bench.data import make_jpegs
from regard.files.tensors import read_tensors
from regard.runs.layout import WEIGHTS

IMAGES = ["task.size=32", "model.patch=4", "task.flip=true", "data.memory_gb=0.0005"]
RUNS = {  # of each: the recipe, settings, and those for a CPU
    "write": (["write"], ["model.preset=mini", "train.batch=64"], ["model.preset=pico"]),
    "translate": (["translate"], [], ["model.dim=16", "model.depth=1", "model.heads=2"]),
    "see": (["see"], IMAGES, [*IMAGES, "model.dim=16", "model.depth=1", "model.heads=2"]),
}


def start(name: str, out: Path, o: argparse.Namespace) -> subprocess.Popen[bytes]:
    recipe, large, small = RUNS[name]
    every = max(1, o.steps // 10)
    settings = [f"train.{key}={every}" for key in ("save", "evaluate")] + [f"train.steps={o.steps}"]
    data = [str(out.parent / "jpegs")] if name == "see" else []
    if data and not Path(data[0]).exists():
        make_jpegs(Path(data[0]), 600, 40)  # enough for decoding in processes
    command = [sys.executable, "-m", "regard", "train", *recipe, *data, "--out", str(out), "--resume"]
    for setting in (*settings, *(small if o.small else large), *o.set):
        command += ["--set", setting]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, problem = process.communicate()
    if process.returncode:
        raise RuntimeError(problem.decode().strip().splitlines()[-1])


def run_killed(name: str, out: Path, o: argparse.Namespace) -> int:
    """Kill it at random moments, then let it end; return how often it was killed."""
    rng, kills = random.Random(0), 0
    for n in range(o.kills):
        process, log = start(name, out, o), out / "log.jsonl"
        goal = (n + 1) * o.steps // (o.kills + 1)
        while process.poll() is None and not reached(log, goal):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        kills += process.poll() is None
        process.kill()
        process.communicate()
    finish(start(name, out, o))
    return kills


def reached(log: Path, step: int) -> bool:
    """Whether a run has logged a step from this one on."""
    lines = log.read_text().splitlines() if log.exists() else []
    return any(read_step(line) >= step for line in lines[-3:])


def read_step(line: str) -> int:
    try:
        return int(json.loads(line).get("step", -1))
    except json.JSONDecodeError:  # it is being written
        return -1


def difference(one: Path, other: Path) -> float:
    """The largest difference of two runs' weights; infinite where bits differ that are no numbers."""
    a, b = (read_tensors(path / WEIGHTS) for path in (one, other))
    if a.keys() != b.keys():
        return float("inf")
    if all(torch.equal(a[name], b[name]) for name in a):
        return 0.0
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    o = parser.parse_args()
    folder, results = Path(tempfile.mkdtemp()), {}
    for name in o.runs or RUNS:
        straight, again = (start(name, folder / f"{name}-{part}", o) for part in ("whole", "again"))
        kills = run_killed(name, folder / f"{name}-killed", o)
        finish(straight)
        finish(again)
        parts = {part: folder / f"{name}-{part}" for part in ("whole", "again", "killed")}
        results[name] = {"kills": kills} | {
            part: difference(parts["whole"], parts[part]) for part in ("again", "killed")
        }
        print(name, json.dumps(results[name]), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
