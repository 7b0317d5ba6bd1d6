"""Measure the speed of training, writing and serving on this machine, next to installed libraries.

The libraries run in turns, under the same conditions. Don't compare times from different machines.
"""

import importlib.util
import json
import math
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.bench.jobs import PEER, make_rows
from regard.bench.measure import Options, measure, measure_peaks
from regard.draw.plots import Bars
from regard.draw.svg import svg
from regard.draw.terminal import progress
from regard.errors import UserError
from regard.files import atomic
from regard.training.machine import choose_device

REPEAT = 3


def bench(
    size: str = "tiny",
    seconds: float = 3.0,
    rows: Sequence[str] = (),
    nanogpt: str | None = None,
    gptfast: str | None = None,
    save: str | None = None,
) -> dict[str, dict[str, float]]:
    """Print and return rates by row and library: the median of three runs, in turns.

    `rows` are the beginnings of the names of those to measure; all if there are none. `nanogpt` and `gptfast`
    are folders of these programs; `save` is an .svg file to draw to.
    """
    device = choose_device("auto")
    has_peer = importlib.util.find_spec(PEER) is not None
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        options = Options(device, None, path(nanogpt), path(gptfast), REPEAT, seconds / REPEAT)
        options.small, options.scratch = device.type != "cuda", Path(folder)
        builders = {
            name: build
            for name, build in make_rows(size, options).items()
            if not rows or any(name.startswith(beginning) for beginning in rows)
        }
        if not builders:
            raise UserError(f"{rows[0]}: no such row; there are {', '.join(make_rows(size, options))}")
        measure_peaks(device)  # before anything else uses the device
        with progress("measuring", len(builders)) as advance, quiet_peer(has_peer):
            for name, build in builders.items():
                row = build()
                if not has_peer:
                    row.contenders.pop(PEER, None)
                results[name] = measure(row, options)
                advance(1)
    show(size, device, results)
    if not has_peer:
        print(f"to compare: pip install {PEER}", file=sys.stderr)
    if save:
        atomic.write_text(Path(save), draw(results, f"{size}, {device.type}: speed relative to the fastest"))
    rates = {name: {who: r["rate"] for who, r in row["results"].items()} for name, row in results.items()}
    about = {"size": size, "device": device.type, "threads": torch.get_num_threads()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    about |= {"torch": torch.__version__, "peaks": measure_peaks(device), "process_GiB": round(memory, 2)}
    tokens = {name: rates[name] for name, row in results.items() if row["unit"] == "tokens"}
    print(json.dumps(about | {"tokens_per_second": tokens, "measured": results}))
    return rates


def path(folder: str | None) -> Path | None:
    if folder is not None and not (Path(folder) / "model.py").is_file():
        raise UserError(f"{folder}: has no model.py; give a folder of nanoGPT or gpt-fast")
    return None if folder is None else Path(folder)


@contextmanager
def quiet_peer(installed: bool) -> Iterator[None]:
    """Turn off the log messages of transformers."""
    if not installed:
        yield
        return
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def show(size: str, device: torch.device, results: dict[str, dict[str, Any]]) -> None:
    """Print a line for each row: rates, the ratio to the best peer, memory, shares of the peaks, and the time
    of building, compiling and warming up, which the rates leave out."""
    print(f"{size}, {device}, {torch.get_num_threads()} threads: units per second")
    for name, row in results.items():
        ours, words = row["results"].get("regard"), [f"{name:21}"]
        words += [f"{who} {r['rate']:,.0f}" for who, r in row["results"].items()]
        words.append(row["unit"].replace("_", " ") + "/s")
        peer_rates = {who: r["rate"] for who, r in row["results"].items() if who != "regard"}
        if ours and peer_rates:
            words += [f"  {ours['rate'] / rate:.2f} x {who}" for who, rate in peer_rates.items()]
        for key, label in (("flops_share", "of peak FLOP/s"), ("bandwidth_share", "of bandwidth")):
            if ours and key in ours:
                words.append(f"  {ours[key]:.0%} {label}")
        if ours and "GiB" in ours:
            words.append(f"  {ours['GiB']:.1f} GiB")
        if ours and "ms_to_first_token" in ours:
            words.append(f"  first token after {ours['ms_to_first_token']:.0f} ms")
        if ours:
            words.append(f"  ready after {ours['start_s']:.1f} s")
        print(" ".join(words))
        for who, problem in row["failed"].items():
            print(f"{name}: {who} failed: {problem}", file=sys.stderr)


def draw(results: dict[str, dict[str, Any]], title: str) -> str:
    """Bars by row and library; the fastest of a row is 1."""
    libraries = list(dict.fromkeys(who for row in results.values() for who in row["results"]))
    heights = {who: np.full(len(results), math.nan) for who in libraries}
    for i, row in enumerate(results.values()):
        fastest = max((r["rate"] for r in row["results"].values()), default=math.nan)
        for who, result in row["results"].items():
            heights[who][i] = result["rate"] / fastest
    return svg(Bars(title, list(results), heights).scene())
