"""What each layer would have said: the model's last norm and output matrix on every layer's output.

The logit lens, nostalgebraist 2020. Shapes: N layers and what enters the first, D width, V vocabulary.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models import GPT, Bert, Captioner, Transformer
from regard.models.captioner import Blocks
from regard.trace import Trace

TOP = 5  # words of each layer
OUTPUT = re.compile(r"(?:decoder\.)?(?:blocks\.)?(\d+)\.output")


def tail(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The way from a block's output to logits over the vocabulary; none, if a model has no such blocks."""
    if isinstance(module, GPT):
        return lambda x: F.linear(module.norm(x), module.output)
    if isinstance(module, Bert):
        return lambda x: F.linear(module.transformed(module.norm(x)), module.output)
    if isinstance(module, Transformer):
        return lambda x: module.logits(module.decoder_norm(x))
    if isinstance(module, Captioner) and isinstance(module.decoder, Blocks):
        norm: Any = module.decoder.norm
        return lambda x: F.linear(norm(x), module.output)
    return None


def layers(trace: Trace) -> dict[str, str]:
    """By what a layer is called, the tensor that it gave; first what entered the first of them."""
    first = [name for name in ("decoder.input", "input") if name in trace][:1]
    found = {match[1]: name for name in trace if (match := OUTPUT.fullmatch(name))}
    return ({"embedding": first[0]} if first else {}) | found


@torch.no_grad()
def lens(module: nn.Module, trace: Trace, row: int) -> tuple[int, list[dict[str, Any]]]:
    """The token that the model finds likeliest at a row, and of every layer its likeliest ones as `ids` with
    their probabilities `p`, and the `rank` (from 1) and the probability `its` of the final one."""
    end = tail(module)
    assert end is not None
    names = layers(trace)
    x = torch.stack([trace[name][row] for name in names.values()])  # (N, D)
    shares = end(x).float().softmax(-1)  # (N, V)
    final = int(trace["logits"][row].argmax())
    its = shares[:, final]  # (N,)
    ranks = 1 + (shares > its[:, None]).sum(-1)  # (N,)
    best = shares.topk(min(TOP, shares.shape[1]))
    each = zip(names, best.indices.tolist(), best.values.tolist(), ranks.tolist(), its.tolist(), strict=True)
    return final, [dict(zip(("layer", "ids", "p", "rank", "its"), one, strict=True)) for one in each]
