"""Joining and trimming states, so that texts can enter and leave a batch without changing the others.

Shapes: B rows, T tokens of text, S of source, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.cache import KVCache
from regard.core.recurrent import RecurrentState
from regard.decode.ensemble import States


def join(a: Any, b: Any) -> Any:
    """Join the rows of a and b. Shorter ones are padded: texts on the left, sources on the right."""
    if isinstance(a, States):
        return States([join(x, y) for x, y in zip(a.each, b.each, strict=True)])
    if isinstance(a, RecurrentState):
        a.attention_mask = concat_masks(
            a.attention_mask, b.attention_mask, a.source[..., 0], b.source[..., 0]
        )
        a.hidden = tuple(torch.cat([x, y], dim=1) for x, y in zip(a.hidden, b.hidden, strict=True))
        a.source = concat_padded(a.source, b.source, 1)  # (B, S, D)
        a.keys = None if a.keys is None else concat_padded(a.keys, b.keys, 1)  # (B, S, D)
        a.length = max(a.length, b.length)
        return a
    a.attention_mask = concat_masks(
        a.attention_mask, b.attention_mask, first_column(a.layers), first_column(b.layers), left=True
    )
    if a.source:
        a.source_attention_mask = concat_masks(
            a.source_attention_mask, b.source_attention_mask, first_column(a.source), first_column(b.source)
        )
    for a_layers, b_layers, left in ((a.layers, b.layers, True), (a.source, b.source, False)):
        for x, y in zip(a_layers, b_layers, strict=True):
            x.kv = tuple(concat_padded(s, t, 2, left) for s, t in zip(x.kv, y.kv, strict=True))
    return a


def trim(state: Any, lengths: Sequence[int], sources: Sequence[int] = ()) -> None:
    """Drop the columns that are padding in every row, given the lengths of each row's text and source."""
    if isinstance(state, States):
        for each in state.each:
            trim(each, lengths, sources)
        return
    T, S = max(lengths), max(sources, default=0)
    if isinstance(state, RecurrentState):
        state.length = T
        if state.attention_mask is not None:
            state.source, state.keys = state.source[:, :S], None if state.keys is None else state.keys[:, :S]
            state.attention_mask = or_none(state.attention_mask[:, :S], sources)
        return
    if state.attention_mask is not None:
        for layer in state.layers:
            layer.kv = tuple(x[:, :, -T:] for x in layer.kv)
        state.attention_mask = or_none(state.attention_mask[:, -T:], lengths)
    if state.source_attention_mask is not None:
        for layer in state.source:
            layer.kv = tuple(x[:, :, :S] for x in layer.kv)
        state.source_attention_mask = or_none(state.source_attention_mask[:, :S], sources)


def or_none(attention_mask: Tensor, lengths: Sequence[int]) -> Tensor | None:
    """The mask of rows with these lengths; None if they are equally long."""
    return None if min(lengths) == max(lengths) else attention_mask


def first_column(layers: Sequence[KVCache]) -> Tensor:
    """A tensor with the length of the caches (B, S) and arbitrary values."""
    assert layers[0].kv is not None
    return layers[0].kv[0][:, 0, :, 0]


def concat_masks(
    a: Tensor | None, b: Tensor | None, x: Tensor, y: Tensor, left: bool = False
) -> Tensor | None:
    """The joint mask of the rows of x (B, S) and of y, from a mask of each; None if nothing is padded."""
    if a is None and b is None and x.shape[1] == y.shape[1]:
        return None
    a, b = (
        torch.ones_like(t, dtype=torch.bool) if attention_mask is None else attention_mask
        for attention_mask, t in ((a, x), (b, y))
    )
    return concat_padded(a, b, 1, left)


def concat_padded(a: Tensor, b: Tensor, dim: int, left: bool = False) -> Tensor:
    """The rows of a and of b, the shorter padded with zeros along `dim`."""
    size = max(a.shape[dim], b.shape[dim])

    def pad(x: Tensor) -> Tensor:
        gap = size - x.shape[dim]
        around = [0, 0] * (x.dim() - 1 - dim) + ([gap, 0] if left else [0, gap])
        return F.pad(x, around) if gap else x

    return torch.cat([pad(a), pad(b)])
