"""Where a model stands in several texts, as one state: texts come to it and go, none is changed by that.

Shapes: B rows, T tokens of text, S of source, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.cache import Growing
from regard.ensemble import States
from regard.recurrent import RecurrentState


def join(a: Any, b: Any) -> Any:
    """The rows of a, then those of b. What is shorter is padded: texts on the left, sources on the right."""
    if isinstance(a, States):
        return States([join(x, y) for x, y in zip(a.each, b.each, strict=True)])
    if isinstance(a, RecurrentState):
        a.real = both_real(a.real, b.real, a.source[..., 0], b.source[..., 0])
        a.hidden = tuple(torch.cat([x, y], dim=1) for x, y in zip(a.hidden, b.hidden, strict=True))
        a.source = stacked(a.source, b.source, 1)  # (B, S, D)
        a.keys = None if a.keys is None else stacked(a.keys, b.keys, 1)  # (B, S, D)
        a.length = max(a.length, b.length)
        return a
    a.real = both_real(a.real, b.real, column(a.layers), column(b.layers), left=True)
    if a.source:
        a.source_real = both_real(a.source_real, b.source_real, column(a.source), column(b.source))
    for ours, others, left in ((a.layers, b.layers, True), (a.source, b.source, False)):
        for x, y in zip(ours, others, strict=True):
            x.kv = tuple(stacked(s, t, 2, left) for s, t in zip(x.kv, y.kv, strict=True))
    return a


def trim(state: Any, lengths: Sequence[int], sources: Sequence[int] = ()) -> None:
    """Drops the columns that are padding in every row, given how long each row's text is, and its source."""
    if isinstance(state, States):
        for each in state.each:
            trim(each, lengths, sources)
        return
    T, S = max(lengths), max(sources, default=0)
    if isinstance(state, RecurrentState):
        state.length = T
        if state.real is not None:
            state.source, state.keys = state.source[:, :S], None if state.keys is None else state.keys[:, :S]
            state.real = rest(state.real[:, :S], sources)
        return
    if state.real is not None:
        for layer in state.layers:
            layer.kv = tuple(x[:, :, -T:] for x in layer.kv)
        state.real = rest(state.real[:, -T:], lengths)
    if state.source_real is not None:
        for layer in state.source:
            layer.kv = tuple(x[:, :, :S] for x in layer.kv)
        state.source_real = rest(state.source_real[:, :S], sources)


def rest(real: Tensor, lengths: Sequence[int]) -> Tensor | None:
    """What is real of rows so long; None, all of it, if they are equally long."""
    return None if min(lengths) == max(lengths) else real


def column(layers: Sequence[Growing]) -> Tensor:
    """Anything (B, S) of what layers keep."""
    assert layers[0].kv is not None
    return layers[0].kv[0][:, 0, :, 0]


def both_real(a: Tensor | None, b: Tensor | None, x: Tensor, y: Tensor, left: bool = False) -> Tensor | None:
    """Which columns of x (B, S) above y are real, given that of each; None if all are."""
    if a is None and b is None and x.shape[1] == y.shape[1]:
        return None
    a, b = (torch.ones_like(t, dtype=torch.bool) if real is None else real for real, t in ((a, x), (b, y)))
    return stacked(a, b, 1, left)


def stacked(a: Tensor, b: Tensor, dim: int, left: bool = False) -> Tensor:
    """The rows of a above those of b, the shorter padded with zeros along `dim`."""
    size = max(a.shape[dim], b.shape[dim])

    def filled(x: Tensor) -> Tensor:
        gap = size - x.shape[dim]
        around = [0, 0] * (x.dim() - 1 - dim) + ([gap, 0] if left else [0, gap])
        return F.pad(x, around) if gap else x

    return torch.cat([filled(a), filled(b)])
