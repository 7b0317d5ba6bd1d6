"""Run folders: one process at a time writes to them, and nothing that was there is lost."""

import errno
import hashlib
import json
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

import regard
from helpers.disks import small_disk
from helpers.errors import user_error
from helpers.forking import Process
from helpers.locking import held
from helpers.runs import at_step, before, checkpoints, rows, same, stopped, tiny, unmeasured, write_text
from regard.data import DataConfig, prepare
from regard.files.atomic import new_folder
from regard.files.locks import LOCK
from regard.runs import checkpoints as checkpoint
from regard.runs.export import export
from regard.runs.film import frame_path
from regard.runs.load import load
from regard.training import build
from regard.training.background import BackgroundWriter
from regard.training.checkpointer import Checkpointer
from regard.training.trainer import Trainer

SETTINGS = {"steps": 6, "train__save": 2, "train__evaluate": 3}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("finished") / "out"
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        tiny(text, out, **SETTINGS)
    return out


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def files(folder: Path) -> dict[str, Any]:
    return {str(p.relative_to(folder)): p.is_file() and p.read_bytes() for p in sorted(folder.rglob("*"))}


# ------------------------------------------------------------------------------------ two at the same time


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_a_second_start_is_refused_and_the_first_goes_on(finished, text, tmp_path, exists, resume):
    """While the first reads its data, before its first step, and later."""
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    refusals = []

    def start_again(*_):
        there = files(tmp_path)
        user_error(lambda: tiny(text, out, **SETTINGS, resume=resume), out, f"pid {os.getpid()} on")
        assert files(tmp_path) == there
        refusals.append(there)

    with before(build, "read_data", start_again), before(Trainer, "train_step", start_again):
        tiny(text, out, **SETTINGS)
    assert len(refusals) == 7
    same(finished, out)


def test_one_of_ten_starts_trains(copy, text, tmp_path):
    """In a folder that is new, in one that is empty, and where a run is continued."""
    new, empty = tmp_path / "new", tmp_path / "empty"
    empty.mkdir()
    shutil.rmtree(copy / "checkpoints" / "step-6")
    with Process("-m", "helpers.racing", text, new, empty, copy) as process:
        lines, errors = process.communicate()
    assert process.returncode == 0, errors
    for out, line in zip((new, empty, copy), lines.splitlines(), strict=True):
        answers = dict(json.loads(line))
        (winner,) = (pid for pid, error in answers.items() if not error)
        assert len(answers) == 10
        for error in answers.values():
            assert not error or str(out) in error
            assert not error or f"pid {winner} on" in error
        assert checkpoints(out)[-1] == ("step-4" if out == copy else "step-2")
        assert load(out).ask("The", max_new_tokens=2, seed=1) is not None
    assert not list(tmp_path.rglob(".*"))


def test_a_run_can_be_read_while_it_trains(text, tmp_path):
    out, answers = tmp_path / "out", []

    def ask(trainer):
        if trainer.step == 4:
            assert (out / LOCK).exists()
            answers.append(load(out).ask("The", max_new_tokens=2, seed=1))
            regard.at_step(load(out), 2)

    with before(Trainer, "train_step", ask):
        tiny(text, out, **SETTINGS)
    assert len(answers) == 1


def test_a_killed_run_is_continued_with_a_line(finished, text, tmp_path, capsys):
    """Its lock is still there."""
    out = tmp_path / "out"
    with stopped(Trainer, "train_step", at_step(3)):
        tiny(text, out, **SETTINGS)
    with held(0, out) as process:
        process.kill()
        process.wait()
    capsys.readouterr()
    tiny(text, out, **SETTINGS, resume=True)
    assert f"pid {process.pid} on" in capsys.readouterr().err
    same(finished, out)


def test_killed_while_reading_its_data_it_starts_again(finished, text, tmp_path):
    with held("new", tmp_path / "out") as process:
        process.kill()
        process.wait()
    assert [p.name for p in tmp_path.iterdir()] == [".out.partial"]
    tiny(text, tmp_path / "out", **SETTINGS, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    same(finished, tmp_path / "out")


def test_export_and_prepare_into_a_folder_in_use(finished, text, tmp_path):
    out, model = tmp_path / "out", load(finished)
    commands = [
        lambda: prepare([text], out, DataConfig(), []),
        lambda: export(model, out, "hf"),
        lambda: tiny(text, out, **SETTINGS),
    ]
    for exists in (False, True):
        if exists:
            out.mkdir()
        with new_folder(out):
            for command in commands:
                user_error(command, f"pid {os.getpid()} on")
    for command in commands:  # the empty folder is free again, and then it is not
        command()
        there = files(out)
        for other in commands:
            user_error(other, out)
        assert files(out) == there
        shutil.rmtree(out)


# --------------------------------------------------------------------------------- folders that exist


def test_an_empty_disk_is_used_in_place(finished, text, tmp_path):
    out = tmp_path / "out"
    (out / "lost+found").mkdir(parents=True)
    out.chmod(0o700)
    before_training = out.stat()
    user_error(lambda: tiny(str(tmp_path / "none.txt"), out, **SETTINGS), "none.txt")
    assert [p.name for p in out.iterdir()] == ["lost+found"]
    with before(Trainer, "train_step", fail), pytest.raises(ZeroDivisionError):
        tiny(text, out, **SETTINGS)
    assert [p.name for p in out.iterdir()] == ["lost+found"]
    tiny(text, out, **SETTINGS)
    same(finished, out)
    after = out.stat()
    assert (after.st_ino, after.st_mode) == (before_training.st_ino, before_training.st_mode)


def fail(*_):
    raise ZeroDivisionError


def test_a_mount_point(text, tmp_path):
    with small_disk(tmp_path / "disk", "4m") as out:
        tiny(text, out, steps=2)
        tiny(text, out, steps=3, resume=True)
        assert checkpoints(out)[-1] == "step-3"


@pytest.mark.parametrize("when", [(build, "read_data"), (Trainer, "train_step")])
def test_a_failed_start_removes_only_what_it_made(text, tmp_path, when):
    out = tmp_path / "a" / "b" / "out"

    def put_a_note_and_fail(*_):
        if out.is_dir():
            (out / "note.txt").write_text("mine")
        fail()

    with before(*when, put_a_note_and_fail), pytest.raises(ZeroDivisionError):
        tiny(text, out, **SETTINGS)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["note.txt"] * (when[0] is Trainer)
    assert bool(list(tmp_path.iterdir())) == (when[0] is Trainer)


def test_a_failed_run_with_checkpoints_stays(text, tmp_path):
    """Even if its weights were taken away."""
    out = tmp_path / "out"

    def take_weights_and_fail(trainer):
        if trainer.step == 3:
            (out / "model.safetensors").unlink()
            fail()

    with before(Trainer, "train_step", take_weights_and_fail), pytest.raises(ZeroDivisionError):
        tiny(text, out, **SETTINGS)
    assert checkpoints(out) == ["step-2"]
    tiny(text, out, **SETTINGS, resume=True)


@pytest.mark.usefixtures("silent_page")
def test_modes_of_files_are_kept(finished, text, copy):
    private = [
        copy / name for name in ("model.safetensors", "log.jsonl", "recipe.toml", "README.md", "curve.svg")
    ]
    for path in private:
        path.chmod(0o600)
    with (copy / "log.jsonl").open("ab") as log:
        log.write(b"damaged\n")
    for name in ("README.md", "curve.svg", "fingerprints.json"):
        (copy / name).unlink()  # new ones are as private as the weights
    tiny(text, copy, resume=True, steps=9, train__evaluate=3, look=True)
    saved = copy / "checkpoints" / "step-9"
    private += [*saved.iterdir(), copy / "fingerprints.json"]
    private += [copy / "log.jsonl.damaged", frame_path(copy, 9)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * len(private)


def test_a_name_that_is_not_utf8(text, tmp_path):
    for out, data in ((tmp_path / "\udcff", text), (tmp_path / "out", str(tmp_path / "\udcff.txt"))):
        message = user_error(lambda out=out, data=data: tiny(data, out, steps=1), "UTF-8")
        message.encode()
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------- checkpoints that can't be used


def test_a_finished_run_without_checkpoints_is_not_begun_again(text, copy):
    shutil.rmtree(copy / "checkpoints")
    for gone in (None, "README.md", "log.jsonl"):
        if gone:
            (copy / gone).unlink()
        there = files(copy)
        user_error(lambda: tiny(text, copy, resume=True, steps=9), copy, "--out")
        assert files(copy) == there


def test_killed_before_its_first_checkpoint_it_is_begun_again(text, tmp_path):
    """There are weights already, of an evaluation."""
    settings = {"steps": 6, "train__save": 4, "train__evaluate": 2}
    tiny(text, tmp_path / "whole", **settings)
    tiny(text, tmp_path / "out", **settings | {"steps": 3})
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    (tmp_path / "out" / "README.md").unlink()
    assert (tmp_path / "out" / "model.safetensors").exists()
    tiny(text, tmp_path / "out", **settings, resume=True)
    same(tmp_path / "whole", tmp_path / "out")


def test_ended_before_its_first_checkpoint_was_complete_it_is_begun_again(text, tmp_path, monkeypatch):
    """Several processes train on while they write it: its model is published, and the log is ahead."""
    settings = {"steps": 9, "train__save": 4, "train__evaluate": 2}
    tiny(text, tmp_path / "whole", **settings)
    init, step, ahead = Checkpointer.__init__, Trainer.train_step, threading.Event()

    def init_background(self, *args):
        init(self, *args)
        self.background = BackgroundWriter()

    def fail_once_ahead(*_):
        ahead.wait(60)
        raise OSError(errno.EIO, "failed")

    def train_step(trainer):
        result = step(trainer)
        if trainer.step == 6:
            ahead.set()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "__init__", init_background)
        patch.setattr(checkpoint, "commit", fail_once_ahead)
        patch.setattr(Trainer, "train_step", train_step)
        with pytest.raises(OSError, match="failed"):
            tiny(text, tmp_path / "out", **settings)
    out = tmp_path / "out"
    assert os.listdir(out / "checkpoints") == [".step-4.partial"]
    assert (out / "model.safetensors").exists()
    assert rows(out)[-1]["step"] > 4
    tiny(text, out, **settings, resume=True)
    same(tmp_path / "whole", out)
    assert not list(out.rglob(".*"))


def test_when_every_checkpoint_is_damaged_nothing_is_begun(text, copy):
    for folder in (copy / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    there = files(copy)
    user_error(lambda: tiny(text, copy, resume=True, steps=9), copy, "step-4", "step-6", "--out")
    assert files(copy) == there


def test_a_damaged_checkpoint_keeps_its_name_free(text, copy, capsys):
    """One that was set aside earlier stays, too."""
    for n, name in enumerate(("step-6.damaged", "step-6.damaged-2")):
        (copy / "checkpoints" / "step-6" / "state.json").write_text(str(n))
        tiny(text, copy, resume=True, steps=6)
        assert str(copy / "checkpoints" / name) in capsys.readouterr().err
        assert (copy / "checkpoints" / name / "state.json").read_text() == str(n)
    assert checkpoints(copy) == ["step-4", "step-6"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOMEM])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", ""])
def test_what_cannot_be_read_is_not_damaged(text, copy, monkeypatch, name, code):
    there = files(copy)
    digest, listdir = hashlib.file_digest, os.listdir

    def refuse_file(file, *args):
        if name and Path(file.name).name == name and "checkpoints" in file.name:
            raise OSError(code, os.strerror(code))
        return digest(file, *args)

    def refuse_folder(path="."):
        if not name and Path(path).name == "checkpoints":
            raise OSError(code, os.strerror(code), str(path))
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", refuse_file)
        patch.setattr(os, "listdir", refuse_folder)
        user_error(
            lambda: tiny(text, copy, resume=True, steps=9),
            copy / "checkpoints" / (f"step-6/{name}" if name else ""),
            errno.errorcode[code],
        )
    assert files(copy) == there


def test_old_checkpoints_with_other_files_stay(text, copy, capsys):
    (copy / "checkpoints" / "step-4" / "notes.txt").write_text("mine")
    tiny(text, copy, resume=True, steps=10)
    assert checkpoints(copy) == ["step-4", "step-8", "step-10"]
    assert (copy / "checkpoints" / "step-4" / "notes.txt").read_text() == "mine"
    assert capsys.readouterr().err.count("step-4 stays") == 1


def test_an_old_checkpoint_goes_after_the_new_one_is_on_the_disk(text, copy, monkeypatch):
    """What is flushed and renamed by the first save after step 6."""
    calls, root = [], copy / "checkpoints"
    fsync, rename = os.fsync, os.rename

    def flush(handle):
        fsync(handle)
        calls.append("flushed" if os.path.samestat(os.fstat(handle), root.stat()) else "")

    def move(source, target):
        rename(source, target)
        calls.append(f"{Path(source).name} -> {Path(target).name}")

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "rename", move)
    tiny(text, copy, resume=True, steps=8)
    calls = [one for one in calls if one]
    new, old = (
        calls.index(one) for one in (".step-8.partial -> step-8", "step-4 -> .step-4.replaced.partial")
    )
    assert "flushed" in calls[new:old]
    assert checkpoints(copy) == ["step-6", "step-8"]
    assert checkpoint.is_intact(root / "step-8")


def test_a_log_that_cannot_be_read_is_noticed_before_anything_changes(text, copy):
    """A damaged checkpoint is not even moved aside."""
    (copy / "checkpoints" / "step-6" / "mine.txt").write_text("mine")
    (copy / "log.jsonl").unlink()
    (copy / "log.jsonl").symlink_to("/dev/null")
    there = files(copy)
    user_error(lambda: tiny(text, copy, **SETTINGS | {"steps": 8}, resume=True), copy / "log.jsonl")
    assert files(copy) == there


@pytest.mark.parametrize("name", ["model.safetensors", "README.md", "curve.svg", "fingerprints.json"])
def test_a_folder_in_the_place_of_a_file_is_noticed_before_anything_changes(text, copy, name):
    (copy / "checkpoints" / "step-6" / "mine.txt").write_text("mine")
    (copy / name).unlink(missing_ok=True)
    (copy / name).mkdir()
    there = files(copy)
    user_error(lambda: tiny(text, copy, **SETTINGS | {"steps": 8}, resume=True), copy / name)
    assert files(copy) == there


@pytest.mark.parametrize(
    "change",
    [
        *({"model": values} for values in ({}, {"kind": "x"}, {"kind": []}, {"kind": "gpt", "preset": [1]})),
        *({"data": values} for values in ({"files": 3}, {"from": 3})),
        {"task": {"name": {"a": 1}}},
    ],
)
def test_an_edited_recipe_is_named(text, copy, change):
    sections = regard.runs.recipe.read_file(copy / "recipe.toml")
    ((section, values),) = change.items()
    sections[section] = values if section == "model" else sections[section] | values
    (copy / "recipe.toml").write_text(regard.runs.recipe.to_toml(sections))
    there = files(copy)
    user_error(
        lambda: regard.train("write", out=copy, resume=True, set={"train.steps": 9}), copy / "recipe.toml"
    )
    assert files(copy) == there


# --------------------------------------------------------------------- settings that the end of a run needs


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("config.json", lambda old: old[:-9], "JSON"),
        ("config.json", lambda old: old.replace('"dim": 8', '"dim": 9'), "dim=9"),
        ("config.json", lambda old: old.replace('"dim": 8', '"dim": "a"'), "dim"),
        ("config.json", lambda old: old.replace('"dim": 8,', ""), "dim="),
        ("config.json", lambda old: old.replace("regard-gpt", "regard-bert"), "bert"),
        ("config.json", None, "no config.json"),
        ("generation_config.json", lambda old: '{"temperature": -1}', "temperature"),
        ("folds.json", lambda old: "x", "JSON"),
        ("folds.json", lambda old: '{"scores": {"valid_loss": 3}}', "folds.json"),
    ],
)
def test_damaged_settings_are_noticed_before_the_first_step(copy, text, name, change, word):
    """Not after the last one, when the model is loaded."""
    shutil.rmtree(copy / "checkpoints" / "step-6")
    path = copy / name
    path.write_text(change(path.read_text() if path.exists() else "")) if change else path.unlink()
    there = files(copy)
    user_error(lambda: tiny(text, copy, **SETTINGS, resume=True), copy, word)
    assert files(copy) == there
