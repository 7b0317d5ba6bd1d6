"""Runs that are stopped, killed or damaged are resumed bit for bit."""

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from helpers.disks import resize_disk, small_disk
from helpers.errors import user_error
from helpers.forking import Process
from helpers.runs import (
    DIFFERENT,
    QUESTIONS,
    RUNS,
    UNDIVIDED,
    at_step,
    before,
    checkpoints,
    others_are_slow,
    rows,
    same,
    stopped,
    tiny,
    write_data,
    write_text,
)
from helpers.slow import slow_after
from regard.files import atomic
from regard.runs import checkpoints as checkpoint
from regard.runs.load import load
from regard.training.build import train
from regard.training.objective import Objective
from regard.training.step import TrainStep
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")

STEPS = 12
KINDS = {
    "adamw": {"model__dropout": 0.1, "train__micro": 4},
    "muon": {"model__dropout": 0.1, "train__optimizer": "muon", "train__schedule": "wsd"},
}


@pytest.fixture(scope="module", params=KINDS)
def straight(request, tmp_path_factory, text, quick):
    """An uninterrupted run, and its settings."""
    settings = KINDS[request.param] | {"steps": STEPS, "train__evaluate": 4, "train__save": 5}
    out = tmp_path_factory.mktemp("straight") / "out"
    tiny(text, out, **settings)
    assert {row["step"] for row in rows(out) if "valid_loss" in row} == {4, 8, 12}
    return out, settings


@pytest.fixture(scope="module", params=others_are_slow(DIFFERENT))
def every(request, tmp_path_factory, quick):
    """An uninterrupted run of each model, with its data and settings. Two epochs of pairs."""
    case = request.param
    settings = {"steps": 8, "train__evaluate": 4, "train__save": 5, "train__micro": 4}
    settings |= {"case": case, "model__dropout": 0.1}
    settings |= {
        "translate-gru": {"task__forcing": 0.6},  # draws random numbers too
        "chat-transformer": {"train__optimizer": "muon"},
        "see-vit": {"model__skip": 0.2},  # too
    }.get(case, {})
    folder = tmp_path_factory.mktemp("every")
    data = write_data(case, folder)
    tiny(data, folder / "out", **settings)
    return folder / "out", data, settings


# ------------------------------------------------------------------------------ stopped and gone on with


@pytest.mark.parametrize("step", slow_after(2, [0, 7, 3, 11]))
def test_stopped_before_a_step(straight, text, tmp_path, step):
    """3 and 7 come right before an evaluation, 11 is the last one."""
    out, (weights, settings) = tmp_path / "out", straight
    with stopped(Trainer, "train_step", at_step(step)):
        tiny(text, out, **settings)
    assert checkpoints(out)[-1] == f"step-{step}"
    assert load(out).ask("The", max_new_tokens=3, seed=1) is not None  # what is there can be used
    tiny(text, out, **settings, resume=True)
    same(weights, out)


@pytest.mark.parametrize("step", slow_after(2, [0, 7, 4, 11]))
def test_stopped_while_a_step_is_on_its_way_it_is_done_or_not_begun(straight, text, tmp_path, step):
    """With train.micro the signal comes between the parts of a batch, and the step is dropped."""
    out, (weights, settings) = tmp_path / "out", straight
    with stopped(TrainStep, "forward", lambda trainer, *_: trainer.step == step):
        tiny(text, out, **settings)
    done = step if "train__micro" in settings else step + 1
    assert checkpoints(out)[-1] == f"step-{done}"
    tiny(text, out, **settings, resume=True)
    same(weights, out, state=done < STEPS)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch's own compiler's
@pytest.mark.parametrize("compiled", slow_after(1, ["off", "on"]))
def test_bf16_and_compiled_on_a_cpu(text, tmp_path, compiled):
    """Also where a compiler chooses the kernels: it gives the same ones again."""
    settings = {"steps": 7, "train__evaluate": 4, "train__save": 3, "model__dropout": 0.1}
    settings |= {"train__precision": "bf16", "train__compile": compiled}
    counters.clear()
    tiny(text, tmp_path / "straight", **settings)
    for step in (2, 5):
        with stopped(Trainer, "train_step", at_step(step)):
            tiny(text, tmp_path / "out", **settings, resume=True)
    tiny(text, tmp_path / "out", **settings, resume=True)
    same(tmp_path / "straight", tmp_path / "out")
    assert bool(counters["stats"]["unique_graphs"]) == (compiled == "on")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stopped_again_and_again(straight, text, tmp_path, how):
    """Also right before an evaluation, in the first step and in the last one."""
    out, (weights, settings) = tmp_path / "out", straight
    for step in (0, 1, 3, 5, 7, 11):
        with stopped(Trainer, "train_step", at_step(step), how):
            tiny(text, out, **settings, resume=True)
        assert checkpoints(out)[-1] == f"step-{step}"
    tiny(text, out, **settings, resume=True)
    same(weights, out)


def test_every_model_is_stopped_before_a_step_and_in_one(every, tmp_path):
    """An epoch of pairs has four steps: the first stops of three models in a row are before, at and after
    its border. It is gone on with by the command that began it, and at last by its folder alone."""
    out, (weights, data, settings) = tmp_path / "out", every
    case = settings["case"]
    step = 3 + DIFFERENT.index(case) % 3
    with stopped(Trainer, "train_step", at_step(step)):
        tiny(data, out, **settings, resume=True)
    assert checkpoints(out)[-1] == f"step-{step}"
    if case not in UNDIVIDED:
        with stopped(TrainStep, "forward", at_step(6)):  # between the parts of a batch, if it has several
            tiny(data, out, **settings, resume=True)
        assert checkpoints(out)[-1] in ("step-6", "step-7")
    question = QUESTIONS.get(RUNS[case][0], "8 go")
    question = str(Path(data).parent / question) if question.endswith((".png", ".wav")) else question
    assert isinstance(load(out).ask(question, max_new_tokens=3, seed=1), str)  # what is there can be used
    train(RUNS[case][0], out=out, resume=True)  # by its folder alone, without data and settings
    same(weights, out)


@pytest.mark.parametrize("case", others_are_slow(case for case in DIFFERENT if case != "words"))  # on words
def test_every_model_is_scored_as_it_was_measured(tmp_path, case):
    data = write_data(case, tmp_path)
    model = tiny(data, tmp_path / "out", case, steps=2, valid=data)
    (row,) = (row for row in rows(tmp_path / "out") if "valid_loss" in row)
    scored = model.score(data)
    for name in row.keys() - {"step", "best"}:
        assert row[name] == pytest.approx(scored[name.removeprefix("valid_")], rel=1e-5), name


def measuring_at(*steps):
    """Whether the objective is called by an evaluation, at one of these steps."""
    return lambda objective, *_: not objective.model.training and Measured.step in steps


class Measured:
    step = 0


@pytest.mark.parametrize("step", slow_after(1, [8, 4, 12]))
def test_stopped_in_the_middle_of_an_evaluation(straight, text, tmp_path, step):
    out, (weights, settings) = tmp_path / "out", straight

    def note(trainer):
        Measured.step = trainer.step

    with before(Trainer, "evaluate", note):
        for _ in range(2):  # the second time, the run begins with the evaluation that is owed
            with stopped(Objective, "forward", measuring_at(step)):
                tiny(text, out, **settings, resume=True)
            assert checkpoints(out)[-1] == f"step-{step}"
            assert max(row["step"] for row in rows(out) if "valid_loss" in row or row["step"] == 1) < step
        if step < STEPS:  # measured, and lost by a kill before the next save
            with before(Trainer, "train_step", die), pytest.raises(Died):
                tiny(text, out, **settings, resume=True)
    tiny(text, out, **settings, resume=True)
    tiny(text, out, **settings, resume=True)
    same(weights, out, state=step < STEPS)


class Died(BaseException):
    pass


def die(*_):
    raise Died


def test_more_than_one_epoch_and_a_stop_in_it(text, tmp_path):
    """Fewer windows than steps take: every epoch has another order."""
    short = write_text(tmp_path / "short.txt", lines=4)
    settings = {"steps": 15, "train__evaluate": 6, "model__dropout": 0.2}
    tiny(short, tmp_path / "whole", **settings)
    with stopped(Trainer, "train_step", at_step(7)):
        tiny(short, tmp_path / "out", **settings)
    tiny(short, tmp_path / "out", **settings, resume=True)
    same(tmp_path / "whole", tmp_path / "out")


def test_killed_at_any_moment(tmp_path):
    """SIGKILL, repeatedly, at every kind of file operation while saving and at random moments."""
    case, steps = "write", 90
    with Process("-m", "helpers.killing", case, write_data(case, tmp_path), tmp_path, steps, 0) as process:
        answer, errors = process.communicate()
    assert process.returncode == 0, answer + errors
    result = json.loads(answer)
    print(result)
    assert result["kills"] > result["saving"]  # also between two saves
    touches = {
        f"save:{name}" for name in ("open", "raw_bytes", "fsync", "replace", "unlink", "mkdir", "rename")
    }
    assert touches <= result["where"].keys()
    same(tmp_path / "whole", tmp_path / "killed")


# -------------------------------------------------------------------------------------- damage and trouble


@pytest.fixture(scope="module")
def interrupted(straight, text, tmp_path_factory):
    """A run that was stopped before its last step, and has an earlier checkpoint."""
    out = tmp_path_factory.mktemp("interrupted") / "out"
    with stopped(Trainer, "train_step", at_step(11)):
        tiny(text, out, **straight[1])
    assert checkpoints(out) == ["step-10", "step-11"]
    return out


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    straight, interrupted, text, tmp_path, capsys, name, how
):
    weights, settings = straight
    out = shutil.copytree(interrupted, tmp_path / "out")
    path = out / "checkpoints" / "step-11" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if how == "cut" else content)
    capsys.readouterr()
    tiny(text, out, **settings, resume=True)
    said = capsys.readouterr().err
    assert f"{path.parent} is damaged" in said
    assert f"from {out / 'checkpoints' / 'step-10'}" in said
    aside = out / "checkpoints" / "step-11.damaged"
    assert str(aside) in said
    assert how == "gone" or (aside / name).is_file()
    same(weights, out)


def test_a_full_disk_at_a_later_save(straight, text, tmp_path, monkeypatch):
    """The error is one line, the earlier checkpoint stays valid, and the run resumes from it."""
    weights, settings = straight
    out = tmp_path / "out"
    true, calls = atomic.flush, []

    def full(path):
        if "step-10" in str(path):
            calls.append(path)
            if len(calls) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        true(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "flush", full)
        user_error(lambda: tiny(text, out, **settings), out, "No space left", "--resume")
    assert checkpoints(out) == ["step-5"]
    assert checkpoint.is_intact(out / "checkpoints" / "step-5")
    assert not list(out.rglob(".*"))
    tiny(text, out, **settings, resume=True)
    same(weights, out)


def test_a_full_disk_at_the_first_save_leaves_nothing(text, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic, "flush", full)
    user_error(lambda: tiny(text, tmp_path / "out", steps=3), tmp_path / "out", "No space left")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_really_full(text, tmp_path):
    """Space for one and a half checkpoints."""
    with small_disk(tmp_path / "disk", "320k") as disk:
        out = disk / "out"
        settings = {"steps": 8, "train__save": 2, "train__evaluate": 100, "model__dim": 24, "train__keep": 9}
        user_error(lambda: tiny(text, out, **settings), out, "No space left", "--resume")
        assert len(checkpoints(out)) >= 1
        assert all(checkpoint.is_intact(p) for p in (out / "checkpoints").iterdir())
        resize_disk(disk, "4m")
        tiny(text, out, **settings, resume=True)
        tiny(text, tmp_path / "whole", **settings)
        same(tmp_path / "whole", out)


def test_out_of_memory_says_what_to_do(text, tmp_path, monkeypatch):
    def greedy(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Objective, "forward", greedy)
    user_error(lambda: tiny(text, tmp_path / "out", steps=3), "train.micro")
    assert list(tmp_path.iterdir()) == []
