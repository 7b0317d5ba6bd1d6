"""Heads on models that read texts, and what the tasks with labels share."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from regard.models import Bert, Electra, Elmo, ModelWithHead
from regard.tasks import metrics
from regard.tasks.answers import Answer


def without_head(model: nn.Module) -> nn.Module:
    """The model below a head, or itself."""
    return model.model if isinstance(model, Electra | ModelWithHead) else model


def add_head(model: nn.Module, outputs: int, each: bool = False, mean: bool = False) -> ModelWithHead:
    """The model with a new head, for a text or for `each` token, in place of any other."""
    model = model.model if isinstance(model, ModelWithHead) else model
    headed = ModelWithHead(model, outputs, each, mean, dropout=model.config.dropout)  # type: ignore[arg-type, union-attr]
    headed.model.requires_grad_(True)
    freeze(headed.unused)
    return headed


def encoder_only(model: nn.Module) -> Bert | Elmo:
    """A BERT or an ELMo whose own heads are not trained."""
    encoder = model.model if isinstance(model, ModelWithHead) else model
    assert isinstance(encoder, Bert | Elmo)
    encoder.requires_grad_(True)
    freeze(encoder.unused_by_head(pooled=False))
    return encoder


def freeze(parts: Sequence[nn.Module | nn.Parameter]) -> None:
    """Parts that the task does not use: a parameter without a gradient would keep other processes waiting."""
    for part in parts:
        part.requires_grad_(False)


def class_weights(numbers: Sequence[int] | np.ndarray, classes: int) -> list[float]:
    """Weights by which rare classes count as much as frequent ones."""
    counts = np.bincount(numbers, minlength=classes)
    return (counts.sum() / classes / np.maximum(counts, 1)).tolist()


def likeliest_classes(labels: Sequence[str], logits: Tensor, count: int) -> list[Answer]:
    """The best classes with their probabilities."""
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
