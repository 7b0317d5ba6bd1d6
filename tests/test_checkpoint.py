"""Whole or not there: every damage is noticed, every failure leaves what was."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from mistakes import mistake
from safetensors import safe_open
from torch import Tensor

from regard import checkpoint
from regard.checkpoint import (
    DTYPES,
    average,
    newest,
    read_tensors,
    replacing,
    save,
    steps,
    tidy,
    whole,
    write_tensors,
)
from regard.errors import Mistake

MODEL = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, -1])}
STATE = {"w/step": torch.tensor(3.0)}
ABOUT = {"step": 3, "best": None}


def every_kind() -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        tensors[f"a.{name}"] = torch.randint(2, (3, 5)).to(dtype)
        tensors[f"none.{name}"] = torch.ones(2, 0, 3, dtype=dtype)
        tensors[f"one.{name}"] = torch.tensor(1, dtype=dtype)
    tensors["turned"] = torch.randn(5, 3).mT
    tensors["part"] = torch.randn(7, 5)[1:3, ::2]
    tensors["strange"] = torch.tensor([float("nan"), float("-inf"), -0.0])
    tensors["learnt é"] = torch.nn.Parameter(torch.randn(3))
    return tensors


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        t.dtype == other[n].dtype
        and t.shape == other[n].shape
        and t.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .equal(other[n].contiguous().reshape(-1).view(torch.uint8))
        for n, t in one.items()
    )


# One file


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", every_kind()
    write_tensors(path, tensors)
    assert equal(safetensors.torch.load_file(path), tensors)
    assert equal(read_tensors(path), tensors)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0  # so that numbers are aligned


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", {n: t.contiguous() for n, t in every_kind().items()}
    safetensors.torch.save_file(tensors, path)
    assert equal(read_tensors(path), tensors)


def test_nothing_to_write(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {})
    assert read_tensors(tmp_path / "a") == safetensors.torch.load_file(tmp_path / "a") == {}


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path) -> None:
    tensors = every_kind()
    write_tensors(tmp_path / "a", tensors)
    write_tensors(tmp_path / "b", dict(reversed(tensors.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_tensors(tmp_path / "b", tensors | {"turned": tensors["turned"] + 1})
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def damages(content: bytes) -> list[bytes]:
    """Every byte changed in several ways, and every beginning."""
    changed = [
        content[:i] + bytes([content[i] ^ bits]) + content[i + 1 :]
        for i in range(len(content))
        for bits in (0x01, 0x10, 0x80, 0xFF)
    ]
    return changed + [content[:i] for i in range(len(content))] + [content + b"\0", content + b" "]


def test_no_damage_to_a_file_gives_other_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, MODEL)
    content, noticed = path.read_bytes(), 0
    for bad in (all_bad := damages(content)):
        path.write_bytes(bad)
        try:
            assert equal(read_tensors(path), MODEL)  # "format": "pt" may have become something else
        except Mistake:
            noticed += 1
    assert noticed > 0.8 * len(all_bad)
    n = sum(t.nbytes for t in MODEL.values())
    for bad in damages(content[-n:])[: 4 * n]:  # those in the numbers are all noticed
        path.write_bytes(content[:-n] + bad)
        mistake(lambda: read_tensors(path), path, "SHA-256")


def test_no_such_file(tmp_path: Path) -> None:
    mistake(lambda: read_tensors(tmp_path / "a"), tmp_path / "a", "no such file")
    mistake(lambda: read_tensors(tmp_path), tmp_path, "damaged or not safetensors")


def test_replacing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half() -> None:
        with replacing(path) as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "old"
    with monkeypatch.context() as m:
        for name in ("fsync", "replace"):
            m.setattr(os, name, full)
            with pytest.raises(OSError, match="No space"):
                checkpoint.write_text(path, "new")
            m.undo()
            assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    checkpoint.write_text(path, "neu é")
    assert path.read_text("utf-8") == "neu é"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_tensors_are_replaced_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_tensors(path, MODEL)
    monkeypatch.setattr(
        checkpoint, "raw", counted(checkpoint.raw, fails_at=4)
    )  # 2 for the digest, 2 to write
    with pytest.raises(OSError, match="No space"):
        write_tensors(path, {"w": torch.zeros(2), "b": torch.zeros(3)})
    monkeypatch.undo()
    assert equal(read_tensors(path), MODEL)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def counted(function: Callable[..., Any], fails_at: int) -> Callable[..., Any]:
    """The function, which the disk has no room for at its nth call."""
    calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            full()
        return function(*args, **options)

    return call


# A checkpoint


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
        assert not whole(path.parent)
    assert newest(folder) == (folder / "step-3", [folder / "step-12"])
    path.write_bytes(content)
    assert whole(path.parent)


def test_a_file_more_or_less_is_noticed(folder: Path) -> None:
    last = folder / "step-12"
    (last / "other").write_text("")
    assert not whole(last)
    (last / "other").unlink()
    (last / "other").mkdir()
    assert not whole(last)
    (last / "other").rmdir()
    assert whole(last)
    for path in list(last.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert not whole(last)
        path.write_bytes(content)
    (last / "state.json").rename(last / "stat.json")
    assert not whole(last)


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
    [(checkpoint, "write_tensors", 2), (checkpoint, "write_text", 2), (os, "rename", 1), (os, "fsync", 8)],
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
    (folder / ".notes.partial").write_text("half a file")
    (folder / "mine.txt").write_text("not ours")
    tidy(folder, 5)
    assert steps(folder) == [3, 12, 20, 100]
    assert sorted(p.name for p in folder.iterdir() if "step" not in p.name) == ["mine.txt"]
    tidy(folder, 2)
    assert steps(folder) == [20, 100]
    assert all(whole(folder / f"step-{step}") for step in (20, 100))


# The mean of several


def test_average() -> None:
    some = [every_kind() | {"w": torch.randn(7, 5), "half": torch.randn(11).half()} for _ in range(3)]
    mean = average(iter(some))
    assert mean.keys() == some[0].keys()
    for name, t in mean.items():
        each = [model[name].detach() for model in some]
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
    """In bfloat16 or float32, 1 + 2^-30 is 1, and the small ones are lost."""
    values = [2.0**30, 1.0, 1.0, 1.0, -(2.0**30), 1.0, 1.0, 1.0]
    for dtype in (torch.float32, torch.bfloat16):
        assert average({"w": torch.tensor([v], dtype=dtype)} for v in values)["w"].tolist() == [0.75]
