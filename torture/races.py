"""Several starts of `train` into one folder at once: one of them trains, the others say so in one line.

The folder is new, empty, or has a run that was stopped. Every step is trained once, the result is that of a
single start, and what else is there stays.
"""

import mmap
import os
import random
import shutil
import struct
import time
from pathlib import Path
from typing import Any

from regard import cli
from regard.training.trainer import Trainer
from torture import commands, folders, forks
from torture.commands import DATA, OUT, check_same_run, tree
from torture.folders import SAVED, STEPS
from torture.outcome import Context, Outcome, Suite

SUITE = Suite(count=200, short=2, seconds=240, batch=5)
PLACES = ("new", "empty", "resumed")
prepare = folders.prepare  # the same run, whole and killed


def attack(context: Context, number: int) -> Outcome:
    rng, folder = random.Random(f"{context.seed} {number}"), Path.cwd()
    kind, starts = PLACES[number % len(PLACES)], rng.choice((2, 2, 3, 4, 8))
    shutil.copy(context.place / DATA, folder)
    (folder / "thesis.txt").write_text("years of work")
    if kind == "empty":
        (folder / OUT).mkdir()
    elif kind == "resumed":
        shutil.copytree(context.place / "killed", folder / OUT)
    words = commands.train_words(folder, STEPS, resume=kind == "resumed" or rng.random() < 0.5)
    spread = rng.choice((0.0, 0.0, 0.01, 0.1, 0.3))
    delays = [rng.uniform(0, spread) for _ in range(starts)]
    done = mmap.mmap(-1, 8)  # steps that were trained, by all processes together
    gate = time.monotonic() + 0.02 * starts
    results = race(words, [gate + delay for delay in delays], done)
    where = f"{kind}, {starts} starts within {spread} s, {'' if '--resume' in words else 'not '}resuming"
    try:
        check_race(context, folder, results, struct.unpack("q", done[:])[0], kind, "--resume" in words)
    except AssertionError as e:
        return Outcome("fault", f"{where}: {' '.join(str(e).split())[:800]}")
    return Outcome(kind, counts={"starts": starts, "refused": sum(ended.status == 2 for ended in results)})


def race(words: list[str], times: list[float], done: mmap.mmap) -> list[forks.Ended]:
    """Run the command at each of these times; return how they ended."""
    files = [[os.memfd_create(name) for name in ("output", "errors")] for _ in times]
    pids = [
        forks.start(train_at, words, at, done, output=output, errors=errors)
        for at, (output, errors) in zip(times, files, strict=True)
    ]
    results = []
    for pid, pair in zip(pids, files, strict=True):
        status, late = forks.wait(pid, 60)
        texts = []
        for file in pair:
            texts.append(os.pread(file, 2**20, 0).decode(errors="replace"))
            os.close(file)
        results.append(forks.Ended(status, late, *texts))
    return results


def train_at(words: list[str], at: float, done: mmap.mmap) -> None:
    step = Trainer.train_step

    def counted(trainer: Trainer) -> Any:
        result = step(trainer)
        done[:] = struct.pack("q", struct.unpack("q", done[:])[0] + 1)  # only one process trains, or it shows
        return result

    trainer: Any = Trainer
    trainer.train_step = counted
    time.sleep(max(0.0, at - time.monotonic()))
    cli.main(words)


def check_race(
    context: Context, folder: Path, results: list[forks.Ended], done: int, kind: str, resumes: bool
) -> None:
    for ended in results:
        assert not (complaint := ended.complaint(0)), complaint
        assert ended.status == 0 or str(folder / OUT) in ended.message, ended.message
    winners = sum(ended.status == 0 for ended in results)
    # A start that comes late finds a run that has ended: to resume it takes no step.
    assert winners == 1 or (resumes and winners > 1), f"{winners} of {len(results)} succeeded"
    expected = STEPS - SAVED if kind == "resumed" else STEPS
    assert done == expected, f"{done} steps were trained, not {expected}"
    check_same_run(context.place / "whole", folder / OUT)
    beside = {name for name in tree(folder) if not name.startswith(f"{OUT}/")}
    assert beside == {DATA, OUT, "thesis.txt"}, beside
