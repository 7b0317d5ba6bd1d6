"""Beams on a CPU share keys and values: choosing beams copies none of them.

In every step each beam writes a column of its own, and it attends to the columns that wrote its text. The
keys before the search and those of the source are there once for all beams of a sequence. Now and then the
columns that no beam attends to are dropped, which after some steps are most of them.

Shapes: B sequences, K beams, H heads, S positions, C columns.
"""

from typing import Any

import torch
from torch import Tensor

from regard.core.cache import Mask, State
from regard.core.positions import Positions
from regard.decode.cpu_steps import CPUStack, RoomyKVCache
from regard.decode.ensemble import States

MAX_BEAMS = 16  # beams; scores are computed for all of their columns, also of those that are not attended to
FEW = 6  # steps, of whose columns none are dropped: it would take longer than it saves


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
        self.beams, self.read = beams, state.length
        self.run = BeamStack(state.run.stack, self)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask.repeat_interleave(beams, 0)  # (B K, S)
        self.attended = torch.ones(sequences * beams, self.read, dtype=torch.bool)  # by each row (B K, C)
        self.places = torch.arange(self.read).expand(sequences, -1)  # the columns' positions (B, C)
        self.limit = self.read + FEW * beams  # columns, until those that no beam attends to are dropped

    @property
    def length(self) -> int:
        return self.read

    def reorder(self, rows: Tensor) -> None:
        """Row i continues from the former row rows[i]; the rows of a sequence stay together."""
        sequences = rows.view(-1, self.beams)[:, 0] // self.beams
        if len(rows) < len(self.attended):  # some are finished
            for cache in (*self.layers, *self.source):
                cache.reorder(sequences)
            self.places = self.places[sequences]
            if self.source_attention_mask is not None:
                self.source_attention_mask = self.source_attention_mask[sequences]
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[rows]
        self.attended = self.attended[rows]
        if self.attended.shape[1] > self.limit:
            self.drop_columns()

    def drop_columns(self) -> None:
        """Drop columns that wrote no beam's text: beams have most of their texts in common."""
        attended = self.attended.unflatten(0, (-1, self.beams))  # (B, K, C)
        by_any = attended.any(1)  # (B, C)
        C, n = by_any.shape[1], int(by_any.sum(1).amax())
        self.limit = n + n // 2 + FEW * self.beams
        if 3 * n > 2 * C:
            return
        index = by_any.byte().argsort(dim=1, descending=True, stable=True)[:, :n]  # (B, n)
        for cache in self.layers:
            assert isinstance(cache, RoomyKVCache)
            cache.choose(index)
        self.attended = attended.gather(2, index[:, None].expand(-1, self.beams, -1)).flatten(0, 1)
        self.places = self.places.gather(1, index)

    def begin_step(self) -> None:
        """The next step: row i writes the column of its beam."""
        B, K = len(self.places), self.beams
        self.attended = torch.cat([self.attended, torch.eye(K, dtype=torch.bool).repeat(B, 1)], 1)
        self.places = torch.cat([self.places, self.places.new_full((B, K), self.read)], 1)
        self.read += 1

    def over_columns(self, mask: Mask) -> Tensor:
        """A mask over positions (B K, 1, 1, S), or a bias, as a bias over columns (B, 1 or H, K, C)."""
        attended = self.attended[:, None, None]  # (B K, 1, 1, C)
        assert self.layers[0].kv is not None
        bias = self.layers[0].kv[0].new_zeros(())
        if mask is not None:
            places = self.places.repeat_interleave(self.beams, 0)[:, None, None]  # (B K, 1, 1, C)
            mask = mask.expand(len(places), -1, -1, -1)
            mask = mask.gather(3, places.expand(-1, mask.shape[1], -1, -1))  # (B K, 1 or H, 1, C)
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
