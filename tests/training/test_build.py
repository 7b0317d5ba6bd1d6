"""Runs: started, stopped, killed, damaged, resumed bit for bit, and never overwritten."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from helpers.errors import user_error
from helpers.runs import (
    QUESTIONS,
    RUNS,
    TINY,
    WHOLE,
    at_step,
    before,
    checkpoints,
    rows,
    same,
    stopped,
    tiny,
    unmeasured,
    write_data,
    write_text,
)
from regard.files import atomic
from regard.runs import checkpoints as checkpoint
from regard.runs.load import load
from regard.tasks import Write
from regard.text.tokenizer import KINDS as KINDS_OF_TOKENIZER
from regard.training.build import free_folder, train
from regard.training.trainer import Objective, Trainer

STEPS = 12
KINDS = {
    "adamw": {"model__dropout": 0.1, "train__micro": 4},
    "muon": {"model__dropout": 0.1, "train__optimizer": "muon", "train__schedule": "wsd"},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def text(place):
    return write_text(place / "text.txt")


@pytest.fixture(scope="module", params=KINDS)
def straight(request, place, text):
    """An uninterrupted run, and its settings."""
    settings = KINDS[request.param] | {"steps": STEPS, "train__evaluate": 4, "train__save": 5}
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        tiny(text, place / request.param, **settings)
    assert {row["step"] for row in rows(place / request.param) if "valid_loss" in row} == {4, 8, 12}
    return place / request.param, settings


@pytest.fixture(scope="module", params=RUNS)
def every(request, place):
    """An uninterrupted run of each model, with its data and settings. Three epochs of pairs."""
    case = request.param
    settings = {"steps": STEPS, "train__evaluate": 4, "train__save": 5, "train__micro": 4}
    settings |= {"case": case, "model__dropout": 0.1}
    settings |= {
        "translate-gru": {"task__forcing": 0.6},  # draws random numbers too
        "chat-transformer": {"train__optimizer": "muon"},
        "see-vit": {"model__skip": 0.2},  # too
    }.get(case, {})
    folder = place / f"every-{case}"
    folder.mkdir()
    data = write_data(case, folder)
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        tiny(data, folder / "out", **settings)
    return folder / "out", data, settings


@pytest.fixture(scope="module")
def finished(place, text):
    """A finished run of six steps."""
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        tiny(text, place / "finished", steps=6, train__save=2, train__evaluate=3)
    return place / "finished"


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ------------------------------------------------------------------------------ stopped and gone on with


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [0, 3, 7, 11])
def test_stopped_before_a_step(straight, text, tmp_path, step, how):
    """3 and 7 come right before an evaluation, 11 is the last one."""
    out, (weights, settings) = tmp_path / "out", straight
    with stopped(Trainer, "train_step", at_step(step), how):
        tiny(text, out, **settings)
    assert checkpoints(out)[-1] == f"step-{step}"
    assert load(out).ask("The", max_new_tokens=3, seed=1) is not None  # what is there can be used
    tiny(text, out, **settings, resume=True)
    same(weights, out)


@pytest.mark.parametrize("step", [0, 4, 7, 11])
def test_stopped_while_a_step_is_on_its_way_it_is_done_or_not_begun(straight, text, tmp_path, step):
    """With train.micro the signal comes between the parts of a batch, and the step is dropped."""
    out, (weights, settings) = tmp_path / "out", straight
    with stopped(Trainer, "forward", lambda trainer, *_: trainer.step == step):
        tiny(text, out, **settings)
    done = step if "train__micro" in settings else step + 1
    assert checkpoints(out)[-1] == f"step-{done}"
    tiny(text, out, **settings, resume=True)
    same(weights, out, state=done < STEPS)


def test_stopped_again_and_again(straight, text, tmp_path):
    out, (weights, settings) = tmp_path / "out", straight
    for step in (1, 2, 5, 6, 8, 9, 11):
        with stopped(Trainer, "train_step", at_step(step)):
            tiny(text, out, **settings, resume=True)
    tiny(text, out, **settings, resume=True)
    same(weights, out)


def test_every_model_is_stopped_before_steps_and_in_them(every, tmp_path):
    """An epoch of pairs has four steps: the stops are before, at and after its borders."""
    out, (weights, data, settings) = tmp_path / "out", every
    for step in (0, 3, 4, 8, 9):
        with stopped(Trainer, "train_step", at_step(step)):
            tiny(data, out, **settings, resume=True)
        assert checkpoints(out)[-1] == f"step-{step}"
        if settings["case"] in WHOLE:
            continue
        with stopped(Trainer, "forward", at_step(step + 1)):  # between the parts of a batch
            tiny(data, out, **settings, resume=True)
        assert checkpoints(out)[-1] == f"step-{step + 1}"
    question = QUESTIONS.get(RUNS[settings["case"]][0], "8 go")
    question = str(Path(data).parent / question) if question.endswith(".png") else question
    assert isinstance(load(out).ask(question, max_new_tokens=3, seed=1), str)  # what is there can be used
    tiny(data, out, **settings, resume=True)
    same(weights, out)


def test_every_model_is_gone_on_with_by_its_folder_alone(every, tmp_path):
    out, (weights, data, settings) = tmp_path / "out", every
    with stopped(Trainer, "train_step", at_step(6)):
        tiny(data, out, **settings)
    train(RUNS[settings["case"]][0], out=out, resume=True)
    same(weights, out)


@pytest.mark.parametrize("case", [case for case in RUNS if case != "words"])  # scored on lists of words
def test_every_model_is_scored_as_it_was_measured(tmp_path, case):
    data = write_data(case, tmp_path)
    model = tiny(data, tmp_path / "out", case, steps=2, valid=data)
    (row,) = (row for row in rows(tmp_path / "out") if "valid_loss" in row)
    scored = model.score(data)
    for name in row.keys() - {"step"}:
        assert row[name] == pytest.approx(scored[name.removeprefix("valid_")], rel=1e-5), name


def measuring_at(*steps):
    """Whether the objective is called by an evaluation, at one of these steps."""
    return lambda objective, *_: not objective.model.training and Measured.step in steps


class Measured:
    step = 0


@pytest.mark.parametrize("step", [4, 8, 12])
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


OFTEN = {"write": 200, "translate-lstm": 40}


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        *OFTEN.items(),
        *(pytest.param(case, 16, marks=pytest.mark.slow) for case in RUNS if case not in OFTEN),
    ],
)
def test_killed_at_any_moment(tmp_path, case, steps):
    """SIGKILL, repeatedly, at every file operation while saving and at random moments."""
    script = Path(__file__).parents[1] / "helpers" / "killing.py"
    process = subprocess.run(
        [sys.executable, script, case, write_data(case, tmp_path), tmp_path, str(steps), "0"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.returncode == 0, process.stdout + process.stderr
    result = json.loads(process.stdout)
    print(result)
    assert result["kills"] >= steps // 4
    assert result["saving"] >= min(10, steps // 4)
    touches = {
        f"save:{name}" for name in ("open", "raw_bytes", "fsync", "replace", "unlink", "mkdir", "rename")
    }
    if case == "write":  # which is killed often enough for each of them
        assert touches <= result["where"].keys()
    same(tmp_path / "whole", tmp_path / "killed")


# ------------------------------------------------------------------------------------ what may be changed


def test_a_finished_run_is_left_as_it_is(finished, text):
    before = {k: v for k, v in files(finished).items() if k != "README.md"}
    tiny(text, finished, resume=True, steps=6)
    assert {k: v for k, v in files(finished).items() if k != "README.md"} == before


def test_a_longer_run_goes_on(finished, text, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    tiny(text, tmp_path / "out", resume=True, steps=9)
    assert checkpoints(tmp_path / "out")[-1] == "step-9"
    assert [row["step"] for row in rows(tmp_path / "out") if "loss" in row] == list(range(1, 10))


def test_what_was_asked_for_last_holds_for_the_next_sitting(finished, text, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    with stopped(Trainer, "train_step", at_step(7)):
        tiny(text, out, resume=True, steps=9)
    train("write", out=out, resume=True)
    assert checkpoints(out)[-1] == "step-9"


@pytest.mark.parametrize(
    "change",
    [
        {"train.lr": 0.02},
        {"train.batch": 3},
        {"model.dim": 16},
        {"model.kv_heads": 1},
        {"model.preset": "pico"},
        {"data.holdout": 0.2},
        {"model.dmi": 8},
        {"train.leyer": 1},
    ],
)
def test_what_changes_a_step_cannot_change_on_the_way(finished, text, change):
    before = files(finished)
    (key,) = change
    key = "model." if key == "model.preset" else key
    user_error(lambda: train("write", text, out=finished, set=change, resume=True), key)
    assert files(finished) == before


def test_the_same_preset_may_be_named_again(text, tmp_path):
    settings = {"model.preset": "pico", "model.dim": 8, "train.device": "cpu"}
    for resume in (False, True):
        train("write", text, out=tmp_path / "out", steps=2, set=settings, resume=resume)
    settings["model.preset"] = "pic"
    user_error(lambda: train("write", text, out=tmp_path / "out", set=settings, resume=True), "pic", "pico?")


def test_other_data_are_noticed(finished, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(Path(text).read_text().replace("fox", "cat"))
    before = files(finished)
    user_error(lambda: tiny(str(other), finished, resume=True, steps=9), "data", finished)
    assert files(finished) == before
    moved = shutil.copy(text, tmp_path / "moved.txt")  # the same, elsewhere
    shutil.copytree(finished, tmp_path / "out")
    tiny(moved, tmp_path / "out", resume=True, steps=7)


def test_resume_without_a_run_begins_one(finished, text, tmp_path):
    tiny(text, tmp_path / "new", resume=True, steps=6, train__save=2, train__evaluate=3)
    same(finished, tmp_path / "new")


# -------------------------------------------------------------------------------------- damage and trouble


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_used(
    straight, text, tmp_path, capsys, name, how
):
    weights, settings = straight
    out = tmp_path / "out"
    with stopped(Trainer, "train_step", at_step(11)):
        tiny(text, out, **settings)
    assert checkpoints(out) == ["step-10", "step-11"]
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
    same(weights, out)


def test_when_every_checkpoint_is_damaged_it_begins_again(finished, text, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    for folder in (out / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    tiny(text, out, resume=True, steps=6)
    assert capsys.readouterr().err.count("is damaged") == 2
    same(finished, out)


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
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.decode().strip()}")
    try:
        out = disk / "out"
        settings = {"steps": 8, "train__save": 2, "train__evaluate": 100, "model__dim": 24, "train__keep": 9}
        user_error(lambda: tiny(text, out, **settings), out, "No space left", "--resume")
        assert len(checkpoints(out)) >= 1
        assert all(checkpoint.is_intact(p) for p in (out / "checkpoints").iterdir())
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        tiny(text, out, **settings, resume=True)
        tiny(text, tmp_path / "whole", **settings)
        same(tmp_path / "whole", out)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_out_of_memory_says_what_to_do(text, tmp_path, monkeypatch):
    def greedy(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Objective, "forward", greedy)
    user_error(lambda: tiny(text, tmp_path / "out", steps=3), "train.micro")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------- folders


def test_a_run_is_never_overwritten(finished, text):
    before = files(finished)
    user_error(lambda: tiny(text, finished, steps=1), finished, "--resume")
    assert files(finished) == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_other_things_is_left_alone(text, tmp_path, resume):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    user_error(lambda: tiny(text, tmp_path / "mine", steps=1, resume=resume), tmp_path / "mine", "not empty")
    assert files(tmp_path) == {"mine/thesis.txt": b"years of work"}


def test_a_file_is_not_a_folder(text, tmp_path):
    (tmp_path / "out").write_text("mine")
    user_error(lambda: tiny(text, tmp_path / "out", steps=1), tmp_path / "out", "file")
    assert files(tmp_path) == {"out": b"mine"}


def test_an_empty_folder_is_taken(text, tmp_path):
    (tmp_path / "out").mkdir()
    tiny(text, tmp_path / "out", steps=1)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_without_out_the_next_free_number(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [regard.train("write", text, steps=1, set=TINY).folder for _ in range(3)]
    assert folders == [Path("runs/write"), Path("runs/write-2"), Path("runs/write-3")]
    assert free_folder(Path("runs/write")) == Path("runs/write-4")


def test_a_run_is_a_whole_folder(finished, text):
    names = {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "recipe.toml"}
    names |= {"log.jsonl", "curve.svg", "README.md", "checkpoints"}
    assert {p.name for p in finished.iterdir()} == names
    assert checkpoints(finished) == ["step-4", "step-6"]
    weights = load_file(finished / "model.safetensors")  # Hugging Face's own reader takes it
    assert weights.keys() == load(finished).model.state_dict().keys()
    recipe = regard.runs.recipe.read_file(finished / "recipe.toml")
    assert recipe["train"]["seed"] == 1337
    assert recipe["data"]["files"] == [os.path.abspath(text)]


def test_its_own_recipe_makes_the_same_run(finished, tmp_path):
    sections = regard.runs.recipe.read_file(finished / "recipe.toml")
    files, _ = sections["data"].pop("files"), sections["data"].pop("valid")
    (tmp_path / "again.toml").write_text(regard.runs.recipe.to_toml(sections))
    train(str(tmp_path / "again.toml"), *files, out=tmp_path / "out")
    same(finished, tmp_path / "out")


def test_another_seed_makes_another_run(finished, text, tmp_path):
    tiny(text, tmp_path / "out", steps=6, train__seed=7)
    a, b = (load_file(out / "model.safetensors") for out in (finished, tmp_path / "out"))
    assert any(not torch.equal(a[name], b[name]) for name in a)


# -------------------------------------------------------------------------------------- from another model


def test_from_another_run(finished, tmp_path):
    """Tokenizer, sizes and weights are the parent's; unknown characters are accepted."""
    more = tmp_path / "more.txt"
    more.write_text("Übung macht den Meister, sagt der Fuchs. " * 20)
    settings = {"train.device": "cpu", "train.lr": 1e-9, "train.batch": 3}
    train("write", str(more), out=tmp_path / "out", base=finished, steps=1, set=settings)
    parent = load_file(finished / "model.safetensors")
    child = load_file(tmp_path / "out" / "model.safetensors")
    assert child.keys() == parent.keys()
    for name in parent:
        torch.testing.assert_close(child[name], parent[name], atol=1e-6, rtol=0)
    tokenizer, parents = (out / "tokenizer.json" for out in (tmp_path / "out", finished))
    assert tokenizer.read_bytes() == parents.read_bytes()
    assert load(tmp_path / "out").model.config == load(finished).model.config


def test_killed_before_its_first_save_it_starts_from_that_run_again(finished, text, tmp_path):
    settings = {"train.device": "cpu", "train.batch": 3, "train.log": 1}
    train("write", text, out=tmp_path / "a", base=finished, steps=3, set=settings)
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # as a kill would leave it
    shutil.rmtree(tmp_path / "b" / "checkpoints")
    (tmp_path / "b" / "model.safetensors").unlink()
    (tmp_path / "b" / "log.jsonl").write_text("")
    train("write", text, out=tmp_path / "b", steps=3, resume=True)
    same(tmp_path / "a", tmp_path / "b")


def test_from_another_run_of_other_sizes(finished, text, tmp_path):
    user_error(
        lambda: train("write", text, out=tmp_path / "out", base=finished, steps=1, set={"model.dim": 16}),
        "model.dim=16",
        finished,
    )
    assert list(tmp_path.iterdir()) == []
    user_error(
        lambda: train("write", text, out=tmp_path / "out", base=finished, set={"model.preset": "tiny"}),
        "model.context=64",
    )
    assert list(tmp_path.iterdir()) == []
    settings = {"model.dim": TINY["model.dim"], "train.device": "cpu"}  # what agrees may be said
    train("write", text, out=tmp_path / "out", base=finished, steps=1, set=settings)


@pytest.mark.parametrize("case", ["classify-bert", "tag-gpt", "span-bert"])
def test_from_a_model_that_tells_the_same_with_its_head(tmp_path, case):
    """For any order of its labels; with other labels, there is a new head."""
    data = Path(write_data(case, tmp_path))
    parent = tiny(str(data), tmp_path / "parent", case, steps=2)
    settings = {"base": tmp_path / "parent", "steps": 1, "train__lr": 1e-9, "model__dropout": 0.0}
    tiny(str(data), tmp_path / "same", case, **settings)
    mine, parents = (load_file(tmp_path / out / "model.safetensors") for out in ("same", "parent"))
    for name, t in parents.items():
        torch.testing.assert_close(mine[name], t, atol=1e-6, rtol=0)
    if case == "span-bert":  # which has no labels
        return
    labels = list(parent.task.config.labels)
    turned = tiny(str(data), tmp_path / "turned", case, **settings, task__labels=labels[::-1])
    assert turned.task.config.labels == tuple(labels[::-1])
    mine = load_file(tmp_path / "turned" / "model.safetensors")
    torch.testing.assert_close(mine["head.weight"], parents["head.weight"].flip(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(mine["head.bias"], parents["head.bias"].flip(0), atol=1e-6, rtol=0)
    last = labels[-1]
    data.write_text(data.read_text().replace(last, last + "X"))
    tiny(str(data), tmp_path / "other", case, **settings)
    mine = load_file(tmp_path / "other" / "model.safetensors")
    torch.testing.assert_close(mine["model.embed.weight"], parents["model.embed.weight"], atol=1e-6, rtol=0)
    assert not torch.allclose(mine["head.weight"], parents["head.weight"], atol=1e-3)


def test_from_what_is_not_a_model(text, tmp_path):
    user_error(lambda: tiny(text, tmp_path / "out", base=tmp_path / "none", steps=1), tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ small texts


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZER)
def test_one_sentence_is_enough(tmp_path, kind):
    (tmp_path / "hello.txt").write_text("Hello world.")
    model = tiny(str(tmp_path / "hello.txt"), tmp_path / "out", steps=3, data__tokenizer=kind)
    assert isinstance(model.ask("Hello", max_new_tokens=5, seed=3), str)
    assert checkpoints(tmp_path / "out") == ["step-3"]


def test_text_without_a_part_to_measure_on(text, tmp_path):
    """The last weights are the model."""
    settings = {"steps": 5, "data__holdout": 0.0, "train__evaluate": 2, "train__save": 2}
    tiny(text, tmp_path / "out", **settings)
    assert not any("valid_loss" in row for row in rows(tmp_path / "out"))
    top, last = tmp_path / "out", tmp_path / "out" / "checkpoints" / "step-5"
    assert (top / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    assert "without a validation set" in (top / "README.md").read_text()
    with stopped(Trainer, "train_step", at_step(3)):
        tiny(text, tmp_path / "stopped", **settings)
    tiny(text, tmp_path / "stopped", **settings, resume=True)
    same(tmp_path / "out", tmp_path / "stopped")


def test_a_context_longer_than_the_text(tmp_path):
    short = write_text(tmp_path / "short.txt", lines=1)
    tiny(short, tmp_path / "out", steps=2, model__context=4001)
    assert load(tmp_path / "out").model.config.context == 4001


def test_valid_given_apart(text, tmp_path):
    other = write_text(tmp_path / "valid.txt", lines=7)
    model = tiny(text, tmp_path / "out", steps=3, valid=other)
    last = rows(tmp_path / "out")[-1]
    scored = model.score(other)
    assert last["valid_loss"] == pytest.approx(scored["loss"], rel=1e-5)
    assert last["valid_bits_per_byte"] == pytest.approx(scored["bits_per_byte"], rel=1e-5)
    assert isinstance(model.task, Write)
