"""Runs: what may change when they are resumed, their folders, and starting from other models."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from helpers.errors import user_error
from helpers.runs import TINY, at_step, checkpoints, rows, same, stopped, tiny, write_data, write_text
from regard.files.tensors import write_tensors
from regard.runs.load import load
from regard.tasks import Write
from regard.text.tokenizer_kinds import KINDS as KINDS_OF_TOKENIZER
from regard.training.build import train
from regard.training.guard import Guard, Rollback
from regard.training.job import free_folder
from regard.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick")


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


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
    names |= {"log.jsonl", "curve.svg", "README.md", "checkpoints", "fingerprints.json"}
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


def test_a_base_that_changed_since_is_refused(finished, text, tmp_path, monkeypatch):
    """It is read again if a run begins again: without checkpoints, or if the guard goes back so far."""
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(finished, base)
    settings = {"train.device": "cpu", "train.batch": 3, "train.log": 1}
    train("write", text, out=out, base=base, steps=1, set=settings)
    weights = load_file(base / "model.safetensors")
    write_tensors(base / "model.safetensors", {name: t + 1 for name, t in weights.items()})
    train("write", text, out=out, steps=2, resume=True)  # its checkpoints have all that it needs
    saved = {p: p.read_bytes() for p in (out / "checkpoints").rglob("*.*") if p.is_file()}
    again = lambda: train("write", text, out=out, steps=4, resume=True)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "see_gradient", lambda guard, *_: Rollback(0, "back to the start"))
        user_error(again, base, "model.safetensors", out)
    assert saved == {p: p.read_bytes() for p in (out / "checkpoints").rglob("*.*") if p.is_file()}
    shutil.rmtree(out / "checkpoints")
    (out / "model.safetensors").unlink()
    (out / "log.jsonl").write_text("")
    user_error(again, base, "model.safetensors", out)


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


# ------------------------------------------------------------------------------------ a run's own recipe


def test_a_runs_own_recipe_trains_the_same_again(finished, text, tmp_path):
    """With its data, and with the same given by hand."""
    for n, data in enumerate(([], [text])):
        train(str(finished / "recipe.toml"), *data, out=tmp_path / str(n))
        same(finished, tmp_path / str(n))


def test_a_runs_own_recipe_for_other_data(tmp_path):
    """Classes follow from the new data, and so does what is held out; the model is that of the run."""
    data = Path(write_data("classify-bert", tmp_path))
    tiny(str(data), tmp_path / "first", "classify-bert", steps=1, valid=str(data))
    other = tmp_path / "other.tsv"
    other.write_text(data.read_text().replace("\tsmall\n", "\ttiny\n"))
    train(str(tmp_path / "first" / "recipe.toml"), str(other), out=tmp_path / "second")
    first, second = load(tmp_path / "first"), load(tmp_path / "second")
    assert second.task.config.labels == ("large", "middling", "tiny")
    assert len(second.task.config.weights) == 3
    assert second.model.config.dim == first.model.config.dim
    assert "valid = []" in (tmp_path / "second" / "recipe.toml").read_text()


def test_a_runs_own_recipe_begins_from_the_same_model(finished, text, tmp_path):
    shutil.copytree(finished, tmp_path / "base")
    tiny(text, tmp_path / "first", base=tmp_path / "base", steps=2)
    train(str(tmp_path / "first" / "recipe.toml"), text, out=tmp_path / "second")
    same(tmp_path / "first", tmp_path / "second")


def test_whole_numbers_may_be_written_as_others(text, tmp_path):
    """1e2 is 100, for the plan, too."""
    settings = {"model.dim": 16, "model.depth": 1, "data.vocab": 300, "train.batch": 2, "train.steps": 2}
    for out, kind in (("a", int), ("b", float)):
        values = {key: kind(value) for key, value in settings.items()}
        train("write", text, out=tmp_path / out, set=values | {"train.device": "cpu"})
    same(tmp_path / "a", tmp_path / "b")


# ----------------------------------------------------------------------------------------------- warm-up


def test_warm_up_is_a_share_of_a_short_run(text, tmp_path):
    """A recipe's 100 steps of warm-up would be all of a short run. What is asked for holds."""
    settings = {key: value for key, value in TINY.items() if key != "train.warmup"}
    for out, steps, more, warmup in (
        ("short", 8, {}, 2),
        ("asked", 8, {"train.warmup": 7}, 7),
        ("one", 1, {}, 0),
    ):
        train("write", text, out=tmp_path / out, steps=steps, set=settings | more)
        assert f"warmup = {warmup}\n" in (tmp_path / out / "recipe.toml").read_text()
    assert max(row["lr"] for row in rows(tmp_path / "short") if "lr" in row) == pytest.approx(0.01)
    with stopped(Trainer, "train_step", at_step(1)):
        train("write", text, out=tmp_path / "resumed", steps=8, set=settings)
    train("write", text, out=tmp_path / "resumed", steps=8, set=settings, resume=True)
    same(tmp_path / "short", tmp_path / "resumed")


@pytest.mark.parametrize("place", ["recipe", "changes"])
def test_warm_up_of_100_steps_in_a_run_of_60(text, tmp_path, capsys, place):
    """It was asked for and stays, since the run may go on; but that no step has the highest rate is said."""
    recipe, changes = tmp_path / "mine.toml", TINY | {"train.warmup": 100}
    if place == "recipe":
        changes = {key: value for key, value in TINY.items() if not key.startswith("train.warm")}
        sections = '[model]\nkind = "gpt"\n[task]\nname = "write"\n[train]\nsteps = 60\nwarmup = 100\n'
        recipe.write_text(sections)
    name, steps = ("write", 60) if place == "changes" else (str(recipe), None)
    for resume, last in ((False, 3), (True, 7)):
        with stopped(Trainer, "train_step", at_step(last)):
            more = {"set": changes | {"train.log": 1}, "resume": resume}
            train(name, text, out=tmp_path / "run", steps=steps, **more)
    rates = [row["lr"] for row in rows(tmp_path / "run") if "lr" in row]
    assert rates == pytest.approx([0.01 * n / 100 for n in range(1, len(rates) + 1)])
    assert "train.warmup=100 is more than the 60 steps of this run" in capsys.readouterr().err
