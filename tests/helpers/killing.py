"""Train a tiny model that is killed repeatedly: `python killing.py CASE DATA FOLDER STEPS SEED`.

This process loads torch and computes nothing; each attempt is a fork of it that goes on with the run and
dies by SIGKILL: in front of the k-th thing it does to files while saving, for the first and the last k of
each kind of thing, or at a random moment. Prints one JSON object: how often it was killed, how often while
saving, and where. `make torture` kills at every system call, and every model.
"""

import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers ask for it at their first step; better once than in every attempt

from helpers.runs import tiny, unmeasured
from regard.files import tensors
from regard.training import build, log, reporter
from regard.training.checkpointer import Checkpointer
from regard.training.trainer import Trainer

MOMENTS = 5  # random ones
STEPS_AT_MOST = 7  # of one attempt, however fast the machine is
SAVING = mmap.mmap(-1, 64)  # shared with the attempts: what is being saved at this moment, or nothing
TOUCHES = mmap.mmap(-1, 2**16)  # the things that an attempt does to files while saving
SETTINGS: dict[str, Any] = {
    "model__dropout": 0.1,
    "train__optimizer": "muon",
    "train__micro": 4,
    "train__save": 2,
    "train__evaluate": 6,
    "train__average": 3,
}


def attempt(case: str, data: str, out: Path, steps: int, fatal: int, endless: bool = False) -> int:
    """Resume the run in a new process, which kills itself at its `fatal`-th file operation."""
    if pid := os.fork():
        return pid
    try:
        torch.set_num_threads(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        unmeasured(pytest.MonkeyPatch())
        if not endless:
            watch(fatal)
        tiny(data, out, case, steps=steps, resume=True, **SETTINGS)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


def watch(fatal: int) -> None:
    """Count file operations while saving, from the second save on; die at the fatal one."""
    touched, writes, saves, taken = [0], [0], [0], [0]

    raw_bytes = tensors.raw_bytes  # the writing of a tensor, or its part in a digest: there are many

    def patched(owner: Any, name: str, around: Any) -> None:
        setattr(owner, name, around(getattr(owner, name)))

    def marked(what: str) -> Any:
        def around(true: Any) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                saves[0] += what == "save"
                SAVING[:] = what.encode().ljust(64, b"\0")
                try:
                    return true(*args, **options)
                finally:
                    SAVING[:] = bytes(64)

            return call

        return around

    def deadly(true: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            writes[0] += true is raw_bytes
            if saves[0] >= 2 and SAVING[0] and not (true is raw_bytes and writes[0] % 17):
                touched[0] += 1
                touch = SAVING[:].strip(b"\0") + f":{true.__name__}".encode()
                TOUCHES.write(touch + b"\n")
                if touched[0] == fatal:
                    SAVING[:] = touch.ljust(64, b"\0")
                    os.kill(os.getpid(), signal.SIGKILL)
            return true(*args, **options)

        return call

    def counted(true: Any) -> Any:
        def call(*args: Any) -> Any:
            taken[0] += 1
            if taken[0] > STEPS_AT_MOST:
                os.kill(os.getpid(), signal.SIGKILL)
            return true(*args)

        return call

    for owner, name in (
        (os, "replace"),
        (os, "rename"),
        (os, "fsync"),
        (os, "rmdir"),
        (os, "unlink"),
        (shutil, "rmtree"),
        (Path, "mkdir"),
        (Path, "open"),
        (tensors, "raw_bytes"),
    ):
        patched(owner, name, deadly)
    patched(Trainer, "save", marked("save"))
    patched(Checkpointer, "publish", marked("publish"))
    patched(reporter, "curve_svg", marked("curve"))
    patched(build, "publish", marked("begin"))
    patched(log.Log, "__init__", marked("log"))
    patched(Trainer, "train_step", counted)


def main(case: str, data: str, folder: str, steps: int, seed: int) -> None:
    rng = random.Random(seed)
    straight, out = Path(folder) / "whole", Path(folder) / "killed"
    os.waitpid(attempt(case, data, straight, steps, 0, endless=True), 0)
    kills, saving, where = 0, 0, Counter[str]()
    os.waitpid(attempt(case, data, out, steps, 0), 0)  # it dies after some steps
    touches = TOUCHES[:].strip(b"\0").decode().split()
    places = [k for kind in dict.fromkeys(touches) for k in (first(touches, kind), last(touches, kind))]
    rng.shuffle(places)
    moments = MOMENTS
    while kills < 500:
        timed = not places and moments > 0
        moments -= timed
        SAVING[:] = bytes(64)
        pid = attempt(case, data, out, steps, places.pop() if places else 0)
        if timed:
            time.sleep(rng.uniform(0, 0.25))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            if os.WEXITSTATUS(status):
                sys.exit(1)
            break
        kills += 1
        if at := SAVING[:].strip(b"\0").decode():
            saving += 1
            where[at] += 1
    print(json.dumps({"kills": kills, "saving": saving, "where": where, "touches": sorted(set(touches))}))


def first(touches: list[str], kind: str) -> int:
    return 1 + touches.index(kind)


def last(touches: list[str], kind: str) -> int:
    return len(touches) - touches[::-1].index(kind)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]))
