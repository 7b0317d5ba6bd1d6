"""The logit lens: the model's final norm and output projection applied to every layer's output.

nostalgebraist 2020. Shapes: N layers and the input of the first, D width, V vocabulary.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.base import LanguageModel
from regard.tracing import Trace
from regard.tracing.names import trace_names

TOP = 5  # tokens of each layer
OUTPUT = re.compile(r"(?:decoder\.)?(?:blocks\.)?(\d+)\.output")


def output_head(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The function from a block's output to logits over the vocabulary, or None if the model has none."""
    names = dict(trace_names(module))
    norm = names.get("decoder.norm", names.get("norm"))
    if not isinstance(module, LanguageModel) or norm is None:
        return None
    transform: Callable[[Tensor], Tensor] = getattr(module, "lm_head", nn.Identity())  # BERT has one
    return lambda x: module.logits(transform(norm(x)))


def layers(trace: Trace) -> dict[str, str]:
    """The names of the layers' output tensors by layer, after the input of the first, `embedding`."""
    first = [name for name in ("decoder.input", "input") if name in trace][:1]
    outputs = {match[1]: name for name in trace if (match := OUTPUT.fullmatch(name))}
    return ({"embedding": first[0]} if first else {}) | outputs


@torch.no_grad()
def lens(module: nn.Module, trace: Trace, row: int) -> tuple[int, list[dict[str, Any]]]:
    """The model's most probable token at a row, and for each layer its most probable `ids` with their
    probabilities `p`, and the `rank` (from 1) and probability `its` of the model's token."""
    to_logits = output_head(module)
    assert to_logits is not None
    names = layers(trace)
    x = torch.stack([trace[name][row] for name in names.values()])  # (N, D)
    probabilities = to_logits(x).float().softmax(-1)  # (N, V)
    final = int(trace["logits"][row].argmax())
    its = probabilities[:, final]  # (N,)
    ranks = 1 + (probabilities > its[:, None]).sum(-1)  # (N,)
    best = probabilities.topk(min(TOP, probabilities.shape[1]))
    rows = zip(names, best.indices.tolist(), best.values.tolist(), ranks.tolist(), its.tolist(), strict=True)
    return final, [dict(zip(("layer", "ids", "p", "rank", "its"), values, strict=True)) for values in rows]
