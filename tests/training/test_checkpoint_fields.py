"""Checkpoints that were edited, cut, mixed up or linked: each is loaded, or one line says what is wrong.

Nothing in the folder is lost either way.
"""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.errors import user_error
from helpers.runs import before, tiny, unmeasured, write_text
from regard.errors import UserError
from regard.files.tensors import digest, read_tensors, write_tensors
from regard.runs import checkpoints as checkpoint
from regard.training.guard import GuardState
from regard.training.trainer import Trainer

ABSURD = [None, "x", "", -1, 3, 1.5, 10**30, -1e300, float("nan"), float("inf"), True, [], {}, [1], {"a": 1}]
GONE = object()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A run of two steps with one checkpoint; its checkpointer restores again and again."""
    trainers = []
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch, before(Trainer, "run", trainers.append):
        unmeasured(patch)
        tiny(write_text(folder / "text.txt"), folder / "out", steps=2, train__evaluate=1)
    yield trainers[0].checkpointer
    assert_restores(trainers[0].checkpointer)


@pytest.fixture
def step(run: Any) -> Iterator[Path]:
    """Its checkpoint, which is put back afterwards."""
    path = run.checkpoints / "step-2"
    shutil.copytree(path, backup := run.folder.with_name("backup"))
    yield path
    shutil.rmtree(path)
    backup.rename(path)


def assert_restores(run: Any) -> None:
    path = run.checkpoints / "step-2"
    state, _ = run.restore()
    about = json.loads((path / "state.json").read_text())
    guard = asdict(GuardState()) | about.get("guard", {})  # earlier versions have none
    earlier = {"stream": [], "rate": 1.0} | about  # earlier versions lack them
    saved = {name: earlier[name] for name in vars(state) if name != "guard"}
    assert asdict(state) == saved | {"guard": guard}
    assert digest(run.weights()) == digest(read_tensors(path / "model.safetensors"))
    assert digest(run.optimizer_state()) == digest(read_tensors(path / "optimizer.safetensors"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def restores_or_says(run: Any, file: Path) -> bool:
    """Whether it restores; if not, one line names the file. Nothing changes."""
    there, message = files(run.folder), ""
    try:
        assert_restores(run)
    except UserError as e:
        message = str(e)
    assert files(run.folder) == there
    assert "\n" not in message
    assert not message or str(file) in message or "the data differ" in message
    return not message


def sign(path: Path) -> None:
    """Make the manifest match what is there."""
    (path / "manifest.json").write_text(checkpoint.manifest(path))


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value of a JSON object."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


def changed(content: Any, at: tuple[Any, ...], value: Any) -> Any:
    new = copy.deepcopy(content)
    inner = new
    for key in at[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return new


def test_every_field_of_the_state(run: Any, step: Path) -> None:
    file = step / "state.json"
    about = json.loads(file.read_text())
    assert about["format"] == 1
    required = {"step", "elapsed", "evaluated", "best", "worse", "seed", "data"}
    for n, at in enumerate(places(about)):
        for value in (GONE, *ABSURD) if len(at) == 1 else (GONE, ABSURD[n % len(ABSURD)]):
            new = changed(about, at, value)
            if json.dumps(new) == json.dumps(about):
                continue
            file.write_text(json.dumps(new))
            sign(step)
            restored = restores_or_says(run, file)
            if len(at) == 1 and (value is GONE or isinstance(value, str | bool)):
                assert not restored or at[0] not in required, (at, value)
    for text in ("", "[]", "null", "{", '{"step": 2, "step": 2}', "[" * 10_000, "\x00"):
        file.write_text(text)
        sign(step)
        assert not restores_or_says(run, file), text


def test_every_field_without_a_new_manifest_is_damage(run: Any, step: Path) -> None:
    for name in ("state.json", "manifest.json"):
        content = json.loads((step / name).read_text())
        for at in places(content):
            (step / name).write_text(json.dumps(changed(content, at, GONE)))
            assert not restores_or_says(run, run.checkpoints)
        (step / name).write_text(json.dumps(content, indent=1) + "\n")
    assert restores_or_says(run, step)


def test_every_tensor_file(run: Any, step: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        file = step / name
        content, tensors = file.read_bytes(), read_tensors(file)
        for size in (0, 1, 8, 100, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:size])
            assert not restores_or_says(run, run.checkpoints)  # damaged
            sign(step)
            assert not restores_or_says(run, file)
        for key, t in tensors.items():
            for other in (t[None], t.reshape(-1)[:1], t.double(), t.long(), None):
                if other is not None and (other.shape, other.dtype) == (t.shape, t.dtype):
                    continue
                rest = {k: v for k, v in tensors.items() if k != key}
                write_tensors(file, rest if other is None else rest | {key: other})
                sign(step)
                same_kind = other is not None and other.shape == t.shape and other.is_floating_point()
                if name == "model.safetensors" and same_kind:
                    continue  # the same numbers in float64 are copied as they are
                one_of_muon = other is None and key.endswith("momentum")
                assert not restores_or_says(run, file) or one_of_muon, (key, other)
        write_tensors(file, tensors | {"another": torch.ones(2)})
        sign(step)
        assert not restores_or_says(run, file)
        file.write_bytes(content)
        sign(step)
        assert restores_or_says(run, file)


def test_a_newer_format_is_not_damage(run: Any, step: Path) -> None:
    """A later version may have other files, too."""
    file = step / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 3}))
    (step / "new.safetensors").write_bytes(b"")
    user_error(run.restore, file, "format 3", "update")
    assert not restores_or_says(run, file)
    sign(step)
    assert not restores_or_says(run, file)


def test_version_0_has_no_format(run: Any, step: Path) -> None:
    file = step / "state.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in about.items() if k not in ("format", "model", "task")}))
    sign(step)
    assert restores_or_says(run, file)


@pytest.mark.parametrize(
    "other",
    [
        {"model__dim": 16},
        {"model__heads": 1},
        {"model__depth": 1},
        {"train__seed": 3},
        {"train__optimizer": "muon"},
        {"data__tokenizer": "byte"},
        {"model__context": 7},
    ],
)
def test_a_checkpoint_of_another_run(
    run: Any, step: Path, tmp_path: Path, other: dict[str, Any], monkeypatch
) -> None:
    unmeasured(monkeypatch)
    tiny(str(run.folder.with_name("text.txt")), tmp_path / "out", steps=2, **other)
    shutil.rmtree(step)
    shutil.copytree(tmp_path / "out" / "checkpoints" / "step-2", step)
    assert not restores_or_says(run, step)


def test_links_and_folders_and_names(run: Any, step: Path, tmp_path: Path) -> None:
    shutil.copytree(step, tmp_path / "outside")
    for name in ("state.json", "model.safetensors", "manifest.json"):
        content = (step / name).read_bytes()
        (step / name).unlink()
        (step / name).symlink_to(tmp_path / "outside" / name)
        assert not restores_or_says(run, step / name)
        (step / name).unlink()
        (step / name).mkdir()
        assert not restores_or_says(run, run.checkpoints)
        (step / name).rmdir()
        os.mkfifo(step / name)
        assert not restores_or_says(run, run.checkpoints)
        (step / name).unlink()
        (step / name).write_bytes(content)
    odd = os.fsencode(step) + b"/\xff"
    with open(odd, "wb"):
        pass
    assert not restores_or_says(run, run.checkpoints)
    os.remove(odd)
    shutil.rmtree(step)
    step.symlink_to(tmp_path / "outside")
    assert not restores_or_says(run, step)
    step.unlink()
    step.write_text("a file")
    assert not restores_or_says(run, run.checkpoints)
    step.unlink()
    step.mkdir()
    (run.checkpoints / "step-02").mkdir()
    assert not restores_or_says(run, run.checkpoints)
    (run.checkpoints / "step-02").rmdir()
    assert len(files(tmp_path)) == 4
