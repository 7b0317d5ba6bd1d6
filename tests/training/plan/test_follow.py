"""The plan of a model that is trained further, by data, model and machine."""

import pytest

from regard.training.build import plan, train

pytestmark = pytest.mark.usefixtures("quick")

BASE = {"model.dim": 16, "model.depth": 2, "model.heads": 2, "model.context": 32, "data.tokenizer": "char"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    (folder / "text.txt").write_text("a quick brown fox jumps over the lazy dog. " * 40)
    train("fill", str(folder / "text.txt"), out=folder / "run", steps=1, set=BASE)
    return folder / "run"


def rows(path, count, rare):
    lines = [f"fox number {n}\t{'rare' if n % rare == 0 else 'usual'}" for n in range(count)]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return str(path)


def test_a_small_set_is_cross_validated(tmp_path, base):
    data = rows(tmp_path / "a.tsv", 60, 2)
    planned = plan("classify", data, base=base, machine="h200")
    assert planned.settings["train.folds"] == 5
    assert planned.settings["train.lr"] == 5e-4  # the most there is, for a narrow model
    assert planned.steps == planned.settings["train.steps"]
    assert "model.dim" not in planned.settings
    assert planned.cost.width == 16
    alone = plan("classify", data, base=base, machine="h200", set={"train.folds": 0})
    assert planned.seconds() == pytest.approx(6 * alone.seconds(), rel=0.01)


def test_what_is_given_stays(tmp_path, base):
    data = rows(tmp_path / "a.tsv", 60, 2)
    planned = plan("classify", data, base=base, machine="h200", steps=30, set={"train.lr": 1e-5})
    assert not {"train.steps", "train.lr", "train.folds"} & planned.settings.keys()
    assert planned.settings["train.warmup"] == 3


def test_rare_classes_are_weighted(tmp_path, base):
    data = rows(tmp_path / "a.tsv", 2000, 25)
    assert plan("classify", data, base=base, machine="h200").settings["task.balanced"]
    assert plan("classify", data, machine="h200", minutes=1).settings["task.balanced"]  # also from scratch


def test_running_text_has_the_rate_of_a_model_that_knows_much(tmp_path, base):
    (tmp_path / "a.txt").write_text("another text about foxes and dogs. " * 100)
    planned = plan("fill", str(tmp_path / "a.txt"), base=base, machine="h200", minutes=1)
    assert planned.settings["train.optimizer"] == "adamw"
    assert planned.settings["train.lr"] == 5e-4
    assert planned.steps > 0
