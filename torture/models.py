"""Model folders and GGUF files changed by chance: they load or are refused in one line.

Memory stays below twice the size of the files, time is limited, and nothing in them runs.
"""

import os
import random
import warnings
from pathlib import Path
from typing import Any

from helpers.hostile import (
    KINDS,
    MORE,
    copy_folder,
    limit_memory,
    make_good,
    make_more,
    mutate,
    status,
    use_model,
)
from regard.errors import UserError
from torture.outcome import Context, Outcome, Suite

SUITE = Suite(count=100_000, short=20, seconds=60, batch=500)
# Not read to use a model
LEFT_OUT = ("log.jsonl", "recipe.toml", "origins.json", "fingerprints.json", "map.svg", "vectors.txt")
ALL = (*KINDS, *MORE)


def prepare(place: Path, is_short: bool) -> dict[str, Any]:
    (place / "good").mkdir()
    make_good(place / "good")
    make_more(place / "good")
    return {}


def attack(context: Context, number: int) -> Outcome:
    rng, good = random.Random(f"{context.seed} {number}"), context.place / "good"
    kind = rng.choice(ALL)
    work = context.place / f"work-{os.getpid()}"
    folder = work / kind
    if not work.exists():  # the first attack of this process: what is loaded once takes memory once
        work.mkdir()
        warnings.simplefilter("error")
        for each in ALL:
            use_model(copy_folder(good, each, work / each))
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in LEFT_OUT)
    path = rng.choice(paths)
    raw = path.read_bytes()
    path.write_bytes(mutate(rng, raw))
    before, message = status("VmRSS"), ""
    try:
        with limit_memory(folder):
            use_model(folder)
    except UserError as e:
        message = str(e)
    except Exception as e:
        return Outcome("fault", f"{kind}/{path.name}: {type(e).__name__}: {' '.join(str(e).split())[:500]}")
    finally:
        path.write_bytes(raw)
    if "\n" in message:
        return Outcome("fault", f"{kind}/{path.name}: not one line: {message!r}")
    peak = round(max(0, status("VmHWM") - before) / 2**20, 1)
    return Outcome("refused in one line" if message else "loads", peaks={"MiB": peak})
