"""Checkpoints are complete or absent: every damage is noticed, every failure leaves the earlier ones."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.disks import MODEL, counted, damages, equal, every_kind
from regard.files import atomic
from regard.runs import checkpoints as checkpoint
from regard.runs import parts
from regard.runs.checkpoints import average, is_intact, newest, remove_old, remove_partial, save, steps

STATE = {"w/step": torch.tensor(3.0)}
ABOUT = {"step": 3, "best": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints at steps 3 and 12; by their names alone, 3 would be the later."""
    save(tmp_path, 3, MODEL, STATE, ABOUT)
    save(tmp_path, 12, MODEL, STATE, ABOUT)
    return tmp_path


def test_a_checkpoint_comes_back(folder: Path) -> None:
    assert steps(folder) == [3, 12]
    assert newest(folder) == (folder / "step-12", [])
    model, optimizer, about = checkpoint.load(folder / "step-12")
    assert equal(model, MODEL)
    assert equal(optimizer, STATE)
    assert about == ABOUT
    names = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    assert json.loads((folder / "step-12" / "state.json").read_text()) == {"format": 1} | ABOUT
    assert {p.name for p in (folder / "step-12").iterdir()} == names
    assert set(json.loads((folder / "step-12" / "manifest.json").read_text())) == names - {"manifest.json"}


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
def test_every_damage_is_noticed(folder: Path, name: str) -> None:
    path = folder / "step-12" / name
    content = path.read_bytes()
    for bad in damages(content):
        path.write_bytes(bad)
        assert not is_intact(path.parent)
    assert newest(folder) == (folder / "step-3", [folder / "step-12"])
    path.write_bytes(content)
    assert is_intact(path.parent)


@pytest.mark.parametrize("content", ["[", "3", "{}", "[" * 10**5], ids=lambda content: content[:9])
def test_a_process_that_checks_its_share_notices_a_damaged_manifest(folder: Path, content: str) -> None:
    (folder / "step-12" / "manifest.json").write_text(content)
    assert not is_intact(folder / "step-12", slice(0, None, 2))


def test_a_file_more_or_less_is_noticed(folder: Path) -> None:
    last = folder / "step-12"
    (last / "other").write_text("")
    assert not is_intact(last)
    (last / "other").unlink()
    (last / "other").mkdir()
    assert not is_intact(last)
    (last / "other").rmdir()
    assert is_intact(last)
    for path in list(last.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert not is_intact(last)
        path.write_bytes(content)
    (last / "state.json").rename(last / "stat.json")
    assert not is_intact(last)


def test_newest_goes_back_as_far_as_it_must(folder: Path) -> None:
    save(folder, 20, MODEL, STATE, ABOUT)
    for step in (20, 12):
        (folder / f"step-{step}" / "state.json").write_text("{}")
    assert newest(folder) == (folder / "step-3", [folder / "step-20", folder / "step-12"])
    shutil.rmtree(folder / "step-3")
    assert newest(folder) == (None, [folder / "step-20", folder / "step-12"])
    assert newest(folder / "nowhere") == (None, [])


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [(parts, "write_tensors", 2), (atomic, "write_text", 2), (os, "rename", 1), (os, "fsync", 8)],
)
def test_a_full_disk_leaves_the_earlier_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int
) -> None:
    for n in range(1, calls + 1):
        with monkeypatch.context() as m:
            m.setattr(owner, name, counted(getattr(owner, name), fails_at=n))
            with pytest.raises(OSError, match="No space"):
                save(folder, 20, MODEL, STATE, ABOUT)
        assert sorted(p.name for p in folder.iterdir()) == ["step-12", "step-3"]
        assert newest(folder) == (folder / "step-12", [])
    save(folder, 20, MODEL, STATE, ABOUT)
    assert newest(folder) == (folder / "step-20", [])


def test_a_kill_in_the_middle_leaves_no_checkpoint(folder: Path) -> None:
    left = folder / ".step-20.partial"
    shutil.copytree(folder / "step-12", left)  # as complete as it can be without its name
    assert newest(folder) == (folder / "step-12", [])
    (left / "other").write_text("")
    save(folder, 20, MODEL, STATE, ABOUT)  # does not take over what lies there
    assert newest(folder) == (folder / "step-20", [])
    assert not left.exists()


def test_tidy_keeps_the_last(folder: Path) -> None:
    for step in (100, 20):
        save(folder, step, MODEL, STATE, ABOUT)
    (folder / ".step-7.partial").mkdir()
    (folder / ".step-7.partial" / "state.json").write_text("{}")
    (folder / ".model.partial").mkdir()
    (folder / ".model.partial" / "model-00002-of-00004.safetensors").touch()
    no_checkpoints = [".mine.partial", "mine.txt", "step-03", "step-1x", "step-\u0663"]
    for name in no_checkpoints:
        (folder / name).write_text("not ours")
    assert remove_old(folder, 5) == []
    assert steps(folder) == [3, 12, 20, 100]
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == no_checkpoints
    assert not (folder / ".step-7.partial").exists()
    assert not (folder / ".model.partial").exists()
    (folder / "step-3" / "notes.txt").write_text("of a person")
    assert remove_old(folder, 2) == [folder / "step-3"]
    assert steps(folder) == [3, 20, 100]
    assert all(is_intact(folder / f"step-{step}") for step in (20, 100))


def test_an_old_one_that_cannot_be_removed_is_an_error(folder: Path, monkeypatch) -> None:
    """And none of it stays behind the next time."""
    save(folder, 20, MODEL, STATE, ABOUT)

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "failed", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", fail)
        with pytest.raises(OSError, match=r"\.step-\d+\.replaced\.partial"):
            remove_old(folder, 1)
    assert newest(folder) == (folder / "step-20", [])
    assert remove_old(folder, 1) == []
    assert os.listdir(folder) == ["step-20"]


# The mean of several


def test_average() -> None:
    states = [every_kind() | {"w": torch.randn(7, 5), "half": torch.randn(11).half()} for _ in range(3)]
    mean = average(iter(states))
    assert mean.keys() == states[0].keys()
    for name, t in mean.items():
        each = [model[name].detach() for model in states]
        assert t.dtype == each[0].dtype
        if t.is_floating_point():
            expected = torch.stack([e.double() for e in each]).mean(0).to(t.dtype)
        else:
            expected = each[-1]
        torch.testing.assert_close(t, expected, rtol=0, atol=1e-15, equal_nan=True)


def test_average_of_one_or_of_equals_is_exact() -> None:
    one = every_kind()
    for times in (1, 2, 7):
        mean = average([one] * times)
        assert all(t.equal(one[name]) for name, t in mean.items() if name != "strange")
        assert mean["strange"].isnan().tolist() == [True, False, False]


def test_average_adds_up_in_float64() -> None:
    """In bfloat16 or float32, 1 + 2^-30 is 1."""
    values = [2.0**30, 1.0, 1.0, 1.0, -(2.0**30), 1.0, 1.0, 1.0]
    for dtype in (torch.float32, torch.bfloat16):
        assert average({"w": torch.tensor([v], dtype=dtype)} for v in values)["w"].tolist() == [0.75]


def test_other_files_in_an_unfinished_checkpoint_stay(folder: Path) -> None:
    partial = folder / ".step-9.partial"
    partial.mkdir()
    for name in ("model.safetensors", ".state.json.partial", "thesis.txt"):
        (partial / name).write_text(name)
    remove_partial(folder)
    assert [path.name for path in partial.iterdir()] == ["thesis.txt"]
    save(folder, 9, MODEL, STATE, ABOUT)
    assert is_intact(folder / "step-9")
    (aside,) = folder.glob(".step-9*")
    assert [path.name for path in aside.iterdir()] == ["thesis.txt"]


def test_a_model_that_is_one_file_has_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert checkpoint.steps(tmp_path / "model.gguf" / "checkpoints") == []
