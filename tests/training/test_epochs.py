"""--epochs: passes over the data instead of a number of steps."""

import re
import tomllib
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.commands import check_refused, stdout_of, train_model
from regard.data.streams import Stream
from regard.tasks.batches import Bucketed, Shuffled

SETTINGS = ("model.dim=8", "model.depth=1", "model.heads=2", "model.context=23", "data.tokenizer=char")
TINY = [word for setting in (*SETTINGS, "train.device=cpu") for word in ("--set", setting)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 texts of one length, of which 36 are trained on."""
    path = tmp_path_factory.mktemp("epochs") / "a.tsv"
    rows = [f"{n} a {word} film\t{word}\n" for n in range(10, 50) for word in [("good", "poor")[n % 2]]]
    path.write_text("text\tlabel\n" + "".join(rows))
    return path


def length_of(run: Path) -> tuple[Any, Any]:
    section = tomllib.loads((run / "recipe.toml").read_text())["train"]
    return section.get("epochs"), section["steps"]


def test_steps_follow_from_epochs(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("classify", table, "--batch", 5, *TINY)
    run = train_model(tmp_path / "run", *words, "--epochs", 0.5)
    assert length_of(run) == (0.5, 4)
    go_on = (run / "recipe.toml", "--resume")
    train_model(run, *go_on, "--epochs", 1)
    assert length_of(run) == (1, 8)
    train_model(run, *go_on, "--steps", 9)
    assert length_of(run) == (None, 9)
    shown = stdout_of(capsys, "train", *words, "--epochs", 3, "--dry-run")
    assert re.search(r"22 steps of .* 3\.\d+ passes over the data; as given", shown), shown


def test_one_length_only(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(
        capsys, tmp_path, ["train", "classify", table, "--epochs", 1, "--steps", 2], "--epochs", "--steps"
    )
    check_refused(capsys, tmp_path, ["train", "classify", table, "--epochs", 0], "epochs=0")
    stream = ["train", "write", table, "--epochs", 1, "--set", "data.stream=true"]
    check_refused(capsys, tmp_path, stream, "--epochs", "data.stream", "--minutes")


def test_an_epoch_reads_every_row_once() -> None:
    lengths, data = np.arange(1, 31), range(30)
    for samples in (Bucketed(data, (lengths, lengths), 1, 7, None), Shuffled(data, 1, 7)):
        steps = ceil(samples.steps_per_epoch)
        rows = np.concatenate([samples.rows(step) for step in range(steps)])
        assert set((samples.at(rows[:30]) if isinstance(samples, Shuffled) else rows).tolist()) == set(data)
    windows = Stream([np.arange(101)], 101).windows(10, 1, 4)
    assert windows.steps_per_epoch == windows.count / 4
