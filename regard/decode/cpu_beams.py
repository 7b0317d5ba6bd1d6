"""Beams on a CPU share keys and values: choosing beams copies none of them.

In every step each beam writes a column of its own, and it attends to the columns that wrote its text. The
keys before the search and those of the source are there once for all beams of a sequence.

Shapes: B sequences, K beams, H heads, P positions before the search, t steps of it, C = P + t K columns.
"""

from typing import Any

import torch
from torch import Tensor

from regard.core.cache import Mask, State
from regard.core.positions import Positions
from regard.decode.cpu_steps import CPUStack
from regard.decode.ensemble import States

MAX_BEAMS = 16  # beams; scores are computed for all of their columns, also of those that are not attended to


def branch(state: Any, beams: int, rows: Tensor) -> Any:
    """The state of the beams of each row, which are the same at first."""
    if isinstance(state, States):
        return States([branch(each, beams, rows) for each in state.each])
    if 1 < beams <= MAX_BEAMS and isinstance(state, State) and can_branch(state.run):
        return BeamState(state, beams, len(rows))
    state.reorder(rows.repeat_interleave(beams))
    return state


def can_branch(run: Any) -> bool:
    """Return whether these steps can attend to columns: not those with a window of positions."""
    return isinstance(run, CPUStack) and all(attn.last is None for attn, _, _ in run.layers)


class BeamState(State):
    """The state of B K rows, with caches for B sequences."""

    def __init__(self, state: State, beams: int, sequences: int):
        assert isinstance(state.run, CPUStack)
        super().__init__(**vars(state))
        self.beams, self.before = beams, state.length
        self.run = BeamStack(state.run.stack, self)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask.repeat_interleave(beams, 0)  # (B K, S)
        self.columns = torch.empty(sequences * beams, 0, dtype=torch.long)  # of each step, its own (B K, t)

    @property
    def length(self) -> int:
        return self.before + self.columns.shape[1]

    def reorder(self, rows: Tensor) -> None:
        """Row i continues from the former row rows[i]; the rows of a sequence stay together."""
        sequences = rows.view(-1, self.beams)[:, 0] // self.beams
        if len(rows) < len(self.columns):  # some are finished
            for cache in (*self.layers, *self.source):
                cache.reorder(sequences)
            if self.source_attention_mask is not None:
                self.source_attention_mask = self.source_attention_mask[sequences]
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[rows]
        self.columns = self.columns[rows]

    def begin_step(self) -> None:
        """The next step: row i writes the column of its beam."""
        own = torch.arange(self.beams).repeat(len(self.columns) // self.beams)
        self.columns = torch.cat([self.columns, own[:, None]], 1)

    def over_columns(self, mask: Mask) -> Tensor:
        """A mask over positions (B K, 1, 1, P + t), or a bias, as a bias over columns (B, 1 or H, K, C)."""
        R, t = self.columns.shape
        attended = (self.columns[..., None] == torch.arange(self.beams)).flatten(1)  # (B K, t K)
        attended = torch.cat([attended.new_ones(R, self.before), attended], 1)[
            :, None, None
        ]  # (B K, 1, 1, C)
        steps = torch.arange(self.before, self.before + t).repeat_interleave(self.beams)
        assert self.layers[0].kv is not None
        bias = self.layers[0].kv[0].new_zeros(())
        if mask is not None:
            mask = mask[..., torch.cat([torch.arange(self.before), steps])]
            attended, bias = (attended & mask, bias) if mask.dtype == torch.bool else (attended, mask)
        bias = torch.where(attended, bias, -torch.inf)  # (B K, 1 or H, 1, C)
        return bias.unflatten(0, (-1, self.beams)).squeeze(3).transpose(1, 2)


class BeamStack(CPUStack):
    """The blocks of a decoder, for one token of each beam."""

    state: BeamState

    def __init__(self, stack: Any, state: BeamState):
        super().__init__(stack, state)
        self.beams = state.beams

    def mask(self, positions: Positions, mask: Mask) -> Mask:
        mask = super().mask(positions, mask)
        self.state.begin_step()
        return self.state.over_columns(mask)
