"""Two processes and one: the same losses and weights, and either resumes the other's checkpoints."""

import contextlib
import fcntl
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.errors import user_error
from helpers.forking import Process
from helpers.runs import (
    DIFFERENT,
    DRAWN,
    TINY,
    assert_rows_close,
    checkpoints,
    guard_of,
    notices,
    rows,
    tiny,
    write_data,
)
from helpers.slow import slow_after
from regard.files.atomic import new_folder
from regard.files.locks import LOCK
from regard.runs import checkpoints as checkpoint
from regard.tasks import targets
from regard.training import distributed
from regard.training.evaluation import Evaluation
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

STEPS = 6
SETTINGS = {"train__batch": 4, "train__evaluate": 3, "train__save": 2, "train__micro": 1, "steps": STEPS}


def line(text, out, *more, **settings):
    options = TINY | {k.replace("__", "."): v for k, v in (SETTINGS | settings).items() if k != "steps"}
    options |= {"train.steps": settings.get("steps", STEPS)}
    words = ["train", "write", text, "--out", out, *more]
    for key, value in options.items():
        words += ["--set", f"{key}={value}"]
    return [str(word) for word in words]


def two(*words):
    """The command in two processes on this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*torchrun, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def fork_two(*words):
    """The command in two processes, which start at once."""
    return Process("-m", "helpers.ranks", *words, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"})


def close(a, b, loss=1e-5, rtol=1e-3, atol=1e-4):
    """The same losses in the log, and weights that differ by rounding."""
    assert_rows_close(rows(b), rows(a), rel=loss)
    first, second = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=rtol, atol=atol)


@pytest.mark.parametrize("parallel", slow_after(1, ["fsdp", "ddp"]))
def test_a_signal_to_all_and_on_with_the_other_number(text, tmp_path, parallel):
    """One process starts, two resume and are stopped, one finishes."""
    out, many = tmp_path / "out", 3000
    tiny(text, out, **SETTINGS | {"steps": 2})
    words = line(text, out, "--resume", steps=many, train__parallel=parallel)
    process = fork_two(*words)
    heard = []
    while not re.match(r"step [5-9]/", words := process.stderr.readline()):
        heard.append(words)
        assert process.poll() is None, "".join(heard)
    assert sorted(p.name for p in out.glob(f"{LOCK}*")) == [LOCK, f"{LOCK}-1"]
    user_error(lambda: tiny(text, out, **SETTINGS, resume=True), out, (out / LOCK).read_text().strip())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert not list(out.rglob(".*"))
    last = int(checkpoints(out)[-1][5:])
    assert 5 <= last < many
    assert checkpoint.is_intact(out / "checkpoints" / f"step-{last}")
    about = json.loads((out / "checkpoints" / f"step-{last}" / "state.json").read_text())
    assert about["step"] == last
    tiny(text, out, **SETTINGS | {"steps": last + 3}, resume=True)
    assert checkpoints(out)[-1] == f"step-{last + 3}"
    assert {row["step"] for row in rows(out) if "loss" in row} == set(range(1, last + 4)), said


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["launcher", "rank 0"])
def test_a_worker_that_lives_on_holds_the_folder(text, tmp_path, killed):
    """The launcher or the first process is killed: nobody trains there until the others are gone."""
    out = tmp_path / "out"
    process = two("-m", "regard", *line(text, out, steps=100_000))
    while not process.stderr.readline().startswith("step 3/"):
        assert process.poll() is None
    pids = [int(re.match(r"pid (\d+) ", (out / name).read_text())[1]) for name in (LOCK, f"{LOCK}-1")]
    stopped = [process.pid, pids[1]] if killed == "rank 0" else [process.pid]
    try:
        for pid in stopped:  # so that none of them ends the others
            os.kill(pid, signal.SIGSTOP)
        os.kill(pids[0] if killed == "rank 0" else process.pid, signal.SIGKILL)
        alive = pids[1] if killed == "rank 0" else pids[0]
        if killed == "rank 0":
            wait_until_gone(out / LOCK)
        user_error(lambda: tiny(text, out, **SETTINGS, resume=True), f"pid {alive} on")
    finally:
        for pid in {process.pid, *pids}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
    for name in (LOCK, f"{LOCK}-1"):
        wait_until_gone(out / name)
    last = int(checkpoints(out)[-1][5:])
    tiny(text, out, **SETTINGS | {"steps": last + 1}, resume=True)
    assert checkpoints(out)[-1] == f"step-{last + 1}"
    assert not list(out.rglob(".*"))


def wait_until_gone(path):
    """Until the process that holds this lock is dead: a kill takes a moment."""
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.slow
def test_a_refused_start_of_two_says_it_once(text, tmp_path):
    out = tmp_path / "out"
    with new_folder(out):
        process = two("-m", "regard", *line(text, out))
        _, said = process.communicate(timeout=120)
        assert process.returncode != 0
        assert said.count(f"regard: {out} is in use by pid {os.getpid()} on") == 1
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------- every model

# One of each model, and of each task whose loss needs all rows: FSDP shards the weights, whatever the task.
SHARDED = (
    *("write", "write-lstm-cells", "translate-gru", "translate-transformer", "restore-t5", "fill-bert"),
    *("fill-elmo", "fill-electra", "classify-gpt", "embed-elmo", "see-vit", "caption-soft"),
    *("caption-transformer", "words"),
)

# What DDP does depends on the task alone, not on the blocks: of these that are sharded, some by DDP, too.
BOTH_WAYS = ("write", "translate-transformer", "caption-soft")
EACH = {"steps": 2, "train__evaluate": 2, "train__save": 2}
MEAN = EACH | {"train__evaluate": 1, "train__save": 1, "train__keep": 1, "train__average": 2}
MANY = (
    {  # what two processes make of these is what one makes of them
        f"{case}-{parallel}": {"case": case, "train__parallel": parallel} | EACH
        for case in DIFFERENT
        for parallel in ("ddp", "fsdp")
        if case in BOTH_WAYS or (case in SHARDED) == (parallel == "fsdp")
    }
    | {
        # a batch that is not shared out evenly; and one of a single row, for which one process idles
        f"write-{rows}-{micro}-{parallel}": MEAN
        | {"train__batch": rows, "train__micro": micro, "train__parallel": parallel}
        for rows, micro, parallel in [(5, None, "ddp"), (5, 2, "ddp"), (1, None, "ddp"), (5, 2, "fsdp")]
    }
    | {
        f"{case}-1-{parallel}": {"case": case, "train__tokens": 1, "train__parallel": parallel} | EACH
        for case, parallel in [("translate-gru", "ddp"), ("translate-transformer", "fsdp")]
    }
    | {
        f"translate-ema-{parallel}": {"case": "translate-transformer", "train__parallel": parallel}
        | {"train__ema": 0.4, "data__bpe_dropout": 0.2}
        | MEAN
        for parallel in ("ddp", "fsdp")
    }
    | {"write-lora": {"train__lora": 3, "train__parallel": "fsdp"} | EACH}  # merged in the published model
    | {  # each pair is compared with those of both processes: with 2 and 1; with 16 and 16, and a last one
        f"embed-bert-{rows}": {"case": "embed-bert", "train__batch": rows} | EACH for rows in (3, 32)
    }
)


# A rate so high that the guard soon starts anew.
ROLLBACK = {"train__lr": 3.0, "train__ema": 0.0, "model__dropout": 0.0, "train__micro": 2, "steps": 25}
ROLLBACK |= {"train__evaluate": 10, "train__save": 10}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder with all of MANY and two command lines, run by the same two processes, and their data."""
    crashes = "malloc()", "Fatal Python error: Segmentation fault"
    for _ in range(3):
        try:
            return run_both(tmp_path_factory.mktemp("both"))
        except AssertionError as error:
            # Once in six times, a process ends in torch's gloo: in malloc() ("unaligned tcache chunk"), or by
            # a segmentation fault in wait_tensor, after dozens of runs. Twice, it was once in forty times.
            if not any(crash in str(error) for crash in crashes):
                raise
    return run_both(tmp_path_factory.mktemp("both"))


def run_both(folder):
    data = {case: write_data(case, folder) for case in DIFFERENT}
    commands = {}
    for parallel in ("ddp", "fsdp"):
        (folder / parallel).mkdir()
        words = line(data["write"], folder / parallel / "out", train__parallel=parallel)
        commands[str(folder / parallel)] = words
    runs = [
        (data[settings.get("case", "write")], str(folder / name), settings) for name, settings in MANY.items()
    ]
    for parallel in ("ddp", "fsdp"):
        settings = {"case": "caption-hard", "train__parallel": parallel, "train__schedule": "noam"}
        for name, more in (
            ("whole", {"steps": 3}),
            ("again", {"steps": 1}),
            ("again", {"steps": 3, "resume": True}),
        ):
            runs.append((data["caption-hard"], str(folder / f"{name}-{parallel}"), settings | more))
        runs.append(
            (data["write"], str(folder / f"rollback-{parallel}"), ROLLBACK | {"train__parallel": parallel})
        )
    (folder / "plan.json").write_text(json.dumps({"commands": commands, "runs": runs}))
    process = fork_two("--plan", folder / "plan.json")
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return folder, data


@pytest.fixture(scope="module")
def one(tmp_path_factory, quick):
    """Train with one process, for which train.parallel means nothing, and return the folder."""
    outs = {}

    def train_once(text, settings):
        key = json.dumps({k: v for k, v in settings.items() if k != "train__parallel"})
        if key not in outs:
            out = tmp_path_factory.mktemp("one") / "out"
            tiny(text, out, **settings)
            outs[key] = out
        return outs[key]

    return train_once


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_are_one(both, one, parallel):
    folder, data = both[0] / parallel, both[1]
    text, out = data["write"], folder / "out"
    alone = one(text, SETTINGS)
    answer, said = (
        (folder / f"{name}-0").read_text() + (folder / f"{name}-1").read_text() for name in ("out", "err")
    )
    assert answer == f"{out}\n", said  # once
    assert said.count(f"step {STEPS}/{STEPS}") == 1
    close(alone, out)
    assert checkpoints(out) == checkpoints(alone)
    a, b = (checkpoint.load(o / f"checkpoints/step-{STEPS}")[1] for o in (alone, out))
    assert a.keys() == b.keys()
    assert {name: t.shape for name, t in a.items()} == {name: t.shape for name, t in b.items()}
    # one process goes on with what two have made
    tiny(text, out, **SETTINGS | {"steps": STEPS + 1}, resume=True)
    assert checkpoints(out)[-1] == f"step-{STEPS + 1}"


@pytest.mark.parametrize("name", MANY)
def test_every_model_is_the_same_from_one_or_two(both, one, exact, name):
    folder, data = both
    settings = MANY[name]
    text = data[settings.get("case", "write")]
    alone = one(text, settings)
    assert rows(alone)[-1].get("averaged") == settings.get("train__average")
    if settings.get("case") in DRAWN:  # each process draws its own, so only what was not drawn is the same
        losses = [row["loss"] for row in rows(folder / name) if "loss" in row]
        assert losses == pytest.approx([row["loss"] for row in rows(alone) if "loss" in row], rel=0.05)
    else:
        close(alone, folder / name, loss=1e-9, rtol=1e-7, atol=1e-9)
    assert checkpoints(folder / name) == checkpoints(alone)
    tiny(text, folder / name, **settings | {"steps": 3}, resume=True)  # one goes on with what two have made
    assert checkpoints(folder / name)[-1] == "step-3"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_what_processes_draw_is_drawn_again_after_a_resume(both, parallel):
    """Also the rewards that hard attention compares with, which each process learns from its own rows."""
    straight, again = (
        checkpoint.load(both[0] / f"{name}-{parallel}" / "checkpoints/step-3")[0]
        for name in ("whole", "again")
    )
    assert straight["decoder.look.baseline"].any()
    for name, t in straight.items():
        torch.testing.assert_close(again[name], t, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_roll_back_as_one(both, one, exact, parallel):
    """Also where each has only a part of the weights."""
    alone, out = one(both[1]["write"], ROLLBACK), both[0] / f"rollback-{parallel}"
    assert len(notices(alone)) >= 1
    names = ("scale", "mends", "restarts", "back_to", "back_from", "good")
    # At such a rate, losses differ visibly after a few steps, by rounding.
    assert [guard_of(out)[name] for name in names] == [guard_of(alone)[name] for name in names]
    assert guard_of(out)["mends"] >= 1
    assert [row["step"] for row in rows(out)] == [row["step"] for row in rows(alone)]


# ---------------------------------------------------------------------------------------------- one process


def test_torchruns_environment_says_which_process_this_is(monkeypatch):
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    module = runpy.run_path(distributed.__file__)
    assert (module["RANK"], module["WORLD"], module["LOCAL"]) == (3, 4, 1)


def test_a_group_outlives_what_was_trained_in_it(monkeypatch):
    monkeypatch.setattr(distributed, "WORLD", 2)
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    with distributed.process_group(torch.device("cpu")):
        group = torch.distributed.group.WORLD
    assert not torch.distributed.is_initialized()
    assert any(each is group for each in distributed._groups)  # else DDP frees it, and torch may hang


def test_alone_everything_is_simple():
    with distributed.process_group(torch.device("cpu")):
        assert distributed.all_max(3, 0.5) == [3, 0.5]
        x = torch.arange(3.0)
        assert distributed.all_sum(x) is x
        assert distributed.gather_full(x) is x
        assert distributed.shard_like(x, x) is x
        assert distributed.local_rows(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("count", [12, 13, 1])
def test_every_row_is_somebodys(monkeypatch, world, count):
    monkeypatch.setattr(distributed, "WORLD", world)
    shares = []
    for rank in range(world):
        monkeypatch.setattr(distributed, "RANK", rank)
        shares.append(distributed.local_rows(np.arange(count)).tolist())
    assert sorted(row for share in shares for row in share) == list(range(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) == sizes[0] == -(-count // world)  # the first has the most
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("count", [6, 7, 1, 0])
def test_held_out_batches_are_shared(monkeypatch, parallel, count):
    """Each is measured once; where the weights are shared, too, all processes run as many."""
    batches = [(torch.tensor([n]),) for n in range(count)]
    sums, runs = [], []
    monkeypatch.setattr(distributed, "WORLD", 3)
    monkeypatch.setattr(distributed, "all_max", lambda *numbers: list(numbers))
    monkeypatch.setattr(distributed, "all_sum", lambda x: x)
    task = SimpleNamespace(
        evaluation_batches=lambda valid, tokens: batches,
        remark=lambda *more: None,
        metrics=lambda loss, count, valid: {"loss": loss, "count": count},
    )
    for rank in range(3):
        monkeypatch.setattr(distributed, "RANK", rank)
        run = []
        process = SimpleNamespace(
            config=SimpleNamespace(tokens=1, parallel=parallel),
            model=torch.nn.Identity(),
            device=torch.device("cpu"),
            autocast=contextlib.nullcontext(),
            is_interrupted=lambda: False,
            task=task,
            objective=lambda numbers, run=run: run.append(int(numbers)) or numbers.double(),
        )
        sums.append(Evaluation.measure(process, None))
        runs.append(run)
    assert sum(each["valid_loss"] for each in sums) == sum(range(count))
    assert sum(each["valid_count"] for each in sums) == count
    longest, shortest = -(-count // 3), count // 3
    assert {len(run) for run in runs} == ({longest} if parallel == "fsdp" else {longest, shortest})


@pytest.mark.parametrize(
    ("count", "micro", "sizes"),
    [
        (5, None, [[3], [2]]),
        (5, 2, [[2, 1], [2, 0]]),
        (5, 1, [[1, 1, 1], [1, 1, 0]]),
        (1, None, [[1], [0]]),
        (1, 4, [[1], [0]]),
        (8, 3, [[3, 1], [3, 1]]),
    ],
)
def test_all_have_as_many_parts_and_what_is_missing_is_idle(monkeypatch, count, micro, sizes):
    def batch(samples, rows):
        assert len(rows)
        return torch.tensor(rows), torch.tensor(rows)

    parts = SimpleNamespace(
        samples=SimpleNamespace(rows=lambda step: np.arange(count) + 10 * step),
        task=SimpleNamespace(batch=batch),
        config=SimpleNamespace(micro=micro),
    )
    monkeypatch.setattr(distributed, "WORLD", 2)
    read_rows = []
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "RANK", rank)
        batches = Trainer.batches(parts, step=3)
        assert [targets(b) for b in batches] == sizes[rank]
        assert all(len(b[0]) for b in batches)  # an idle one holds something, that does not count
        read_rows += [row for b in batches if targets(b) for row in b[-1].tolist()]
    assert sorted(read_rows) == [30 + i for i in range(count)]
