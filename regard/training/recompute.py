"""Gradient checkpointing (Chen et al. 2016): a block keeps only its input, and computes the rest of what its
backward pass needs a second time."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core.cache import KVCache
from regard.core.layers import Block
from regard.errors import UserError


def recompute_blocks(model: nn.Module) -> None:
    """Make the blocks of a model keep only their inputs."""
    blocks = [m for m in model.modules() if isinstance(m, Block)]
    if not blocks:
        raise UserError(
            "train.recompute is for models of Transformer blocks, and this one has none; leave it out"
        )
    for block in blocks:
        block.forward = partial(forward_twice, block.forward)  # type: ignore[method-assign]


def forward_twice(forward: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
    """Compute a block now and, if there is a gradient, once more in its backward pass."""

    def run(*args: Any, **options: Any) -> Tensor:
        # the second time must not see what the first one added to a cache
        return forward(
            *args, **{k: copy.copy(v) if isinstance(v, KVCache) else v for k, v in options.items()}
        )

    if not torch.is_grad_enabled():
        return forward(*args, **options)
    y: Tensor = checkpoint(run, *args, use_reentrant=False, **options)
    return y
