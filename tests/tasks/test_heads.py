"""Labels that are not balanced: which metric they call for, class weights, and counts that sum up exactly."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from regard.tasks.heads import (
    class_counts,
    class_scores,
    class_weights,
    count_scores,
    label_balance,
    label_settings,
)
from regard.tasks.loss import IGNORED
from regard.tasks.metrics import accuracy


@dataclass
class Settings:
    balanced: bool = False
    metric: str | None = None


@pytest.mark.parametrize(
    ("counts", "metric"),
    [
        ((56, 44), "accuracy"),
        ((70, 30), "matthews"),
        ((5, 95), "matthews"),
        ((10, 11, 9, 10), "accuracy"),
        ((80, 10, 5, 5), "f1"),
        ((10, 10, 0), "f1"),
    ],
)
def test_the_metric_follows_from_the_labels(counts, metric):
    names = [f"class-{i}" for i in range(len(counts))]
    numbers = np.repeat(np.arange(len(counts)), counts)
    settings, notes = label_settings(Settings(), numbers, names)
    assert settings == {"labels": names, "metric": metric}
    assert bool(notes) == (metric != "accuracy")
    if notes:
        assert all(word in notes[0] for word in (metric, names[int(np.argmax(counts))]))
    assert label_settings(Settings(metric="loss"), numbers, names) == ({"labels": names}, [])  # as asked for


def test_balance_is_the_share_of_classes_that_count():
    assert label_balance([7, 7, 7]) == pytest.approx(1)
    assert label_balance([9, 0]) == pytest.approx(1 / 2)
    assert label_balance([70, 30]) > label_balance([95, 5]) > 1 / 2


@pytest.mark.parametrize("counts", [[90, 10], [5, 0, 20, 75]])
def test_weights_make_classes_count_the_same(counts):
    weights = np.array(class_weights(counts))
    total = (weights * counts)[np.array(counts) > 0]
    assert total == pytest.approx(np.full(len(total), sum(counts) / len(total)))
    numbers = np.repeat(np.arange(len(counts)), counts)
    names = [str(i) for i in range(len(counts))]
    assert label_settings(Settings(balanced=True), numbers, names)[0]["weights"] == weights.tolist()


@pytest.mark.parametrize("classes", [2, 5])
def test_counts_of_parts_give_the_scores_of_all(classes):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(61, classes, generator=generator)
    labels = torch.randint(0, classes, (61,), generator=generator)
    logits[torch.arange(61), labels] += 1
    absent = torch.full((7,), IGNORED)
    parts = [
        (logits[:20], labels[:20]),
        (logits[20:], labels[20:]),
        (logits[:7], absent),  # of a process without a row
    ]
    sums = sum(class_counts(*part) for part in parts)
    names = [str(i) for i in range(classes)]
    predicted, true = ([names[i] for i in side.tolist()] for side in (logits.argmax(1), labels))
    want = class_scores(names, predicted, true) | {"accuracy": accuracy(predicted, true)}
    assert count_scores(sums.tolist()) == pytest.approx(want)


def test_one_answer_for_all_is_no_correlation():
    logits, labels = torch.tensor([[0.0, 1.0]]).expand(10, 2), torch.tensor([1] * 7 + [0] * 3)
    scores = count_scores(class_counts(logits, labels).tolist())
    assert scores["matthews"] == 0
    assert scores["accuracy"] == pytest.approx(0.7)
