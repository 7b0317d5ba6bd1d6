"""Cross-validation of small data: parts, the best number of steps, interruption, and what is reported."""

import json

import pytest

from helpers.errors import user_error
from regard.data.labels import split_by_class
from regard.data.pairs import split_pairs
from regard.data.reading import read_together
from regard.data.sound_readers import LabelledSound, split_by_voice
from regard.data.splitting import hold_out_groups
from regard.runs import recipe
from regard.training import folds
from regard.training.build import train
from regard.training.checkpointer import Checkpointer
from regard.training.config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick")

SETTINGS = {
    "model.depth": 1,
    "model.dim": 8,
    "model.heads": 2,
    "model.context": 11,
    "data.tokenizer": "char",
    "train.batch": 4,
    "train.folds": 3,
    "train.warmup": 2,
}

VOICES = [LabelledSound(str(i), "x", voice=f"v{i:02}") for i in range(20)]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.tsv"
    rows = [f"{'ab' if n % 4 else 'cd'}{n}\t{'yes' if n % 4 else 'no'}" for n in range(24)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return str(path)


def numbers_held_out(split):
    """Which of the rows each of three folds holds out."""
    parts = []
    for fold in range(3):
        with read_together(fold=fold):
            parts.append(sorted(split()))
    return parts


@pytest.mark.parametrize(
    "split",
    [
        lambda: [i for i, out in enumerate(hold_out_groups(range(20), 1 / 3)) if out],
        lambda: split_by_class(["a"] * 11 + ["b"] * 9, 1 / 3, range(20))[1],
        lambda: [int(b) for _, b in split_pairs([(f"s{i}", str(i)) for i in range(20)], None, 1 / 3)[1]],
        lambda: split_by_voice(VOICES, 1 / 3, range(20))[1],
    ],
)
def test_every_row_is_held_out_once(split):
    parts = numbers_held_out(split)
    assert sorted(row for part in parts for row in part) == list(range(20))
    assert parts[0] == sorted(split())  # the one that is held out without folds


def test_text_that_can_not_be_divided(tmp_path):
    (tmp_path / "a.txt").write_text("one document " * 50)
    changes = {**SETTINGS, "train.steps": 2}
    problem = user_error(lambda: train("write", str(tmp_path / "a.txt"), out=tmp_path / "out", set=changes))
    assert "train.folds" in problem


def test_the_best_step_is_that_of_all_folds_together():
    curves = [[0.1, 0.9, 0.6], [0.2, 0.3, 0.7]]
    rows = [
        [
            {"step": 10 * (i + 1), "valid_f1": x, "valid_loss": 1.0 - x / 2}
            for i, x in enumerate(curve)
        ]
        for curve in curves
    ]  # fmt: skip
    result = folds.choose_steps(rows, "f1")
    assert result["steps"] == 30
    assert result["scores"]["valid_f1"] == pytest.approx([0.65, 0.5**0.5 / 10])
    assert all(word in folds.describe_folds(result) for word in ("valid_f1", "0.6500", "30"))
    rows[0][0]["valid_loss"] = -5.0
    assert folds.choose_steps(rows, "loss")["steps"] == 10
    assert folds.choose_steps([rows[0][:2], rows[1]], "f1")["steps"] == 20  # that all have reached


def test_steps_are_needed():
    with pytest.raises(ValueError, match=r"train\.steps"):
        TrainConfig(minutes=1, folds=5)
    with pytest.raises(ValueError, match="2 or more"):
        TrainConfig(steps=10, folds=1)


def test_all_rows_are_trained_on_for_the_best_number_of_steps(tmp_path, data, capfd):
    out = tmp_path / "run"
    train("classify", data, out=out, steps=20, minutes=4, set=SETTINGS)
    result = json.loads((out / "folds.json").read_text())
    sections = recipe.read_file(out / "recipe.toml")
    assert result["folds"] == sections["train"]["folds"] == 3
    assert result["steps"] == sections["train"]["steps"]
    assert sections["train"]["minutes"] == 1
    assert sections["data"]["holdout"] == 0
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == result["steps"]
    assert result["by"] == "matthews"
    mean, spread = result["scores"]["valid_matthews"]
    assert f"{mean:.4f} ± {spread:.4f}" in (out / "README.md").read_text()
    printed = capfd.readouterr().err
    assert "24 texts (0 held out)" in printed
    assert "16 texts (8 held out)" in printed
    assert f"{mean:.4f}" in printed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.tsv", "run"]


def test_an_interrupted_run_goes_on_with_the_fold_that_is_not_finished(tmp_path, data, monkeypatch):
    train("classify", data, out=tmp_path / "whole", steps=10, set=SETTINGS)
    out, save = tmp_path / "run", Checkpointer.save

    def interrupt(self, state, *more):
        if self.folder.name == "2":
            raise KeyboardInterrupt
        return save(self, state, *more)

    monkeypatch.setattr(Checkpointer, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train("classify", data, out=out, steps=10, set=SETTINGS)
    monkeypatch.undo()
    other = SETTINGS | {"train.batch": 3}
    assert "settings" in user_error(
        lambda: train("classify", data, out=out, steps=10, set=other, resume=True)
    )
    train("classify", data, out=out, steps=10, set=SETTINGS)
    assert (out / "folds.json").read_text() == (tmp_path / "whole" / "folds.json").read_text()
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert not (tmp_path / "run.folds").exists()
    train("classify", data, out=out, steps=12, set=SETTINGS, resume=True)  # without folds


def test_data_to_evaluate_on_are_no_folds(tmp_path, data):
    problem = user_error(
        lambda: train("classify", data, valid=data, out=tmp_path / "out", steps=4, set=SETTINGS)
    )
    assert "train.folds" in problem
