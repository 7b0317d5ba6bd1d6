"""Heads on models that read texts, and functions shared by the tasks with labels.

Shapes: B batch, L classes.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.describe.export import without_head
from regard.models import Bert, Elmo, ModelWithHead
from regard.tasks import metrics
from regard.tasks.answers import Answer
from regard.tasks.loss import IGNORED

ClassMetric = Literal["accuracy", "matthews", "f1", "loss"]  # that choose the best weights
ENOUGH = 3  # a class with this many rows should be predicted at least once
BALANCED = 0.95  # from this balance of the classes on, accuracy is enough: about 65:35 of two


class ClassConfig(Protocol):
    """The base of the settings of tasks with a class for each input."""

    @property
    def balanced(self) -> bool: ...
    @property
    def metric(self) -> str | None: ...


def add_head(model: nn.Module, outputs: int, each: bool = False, mean: bool = False) -> ModelWithHead:
    """Add a new head, for a text or for `each` token, in place of any other."""
    model = without_head(model)
    classifier = ModelWithHead(model, outputs, each, mean, dropout=model.config.dropout)  # type: ignore[arg-type, union-attr]
    classifier.model.requires_grad_(True)
    freeze(classifier.unused)
    return classifier


def encoder_only(model: nn.Module) -> Bert | Elmo:
    """Return a BERT or an ELMo whose own heads are frozen."""
    encoder = cast("Bert | Elmo", without_head(model))
    encoder.requires_grad_(True)
    freeze(encoder.unused_by_head(pooled=False))
    return encoder


def global_projections(model: nn.Module) -> list[nn.Module]:
    """The modules that a model uses only for its global tokens, if it has any."""
    projections: list[nn.Module] = getattr(model, "global_projections", list)()
    return projections


def freeze(parts: Sequence[nn.Module | nn.Parameter]) -> None:
    """Freeze the parts that the task does not use: other processes would wait for their gradients."""
    for part in parts:
        part.requires_grad_(False)


# Labels that are not balanced


def label_settings(
    config: ClassConfig, numbers: Sequence[int] | np.ndarray, names: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that follow from the class frequencies (the metric that chooses the best weights,
    and the weights of the classes), and notes."""
    counts = np.bincount(numbers, minlength=len(names))
    settings: dict[str, Any] = {"labels": list(names)}
    if config.balanced:
        settings["weights"] = class_weights(counts)
    if config.metric is not None:
        return settings, []
    balanced = label_balance(counts) >= BALANCED
    settings["metric"] = "accuracy" if balanced else "matthews" if len(names) == 2 else "f1"
    if balanced:
        return settings, []
    share, commonest, metric = counts.max() / counts.sum(), names[int(counts.argmax())], settings["metric"]
    return settings, [
        f"{share:.0%} of the labels are {commonest}: the best weights are those with the best {metric}, "
        "which does not reward that answer alone (task.metric)"
    ]


def label_balance(counts: Sequence[int] | np.ndarray) -> float:
    """The effective number of classes, e to the entropy, as a share of all: 1 if all are equally frequent."""
    p = np.asarray(counts) / max(1, np.sum(counts))
    return float(np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum())) / len(p)


def class_weights(counts: Sequence[int] | np.ndarray) -> list[float]:
    """Weights with which rare classes count as much as frequent ones; their mean over all rows is 1."""
    counts = np.asarray(counts)
    weights = 1 / np.maximum(counts, 1)
    return (weights * counts.sum() / (weights * counts).sum()).tolist()


# Classes


def class_counts(logits: Tensor, labels: Tensor) -> Tensor:
    """How often each class is right, predicted, and true (3 L), from logits (B, L) and labels (B,)."""
    classes, counts = logits.shape[1], labels != IGNORED
    predicted, true = logits.argmax(-1)[counts], labels[counts]
    sides = (true[predicted == true], predicted, true)
    return torch.cat([side.bincount(minlength=classes) for side in sides])


def count_scores(counts: Sequence[float]) -> dict[str, float]:
    """The metrics of `class_counts` over all data."""
    right, predicted, true = np.reshape(counts, (3, -1))
    n = max(1.0, true.sum())
    positive = [1] if len(right) == 2 else np.flatnonzero(predicted + true)  # as in `class_scores`
    f1 = (2 * right / np.maximum(1, predicted + true))[positive]
    spread = (n * n - (predicted**2).sum()) * (n * n - (true**2).sum())
    together = right.sum() * n - (predicted * true).sum()
    return {
        "accuracy": float(right.sum() / n),
        "f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float(together / spread**0.5) if spread else 0.0,
    }


def remark_on_classes(names: Sequence[str], counts: Sequence[float], balanced: bool) -> str | None:
    """Describe classes that are never predicted, according to `class_counts` over all data."""
    _, predicted, true = np.reshape(counts, (3, -1))
    missing = [(name, n) for name, p, n in zip(names, predicted, true, strict=True) if p == 0 and n >= ENOUGH]
    if not missing:
        return None
    few = ", ".join(f"{name!r} ({n:.0f} of {true.sum():.0f} rows)" for name, n in missing[:3])
    more = f" and {len(missing) - 3} more classes" if len(missing) > 3 else ""
    only = f"; every prediction is {names[int(predicted.argmax())]!r}" if (predicted > 0).sum() == 1 else ""
    advice = "give more such rows" if balanced else "--set task.balanced=true makes each class count alike"
    return f"never predicted: {few}{more}{only}; {advice}"


def likeliest_classes(labels: Sequence[str], logits: Tensor, count: int) -> list[Answer]:
    """The most likely classes with their probabilities."""
    best = logits.softmax(-1).topk(min(count, len(logits)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Answer(labels[i], p) for i, p in pairs]


def class_scores(
    labels: Sequence[str], answers: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
    """F1 and Matthews correlation of predicted classes; of two classes, the second is the positive one."""
    positive = labels[1] if len(labels) == 2 else None
    return {
        "f1": metrics.f1(answers, references, positive),
        "matthews": metrics.matthews(answers, references),
    }
