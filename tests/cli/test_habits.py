"""What people type by habit: no arguments, short forms, help of a recipe."""

import io
import json
import sys
from pathlib import Path

import pytest

from helpers.commands import PICO, call, check_refused, stdout_of, train_model
from regard.runs import recipe


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert stdout_of(capsys) == stdout_of(capsys, "--help")


@pytest.mark.parametrize(
    "words", [["write", "--help"], ["-h", "write"], ["write", "a.txt", "--steps", "3", "-h"]]
)
def test_help_of_a_recipe(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    text = stdout_of(capsys, "train", *words)
    assert "train.lr" in text
    assert "gpt2-xl" in text
    assert "data.tokenizer" in text
    assert "train.lr" not in stdout_of(capsys, "train", "--help").replace("rate: train.lr", "")


def test_short_forms(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--lr", "0.5e-3", "--batch", 3, "--seed", 5, "--device", "cpu", "--dtype", "float32"]
    train_model(
        tmp_path / "a", "write", text, "--steps", 1, *PICO, *short, "--set", "dim=8", "--set", "evaluate=1"
    )
    sections = recipe.read_file(tmp_path / "a" / "recipe.toml")
    own = {
        name: sections["train"][name] for name in ("lr", "batch", "seed", "device", "precision", "evaluate")
    }
    assert own == {"lr": 0.5e-3, "batch": 3, "seed": 5, "device": "cpu", "precision": "fp32", "evaluate": 1}
    assert sections["model"]["dim"] == 8
    words = ["train", "write", text, "--out", tmp_path / "b", "--set", "lrr=1"]
    check_refused(capsys, tmp_path, words, "lrr", "lr")
    assert (
        call("train", "write", text, "--out", tmp_path / "a", "--resume", "--steps", 2, "--set", "save=1")
        == 0
    )


def test_a_terminal_that_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has no bytes for is written as in JSON."""
    (tmp_path / "é😀").mkdir()
    (tmp_path / "é😀" / "recipe.toml").touch()
    for encoding, name in (("latin-1", b"\xe9\\ud83d\\ude00"), ("ascii", b"\\u00e9\\ud83d\\ude00")):
        for errors in ("strict", "surrogateescape"):
            written = io.BytesIO()
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors))
            assert call("runs", tmp_path, "--json") == 0
            row = written.getvalue()
            assert name in row
            assert json.loads(row.decode("latin-1"))["run"] == str(tmp_path / "é😀")
