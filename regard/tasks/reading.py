"""One input as its task gives it to the model, for traces, views and What if."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import UserError


@dataclass
class Reading:
    """The tokens of one input, and a function that runs the model on it; results have a batch dimension."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    tokens: dict[str, list[str]] = field(default_factory=dict)
    run: Callable[[], Tensor] | None = None
    pixels: Tensor | None = None
    grid: tuple[int, int] | None = None
    unread: int = 0  # tokens of the input that don't fit the model's context
    may: Tensor | None = None  # where an answer may begin or end, if the model finds spans


def on_device(model: nn.Module, *rows: Sequence[int]) -> list[Tensor]:
    """Make a batch of one of each row of ids, on the model's device."""
    device = next(model.parameters()).device
    return [torch.tensor([list(row)], device=device) for row in rows]


def recorded_call(model: nn.Module, run: Callable[[], Any]) -> tuple[tuple[Any, ...], Tensor]:
    """Return the arguments and the result of the only forward call of the model during `run`."""
    calls: list[tuple[tuple[Any, ...], Tensor]] = []
    hook = model.register_forward_hook(lambda _, args, result: calls.append((args, result)))
    try:
        run()
    finally:
        hook.remove()
    if (parts := sum(len(result) for _, result in calls)) != 1:
        raise UserError(f"the text is read in {parts} parts, each on its own; trace a shorter one")
    return calls[0]


def region_names(rows: int, columns: int) -> list[str]:
    """A name for each region of an image: its row and its column."""
    return [f"{r},{c}" for r in range(rows) for c in range(columns)]
