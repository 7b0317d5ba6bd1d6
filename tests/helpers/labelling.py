"""Settings and models for the tests of tasks that label words."""

from typing import Any

from regard.models import MODELS, ModelWithHead

TINY: dict[str, Any] = {
    "model.dim": 32, "model.depth": 1, "model.heads": 2, "model.dropout": 0.0, "train.lr": 0.01,
    "train.batch": 16, "train.log": 50, "data.vocab": 300, "train.device": "cpu", "train.warmup": 5,
}  # fmt: skip


def tiny_model(task: Any, kind: str = "bert", **settings: Any) -> ModelWithHead:
    """A random model with the head of a task."""
    cls, config, _ = MODELS[kind]
    sizes = {"vocab": task.tokenizer.vocab, "context": task.context, "dim": 12, "depth": 1, "heads": 2}
    return task.add_head(cls(config(**sizes, **settings)), task.config)
