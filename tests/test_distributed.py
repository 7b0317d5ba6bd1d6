"""Two processes and one: the same losses and weights, and checkpoints that either can go on from."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from mistakes import mistake
from runs import TINY, checkpoints, rows, tiny, unmeasured, write_text
from safetensors.torch import load_file

from regard import checkpoint, distributed

STEPS = 6
SETTINGS = {"train__batch": 4, "train__evaluate": 3, "train__save": 2, "train__micro": 1, "steps": STEPS}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """What one process makes of it."""
    out = tmp_path_factory.mktemp("alone") / "out"
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        tiny(text, out, **SETTINGS)
    return out


def line(text, out, *more, **settings):
    found = TINY | {k.replace("__", "."): v for k, v in (SETTINGS | settings).items() if k != "steps"}
    found |= {"train.steps": settings.get("steps", STEPS)}
    words = ["train", "write", text, "--out", out, *more]
    for key, value in found.items():
        words += ["--set", f"{key}={value}"]
    return [str(word) for word in words]


def two(*words):
    """The command in two processes on this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*torchrun, "-m", "regard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


def done(process):
    answer, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return answer, said


def close(a, b):
    """The same losses in the log, and weights that differ by rounding."""
    assert len(rows(a)) == len(rows(b))
    for one, other in zip(rows(a), rows(b), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    first, second = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_are_one(text, alone, tmp_path, parallel):
    out = tmp_path / "out"
    answer, said = done(two(*line(text, out, train__parallel=parallel)))
    assert answer == f"{out}\n"  # once
    assert said.count(f"step {STEPS}/{STEPS}") == 1
    close(alone, out)
    assert checkpoints(out) == checkpoints(alone)
    a, b = (load_file(o / f"checkpoints/step-{STEPS}/optimizer.safetensors") for o in (alone, out))
    assert a.keys() == b.keys()
    assert {name: t.shape for name, t in a.items()} == {name: t.shape for name, t in b.items()}
    # one process goes on with what two have made
    tiny(text, out, **SETTINGS | {"steps": STEPS + 1}, resume=True)
    assert checkpoints(out)[-1] == f"step-{STEPS + 1}"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_signal_to_all_and_on_with_the_other_number(text, tmp_path, parallel):
    """One process begins, two go on and are stopped, one finishes: each has what the others left."""
    out, many = tmp_path / "out", 3000
    tiny(text, out, **SETTINGS | {"steps": 2})
    process = two(*line(text, out, "--resume", steps=many, train__parallel=parallel))
    heard = []
    while not re.match(r"step [5-9]/", words := process.stderr.readline()):
        heard.append(words)
        assert process.poll() is None, "".join(heard)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    last = int(checkpoints(out)[-1][5:])
    assert 5 <= last < many
    assert checkpoint.whole(out / "checkpoints" / f"step-{last}")
    about = json.loads((out / "checkpoints" / f"step-{last}" / "state.json").read_text())
    assert about["step"] == last
    tiny(text, out, **SETTINGS | {"steps": last + 3}, resume=True)
    assert checkpoints(out)[-1] == f"step-{last + 3}"
    assert {row["step"] for row in rows(out) if "loss" in row} == set(range(1, last + 4)), said


def test_a_batch_that_cannot_be_shared_out(text, tmp_path):
    process = two(*line(text, tmp_path / "out", train__batch=5))
    answer, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert answer == ""
    # the first of them to say so may end the other before it has spoken
    assert "regard: train.batch=5 must divide by the number of processes, 2\n" in said
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- one process


def test_alone_everything_is_simple():
    with distributed.together(torch.device("cpu")):
        assert distributed.most(3, 0.5) == [3, 0.5]
        x = torch.arange(3.0)
        assert distributed.total(x) is x
        assert distributed.whole(x) is x
        assert distributed.shared_like(x, x) is x
        assert distributed.share(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("world", [2, 3])
def test_every_row_is_somebodys(monkeypatch, world):
    monkeypatch.setattr(distributed, "WORLD", world)
    shares = []
    for rank in range(world):
        monkeypatch.setattr(distributed, "RANK", rank)
        shares.append(distributed.share(np.arange(12)).tolist())
    assert sorted(row for share in shares for row in share) == list(range(12))
    assert len({len(share) for share in shares}) == 1
    mistake(lambda: distributed.share(np.arange(13)), "train.batch=13", world)
