"""The rows of the table of the plan: their files, what they reach, and the lines of the document."""

import gzip
import json
from pathlib import Path

import pytest
from bench.quality import FALLING, ROWS, Row, paths, read_cores, run_row, table

from helpers.runs import write_labels
from regard.runs import recipe

TIMES = {"train_seconds": 61.0, "steps": 1200, "minutes": 1.0}


def test_every_row_is_a_recipe_and_what_is_asked_has_a_figure() -> None:
    for row in ROWS.values():
        assert row.recipe in recipe.names()
        assert not row.base or ROWS[row.base].recipe == "fill"
        assert bool(row.figure) == bool(row.score)
        assert row.asked is None or row.figure


def test_smaller_losses_and_larger_scores_are_better() -> None:
    for row in ROWS.values():
        if row.asked is not None:
            better = -1 if row.figure in FALLING else 1
            assert row.reached(row.asked)
            assert row.reached(row.asked + better)
            assert not row.reached(row.asked - better)


def test_lines_of_the_table() -> None:
    done = [
        {"row": "sst2", "seed": seed, "scores": {"accuracy": accuracy}} | TIMES
        for seed, accuracy in ((2, 0.88), (1, 0.9))
    ]
    failed = [{"row": "write", "seed": 1, "error": "train took more than 5 s"}]
    _, _, write, sst2 = table(failed + done).splitlines()
    assert "<= 1.42 | ; seed 1: train took more than 5 s |" in write
    assert ">= 89 | 90.0 88.0 (mean **89.0**) | yes; 61 s, 61 s, 1,200 steps, 1,200 steps |" in sst2


def test_cores() -> None:
    assert read_cores("0-2,5") == {0, 1, 2, 5}


def test_parts_of_files(tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare/input.txt.gz").write_bytes(gzip.compress(b"a\nb\n" + b"c\n" * 8))
    names = ("tinyshakespeare/last.txt", "tinyshakespeare/input.txt.gz#2", "--num-beams", "5", "x/y.tsv")
    last, first, *rest = paths(names, tmp_path, tmp_path)
    assert Path(last).read_text() == "c\n"
    assert Path(first).read_text() == "a\nb\n"
    assert rest == ["--num-beams", "5", str(tmp_path / "x/y.tsv")]


@pytest.mark.parametrize("missing", [False, True])
def test_a_row_is_written_whatever_comes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    """Neither a command that fails nor one that takes too long stops the others."""
    monkeypatch.setattr("bench.quality.SCORING", 0.0)
    data = write_labels(tmp_path / "train.tsv")
    row = Row(recipe="classify", data=(Path(data).name,), minutes=0.01, about="", score=("no.tsv",),
              figure="accuracy", cpu=True)  # fmt: skip
    monkeypatch.setitem(ROWS, "here", row)
    commands: list[list[str]] = []

    def execute(name: str, command: list[str], *rest: object) -> dict[str, object]:
        commands.append(command)
        if missing or name == "score":
            raise RuntimeError(f"{name} failed\nat length")
        return {"train_seconds": 1.0}

    monkeypatch.setattr("bench.quality.execute", execute)
    run_row("here:3", tmp_path, tmp_path, 1.0, 0.0)
    result = json.loads((tmp_path / "here-3.json").read_text())
    assert result["error"] == ("train failed" if missing else "score failed")
    assert (result["seed"], result["steps"]) == (3, 0)
    assert len(commands) == 2 - missing
    assert commands[0][:3] == ["train", "classify", str(tmp_path / "train.tsv")]
    assert "train.seed=3" in commands[0]
