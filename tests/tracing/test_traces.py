"""Saved traces: the same numbers, and damaged files are refused."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from helpers.errors import user_error
from helpers.traced import every_kind, model_and_input
from regard import Trace, UserError, trace
from regard.cli import main


@every_kind
def test_a_saved_trace_is_the_same(kind: str, tmp_path: Path) -> None:
    original = trace(*model_and_input(kind))
    original.save(tmp_path / "a.safetensors")
    again = Trace.load(str(tmp_path / "a.safetensors"))
    assert again.names == original.names
    assert all(
        torch.equal(again[name], original[name]) and again[name].dtype == original[name].dtype
        for name in original
    )
    assert (again.tokens, again.ids, again.about) == (original.tokens, original.ids, original.about)
    assert again.difference == original.difference
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(UserError, match=r"a\.safetensors: no such file"):
        Trace.load(path)
    save_file({"x": torch.ones(3)}, path)
    with pytest.raises(UserError, match=r"a\.safetensors: not a trace; regard look MODEL INPUT --save"):
        Trace.load(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(UserError, match=r"a\.safetensors: damaged or not safetensors"):
        Trace.load(path)


def test_only_a_trace_is_replaced(tmp_path: Path) -> None:
    """The weights of a model have the same suffix."""
    path, one = tmp_path / "model.safetensors", trace(*model_and_input("gpt"))
    for content in ({"x": torch.ones(3)}, None):
        path.write_bytes(b"cut") if content is None else save_file(content, path)
        there = path.read_bytes()
        with pytest.raises(UserError, match=r"model\.safetensors exists and is not a trace"):
            one.save(path)
        assert path.read_bytes() == there
    path.unlink()
    one.save(path)
    one.save(path)


def test_nothing_else_can_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    original = trace(*model_and_input("gpt"))
    original.save(path)
    with safe_open(path, framework="pt") as file:
        metadata = {name: text for name, text in file.metadata().items() if name.startswith("regard")}
    save_file({name: original[name].clone() for name in original if name != "sum"}, path, metadata)
    with pytest.raises(UserError, match=r"a\.safetensors: its tensors .*make it again"):
        Trace.load(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "[" * 10**5, '{"names": 3}'], ids=lambda text: text[:9])
def test_metadata_of_another_kind(text: str, tmp_path: Path) -> None:
    """With the right SHA-256, as somebody else may write it."""
    path = tmp_path / "a.safetensors"
    sha = hashlib.sha256(text.encode()).hexdigest()
    save_file({"x": torch.ones(3)}, path, {"regard-trace": text, "regard-trace-sha256": sha})
    user_error(lambda: Trace.load(path), path)


@pytest.mark.parametrize("where", ["tensor", "words", "end"])
def test_damage_is_noticed(where: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    trace(*model_and_input("gpt")).save(path)
    data = path.read_bytes()
    if where == "end":
        path.write_bytes(data[:-1])
    elif where == "words":
        path.write_bytes(data.replace(b"quick", b"quack", 1))
    else:
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    with pytest.raises(UserError, match=r"a\.safetensors: damaged") as error:
        Trace.load(path)
    assert "\n" not in str(error.value)


def test_a_file_for_others(tmp_path: Path) -> None:
    """Other readers of safetensors find the tensors by their names."""
    original = trace(*model_and_input("vit"))
    original.save(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(original)
        assert torch.equal(file.get_tensor("blocks.0.attn.weights"), original["blocks.0.attn.weights"])
        assert json.loads(file.metadata()["regard-trace"])["tokens"]["label"] == ["cat", "dog", "fox"]


def test_look_saves_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, (source, target) = model_and_input("transformer")
    monkeypatch.setattr("regard.runs.load.load", lambda path, **_: model)
    path = str(tmp_path / "a.safetensors")
    with pytest.raises(SystemExit) as error:
        main(["look", "runs/de", source, "--answer", target, "--layer", "1", "--save", path])
    assert error.value.code == 0
    assert capsys.readouterr().out.strip() == path
    saved = Trace.load(path)
    assert saved.tokens["written"] == ["der", "Fuchs", "springt", "</s>"]
    assert "decoder.1.cross.weights" in saved
    assert "decoder.0.cross.weights" not in saved
    for wrong in (["--head", "1"], ["another"]):
        with pytest.raises(SystemExit) as error:
            main(["look", "runs/de", source, *wrong, "--save", path])
        assert error.value.code == 2
