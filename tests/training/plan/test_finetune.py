"""Rules for training on from a model: a table of what they say, and what they must not do."""

import pytest

from regard.tasks.heads import label_balance
from regard.training.config import TrainConfig
from regard.training.plan.finetune import Base, effective_share, finetune_settings

MINILM = Base(task="embed", dim=384)
OURS = Base(task="fill", dim=512)
BERT = Base(task="fill", dim=768)


def settings(*args, **more):
    return {choice.key: choice.value for choice in finetune_settings(*args, **more)}


@pytest.mark.parametrize(
    ("base", "rows", "lr", "steps"),
    [
        (MINILM, 50, 1e-4, 100),
        (MINILM, 200, 1e-4, 199),
        (MINILM, 1000, 1e-4, 445),
        (MINILM, 8551, 1e-4, 1301),
        (OURS, 8551, 7.5e-5, 1301),  # where the rate of a model from scratch ended in one class
        (MINILM, 67349, 1.4e-4, 3157),  # SST-2, 64 rows a step
        (BERT, 3600, 5e-5, 844),
    ],
)
def test_rates_and_steps(base, rows, lr, steps):
    chosen = settings("classify", base, rows, classes=2, largest=0.5, validated=True)
    assert (chosen["train.lr"], chosen["train.steps"]) == (lr, steps)
    assert chosen["train.warmup"] == steps // 10
    assert "train.folds" not in chosen


@pytest.mark.parametrize(
    ("classes", "largest", "weighted"),
    [(2, 0.56, False), (2, 0.7, False), (2, 0.95, True), (10, 0.12, False), (10, 0.7, True), (0, 0.0, False)],
)
def test_class_weights_where_one_class_is_nearly_all(classes, largest, weighted):
    for task in ("classify", "see", "hear"):
        assert settings(task, MINILM, 4000, classes, largest).get("task.balanced", False) == weighted
    assert "task.balanced" not in settings("tag", MINILM, 4000, classes, largest)
    if classes == 2:
        assert effective_share(2, largest) == pytest.approx(
            label_balance([largest * 100, 100 - largest * 100])
        )


def test_folds_of_small_sets_where_nothing_else_is_given_and_there_is_time():
    assert settings("classify", MINILM, 200)["train.folds"] == 5
    assert "train.folds" not in settings("classify", MINILM, 200, validated=True)
    assert "train.folds" not in settings("classify", MINILM, 500)
    assert "train.folds" not in settings("translate", MINILM, 200)
    assert settings("classify", MINILM, 200, affordable=1200)["train.folds"] == 5
    assert "train.folds" not in settings("classify", MINILM, 200, affordable=1000)


def test_the_clock_decides_where_the_time_is_short():
    short = settings("classify", MINILM, 8551, affordable=150)
    assert not {"train.steps", "train.folds"} & short.keys()
    assert (short["train.warmup"], short["train.evaluate"]) == (15, 15)


def test_steps_that_are_given_stay():
    chosen = settings("classify", MINILM, 200, steps=40)
    assert not {"train.steps", "train.folds", "train.evaluate"} & chosen.keys()
    assert chosen["train.warmup"] == 4


def test_the_rest_follows_from_what_is_given():
    rate = settings("classify", MINILM, 1000)["train.lr"]
    assert settings("classify", MINILM, 1000, batch=128)["train.lr"] == 2 * rate
    assert settings("classify", MINILM, 1000, batch=128)["train.steps"] == 112
    adapted = settings("classify", MINILM, 1000, lora=8)
    assert (adapted["train.lr"], adapted["train.layer_decay"]) == (10 * rate, 1)


def test_pooling_is_as_the_model_was_trained():
    assert settings("classify", MINILM, 1000)["task.mean"]
    assert "task.mean" not in settings("classify", BERT, 1000)
    assert "task.mean" not in settings("tag", MINILM, 1000)


@pytest.mark.parametrize(
    "task",
    [
        "classify",
        "tag",
        "span",
        "embed",
        "see",
        "hear",
        "translate",
        "chat",
        "caption",
        "write",
        "fill",
        "restore",
    ],
)
def test_every_task_has_settings_with_reasons_and_sources(task):
    choices = finetune_settings(task, OURS, 3000, classes=3, largest=0.9)
    assert all(choice.reason and choice.source for choice in choices)
    train = {c.key.removeprefix("train."): c.value for c in choices if c.key.startswith("train.")}
    assert TrainConfig(**{"steps": 1} | train).optimizer == "adamw"
    assert ("steps" in train) == (task not in ("write", "fill", "restore"))  # running text goes by the time
