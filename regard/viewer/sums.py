"""How each number of a trace was computed, as the model describes it: see `regard/describe.py`."""

import torch
from torch import Tensor

from regard.describe.values import Description, Op, operands
from regard.runs.model import Model
from regard.tracing import Trace


def weights(model: Model) -> dict[str, Tensor]:
    """The weights that operations name, each with an @ before its name."""
    return Description().of(model.model).weights


def sums(model: Model, trace: Trace) -> dict[str, Op]:
    """The operation that made each tensor of a trace, by name, where all of its operands are at hand."""
    description = Description().of(model.model)
    known = description.weights.keys() | set(trace)
    ops: dict[str, Op] = {}
    for value in description.values:
        if value.op is not None and value.name in trace and operands(value.op) <= known:
            ops.setdefault(value.name, value.op)
    if "probabilities" in trace and softened(trace["logits"], trace["probabilities"]):
        ops["probabilities"] = {"does": "softmax", "x": "logits"}
    return ops


def softened(logits: Tensor, probabilities: Tensor) -> bool:
    """Whether the task made probabilities by a softmax along the rows; some have other ways."""
    same = logits.shape == probabilities.shape
    return same and torch.allclose(logits.float().softmax(-1), probabilities.float(), atol=1e-6)
