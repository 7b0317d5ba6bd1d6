"""What a model remembers between two steps of writing.

Shapes: B batch, G key/value heads, T tokens to come, S positions read so far, d width of a head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

KeysValues = tuple[Tensor, Tensor]


class Cache(Protocol):
    def extend(self, new: Callable[[], KeysValues]) -> KeysValues: ...


class Growing:
    """Self-attention's past: keys and values of every position read so far."""

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


class Fixed(Growing):
    """Cross-attention's source: keys and values computed at the first step, then kept."""

    def extend(self, new: Callable[[], KeysValues]) -> KeysValues:
        if self.kv is None:
            self.kv = new()
        return self.kv


@dataclass
class State:
    """The caches of every layer, and which positions (B, S) read so far hold real tokens (all, if None).

    A decoder that looks at a source also keeps every layer's view of that, and which of it is real.
    """

    layers: Sequence[Growing]
    real: Tensor | None = None  # False where a row is padded
    source: Sequence[Fixed] = ()
    source_real: Tensor | None = None

    @property
    def length(self) -> int:
        return self.layers[0].length

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row rows[i] was: beams are chosen, or finished rows dropped."""
        for layer in (*self.layers, *self.source):
            layer.reorder(rows)
        if self.real is not None:
            self.real = self.real[rows]
        if self.source_real is not None:
            self.source_real = self.source_real[rows]


def onward(state: State | None, T: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the next T tokens stand, and a mask over all keys; padded rows start counting at their first."""
    past = state.length if state else 0
    if state is None or state.real is None:
        return torch.arange(past, past + T, device=device), None
    state.real = F.pad(state.real, (0, past + T - state.real.shape[1]), value=True)
    pos = (state.real.cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)
    return pos, state.real[:, None, None, :]
