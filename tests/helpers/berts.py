"""Weights of Hugging Face's BERT classes in ours, for tests that compare the two."""

from typing import Any

from torch import Tensor, nn

from regard.convert.huggingface.bert import NAMES
from regard.convert.huggingface.family import their_name

HEADS = ("classifier", "qa_outputs")


def plain_name(name: str) -> str:
    """Remove the prefix that some of their classes have."""
    return name.removeprefix("bert.")


def bert_weights(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Their weights for our BERT; where their class lacks a head, ours."""
    weights = {plain_name(name): t for name, t in state.items()}
    return {ours: weights.get(their_name(NAMES, ours), own) for ours, own in model.state_dict().items()}


def head_weights(state: dict[str, Tensor]) -> dict[str, Any]:
    """The weights of a fine-tuned head, for `ModelWithHead.head`."""
    names = [(head, kind) for head in HEADS for kind in ("weight", "bias")]
    return {kind: state[f"{head}.{kind}"] for head, kind in names if f"{head}.{kind}" in state}
