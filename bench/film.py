"""Measure what it costs to watch a training: `regard train --look`.

    python bench/film.py [--recipe chat] [--steps 200] [--rounds 3] [--set KEY=VALUE]

The same training alone, with its page and film (`look`), and with somebody who follows the newest frame on
the page (`followed`): a client that asks for the progress every second, and for a trace of each new frame. In
turns; the figures are the best of all rounds, because other work only adds to them. From the first step to
the last: `seconds` by the clock, `processor` seconds of the training's process with its film, and `page`, the
processor seconds of the process that serves the page. The last line has the ratios as JSON; `look_most` is
the cost if every second of the page were taken from the training, as on a single core without priorities.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import regard
from regard.runs.film import film_steps
from regard.training.trainer import Trainer

WAYS = ("alone", "look", "followed")
ADDRESS = re.compile(r"http://[0-9.:]+/")
Moment = tuple[float, float, float]  # on the clock, in this process, in that of the page


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def follow(url: str, ended: threading.Event) -> None:
    """Do what the page does that follows the newest frame."""
    shown = None
    while not ended.wait(1.0):
        try:
            step = ask(f"{url}api/progress")["newest"]
            if step != shown:
                ask(f"{url}api/trace", {"checkpoint": step})
            shown = step
        except OSError:  # the training has ended, or the frame is gone
            continue


def processor_seconds(pid: int) -> float:
    """The processor time of another process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def train_here(recipe: str, steps: int, settings: dict[str, Any], look: bool, out: str) -> None:
    """In a process of its own: train, and print what was used between the first step and the last."""
    moments: list[Moment] = []

    def note(trainer: Trainer) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        page = processor_seconds(trainer.live.process.pid) if trainer.live else 0.0
        moments.append((time.monotonic(), used.ru_utime + used.ru_stime, page))

    step = Trainer.train_step

    def noted(trainer: Trainer) -> Any:
        note(trainer)
        return step(trainer)

    Trainer.train_step = noted  # type: ignore[method-assign,assignment]
    regard.train(recipe, out=out, steps=steps, set=settings, look=look)
    used = [last - first for first, last in zip(moments[0], moments[-1], strict=True)]
    print(json.dumps([*used, len(film_steps(Path(out)))]))


def train(way: str, out: Path, o: argparse.Namespace) -> dict[str, float]:
    """Train in another process; return what it used."""
    settings = dict(setting.split("=", 1) for setting in o.set)
    settings |= {"train.evaluate": o.steps, "train.save": o.steps, "train.log": 1}
    arguments = [o.recipe, o.steps, settings, way != "alone", str(out)]
    process = subprocess.Popen(
        [sys.executable, __file__, "--here", json.dumps(arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ended = threading.Event()
    assert process.stderr is not None
    assert process.stdout is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if way == "followed" and (address := ADDRESS.search(line)):
            threading.Thread(target=follow, args=(address[0], ended), daemon=True).start()
    printed = process.stdout.read()
    ended.set()
    if process.wait():
        raise RuntimeError(said[-1])
    return dict(zip(("seconds", "processor", "page", "frames"), json.loads(printed), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="chat")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.here:
        train_here(*json.loads(o.here))
        return
    folder = Path(tempfile.mkdtemp())
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for n in range(o.rounds):
        for way in WAYS[n % 3 :] + WAYS[: n % 3]:
            runs[way].append(train(way, folder / f"{way}-{n}", o))
            print(way, json.dumps(runs[way][-1]), flush=True)
    best = {way: {key: min(run[key] for run in runs[way]) for key in runs[way][0]} for way in WAYS}
    ratios = {
        f"{way}_{key}": round(best[way][key] / best["alone"][key], 3)
        for way in WAYS[1:]
        for key in ("seconds", "processor")
    }
    for way in WAYS[1:]:
        used = best[way]["processor"] + best[way]["page"]
        ratios[f"{way}_most"] = round(used / best["alone"]["processor"], 3)
    print(json.dumps({**ratios, "frames": best["look"]["frames"], "steps": o.steps}))


if __name__ == "__main__":
    main()
