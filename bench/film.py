"""Measure what it costs to watch a training: `regard train --look`.

    python bench/film.py [--recipe chat] [--steps 200] [--rounds 3] [--set KEY=VALUE]

The same training alone, with its page and film (`look`), and with somebody who follows the newest frame on
the page (`followed`): a client that asks for the progress every second, and for a trace of each new frame. In
turns; the figures are the best of all rounds, because other work only adds to them. `seconds` are those from
the first step to the last, by the run's log; `processor` is the processor time of the training's process with
its film and without the process that serves the page. Ends with one JSON line with the ratios.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

from regard.runs.film import film_steps
from regard.runs.layout import read_log

WAYS = ("alone", "look", "followed")
ADDRESS = re.compile(r"http://[0-9.:]+/")


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def follow(url: str, ended: threading.Event) -> None:
    """Do what the page does that follows the newest frame."""
    newest = None
    while not ended.wait(1.0):
        try:
            step = ask(f"{url}api/progress")["film"][-1][0]
            if step != newest:
                ask(f"{url}api/trace", {"checkpoint": step})
            newest = step
        except OSError:  # the training has ended, or the frame is gone
            continue


def train(way: str, out: Path, o: argparse.Namespace) -> dict[str, float]:
    """Train; return the seconds of the steps, the processor time and the number of frames."""
    command = [sys.executable, "-m", "regard", "train", o.recipe, "--steps", str(o.steps), "--out", str(out)]
    for setting in (*o.set, f"train.evaluate={o.steps}", f"train.save={o.steps}", "train.log=1"):
        command += ["--set", setting]
    command += ["--look"] if way != "alone" else []
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    ended = threading.Event()
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if way == "followed" and (address := ADDRESS.search(line)):
            threading.Thread(target=follow, args=(address[0], ended), daemon=True).start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    if process.returncode:
        raise RuntimeError(said[-1])
    elapsed = [row["elapsed"] for row in read_log(out / "log.jsonl") if "loss" in row]
    return {
        "seconds": elapsed[-1] - elapsed[0],
        "processor": usage.ru_utime + usage.ru_stime,
        "frames": len(film_steps(out)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="chat")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    o = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for n in range(o.rounds):
        for way in WAYS[n % 3 :] + WAYS[: n % 3]:
            runs[way].append(train(way, folder / f"{way}-{n}", o))
            print(way, json.dumps(runs[way][-1]), flush=True)
    best = {way: {key: min(run[key] for run in runs[way]) for key in runs[way][0]} for way in WAYS}
    ratios = {
        f"{way}_{key}": best[way][key] / best["alone"][key]
        for way in WAYS[1:]
        for key in ("seconds", "processor")
    }
    print(json.dumps({**ratios, "frames": best["look"]["frames"], "steps": o.steps}))


if __name__ == "__main__":
    main()
