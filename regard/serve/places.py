"""The default number of answers that a model generates at once."""

from typing import Any

import torch
from torch import nn

from regard.core.layers import Stack
from regard.decode.blocks import attentions, find_decoder, is_causal
from regard.decode.runner import ROWS
from regard.decode.steps import MEMORY

PLACES = 32  # on a CPU, where larger batches are hardly faster
MAX_PLACES = ROWS[-1]  # of the largest step of a runner


def places_for(model: nn.Module, device: torch.device) -> int:
    """The number of texts whose keys and values, for the full context, fit into a GPU's free memory.

    If texts share pages, there are at least as many places as on a CPU: few texts are that long.
    """
    if device.type != "cuda":
        return PLACES
    free, size = torch.cuda.mem_get_info(device)[0], cache_bytes(model)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())  # a runner copies them
    least = 1 if find_decoder(model) is None else PLACES
    fitting = int(MEMORY * max(0, free - weights)) // size if size else MAX_PLACES
    return min(max(fitting, least), MAX_PLACES)


def cache_bytes(model: nn.Module) -> int:
    """Bytes of the keys and values of one text that fills the context, and of a source that does."""
    stacks = [m for m in model.modules() if isinstance(m, Stack) and len(m) and is_causal(m[0])]
    layers = [attention.k for stack in stacks for attention in attentions(stack)]
    config: Any = model.config
    context = int(config.context)
    return sum(2 * context * k.out_features * k.weight.element_size() for k in layers)
