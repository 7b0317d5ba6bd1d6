"""The records of an attention's last call, as tensors of a trace.

Shapes: H heads, T queries, S keys.
"""

import math
from typing import Any

import torch
from torch import Tensor

# Why a query may attend to a key, or not: the values of `reason`.
REASONS = ("may look", "padding", "future", "window")


def last(module: Any) -> dict[str, Tensor]:
    """The record of a watched module's last call; empty if it is not watched."""
    return module.records[-1] if module.records else {}


def products(module: Any) -> Tensor | None:
    """q kᵀ of the last call."""
    if not module.records:
        return None
    record = last(module)
    return (
        record["scores"] * math.sqrt(record["q"].shape[-1])
        if "q_global" in record
        else record["q"] @ record["k"].mT
    )


def biases(module: Any) -> Tensor | None:
    """The biases of the scores at the last call, (1, H, T, S)."""
    return last(module)["bias"].expand(1, -1, -1, -1) if "bias" in last(module) else None


def reasons(module: Any) -> tuple[Tensor | None, Tensor | None]:
    """Where queries may attend (1, T, S), and the reasons as numbers, at the last call."""
    if not module.records:
        return None, None
    (T, S), mask = last(module)["weights"].shape[-2:], last(module).get("mask")
    device = last(module)["weights"].device
    may = torch.ones(1, T, S, dtype=torch.bool, device=device)
    reason = torch.zeros(1, T, S, dtype=torch.uint8, device=device)
    if mask is None:
        return may, reason
    may = mask.reshape(-1, *mask.shape[-2:])[:1].expand(1, T, S)  # the first row's; the same for all heads
    reason[~may] = REASONS.index("padding")
    i, j = torch.arange(S - T, S, device=device)[:, None], torch.arange(S, device=device)
    if getattr(module, "window", None) is not None:
        g = last(module)["q_global"].shape[-2] if "q_global" in last(module) else module.globals
        near = ((i - j).abs() <= module.window) | (i < g) | (j < g)
        reason[:, ~near] = REASONS.index("window")
    if getattr(module, "causal", False):
        reason[:, i < j] = REASONS.index("future")
    return may, reason
