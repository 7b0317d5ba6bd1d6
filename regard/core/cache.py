"""What a model remembers between two steps of generation.

Shapes: B batch, G key/value heads, T new tokens, S positions read so far, D width, d width of a head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Mask = Tensor | None  # boolean, True means "may attend": (B, S) over tokens, or broadcast to (B, H, T, S)
KeysValues = tuple[Tensor, Tensor]


class KVCache:
    """The past of self-attention: keys and values of every position read so far."""

    def __init__(self) -> None:
        self.kv: KeysValues | None = None

    @property
    def length(self) -> int:
        return 0 if self.kv is None else self.kv[0].shape[2]

    def extend(self, new: Callable[[], KeysValues]) -> KeysValues:
        k, v = new()
        if self.kv is not None:
            k, v = torch.cat([self.kv[0], k], dim=2), torch.cat([self.kv[1], v], dim=2)  # (B, G, S, d)
        self.kv = k, v
        return self.kv

    def reorder(self, rows: Tensor) -> None:
        if self.kv is not None:
            self.kv = self.kv[0][rows], self.kv[1][rows]


class CrossKVCache(KVCache):
    """The source of cross-attention: keys and values computed at the first step, then kept."""

    def extend(self, new: Callable[[], KeysValues]) -> KeysValues:
        self.kv = self.kv or new()
        return self.kv


@dataclass
class State:
    """The caches of every layer, and masks (B, S) that are False where a row is padded; None: nowhere."""

    layers: Sequence[KVCache]
    attention_mask: Mask = None
    source: Sequence[CrossKVCache] = ()
    source_attention_mask: Mask = None
    encoded: Tensor | None = None  # the source's hidden states, until the first step has filled the caches
    positions: Tensor | None = None  # of every token, if they don't follow from the length
    run: Callable[..., Tensor] | None = None  # computes a stack of blocks instead of calling each, if given

    @property
    def length(self) -> int:
        return self.layers[0].length if self.layers else 0

    def of_layer(self, i: int) -> dict[str, Any]:
        """Return the arguments of one block."""
        source = {"source": self.encoded, "source_mask": over_keys(self.source_attention_mask)}
        return {"cache": self.layers[i]} | (source | {"source_cache": self.source[i]} if self.source else {})

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue from the former row rows[i]: to choose beams, or to drop finished rows."""
        for layer in (*self.layers, *self.source):
            layer.reorder(rows)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[rows]
        if self.source_attention_mask is not None:
            self.source_attention_mask = self.source_attention_mask[rows]


def over_keys(attention_mask: Mask) -> Mask:
    """(B, S) -> (B, 1, 1, S)"""
    return None if attention_mask is None else attention_mask[:, None, None, :]


def masked_mean(x: Tensor, attention_mask: Mask) -> Tensor:
    """The mean of the real tokens of each row: (B, T, D) -> (B, D)."""
    if attention_mask is None:
        return x.mean(1)
    return (x * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)  # (B, D)


def next_positions(state: State | None, T: int, device: torch.device) -> tuple[Tensor, Mask]:
    """The positions of the next T tokens, counted from each row's first real one, and a mask over keys."""
    past = state.length if state else 0
    if state is None or state.attention_mask is None:
        pos = None if state is None else state.positions
        return torch.arange(past, past + T, device=device) if pos is None else pos, None
    mask = state.attention_mask
    state.attention_mask = F.pad(mask, (0, past + T - mask.shape[1]), value=True)
    pos = (state.attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)
    return pos, over_keys(state.attention_mask)
