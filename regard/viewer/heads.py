"""The behaviour of attention heads on this input: patterns of cells, the weight on each, and a name.

Shapes: H heads, T queries, S keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from regard.tracing import Trace
from regard.tracing.names import attention_sides

MOST_TOKENS = 2048  # each way; finding patterns of longer inputs takes too long
LEAST_WEIGHT = 0.4  # the smallest share of a head's attention for a pattern to name it
LEAST_RATIO = 1.5  # times what an even spread would give
# More informative patterns come first: nearly every model has heads that look at the first token.
TELLING = {
    "induction": 1.4,
    "alignment": 1.2,
    "duplicate": 1.1,
    "previous": 1.0,
    "near": 0.9,
    "next": 0.9,
    "positional": 0.8,
    "itself": 0.5,
    "first": 0.4,
    "class": 0.4,
}


class Pattern(TypedDict):
    """A pattern of cells: the mean weight of each head on it, and that of an even spread."""

    weights: list[float]
    chance: float
    rows: int  # queries that have such cells


class Opening(TypedDict):
    """The head that the page opens with."""

    part: str
    layer: int
    head: int


def attention_patterns(trace: Trace, name: str) -> dict[str, Pattern]:
    """How much of each head's weights goes to the cells of each pattern, of an attention in a trace."""
    rows, columns = attention_sides(name)
    ids, patches = side_ids(trace, rows, columns), not (trace.ids.get(rows) and trace.ids.get(columns))
    grid = trace.about.get("grid") if patches else None  # words that look at words have none
    return find_patterns(trace[f"{name}.weights"].float().cpu(), allowed_cells(trace, name), ids, grid)


def find_patterns(
    weights: Tensor, allowed: Tensor, ids: tuple[list[int], list[int]], grid: tuple[int, int] | None
) -> dict[str, Pattern]:
    """The share of each head's weights (H, T, S) on the cells of each pattern; `allowed` (T, S)."""
    T, S = weights.shape[-2:]
    if max(T, S) > MOST_TOKENS:
        return {}
    even = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    patterns: dict[str, Pattern] = {}
    for name, cells in pattern_cells(T, S, ids, grid).items():
        cells = cells & allowed
        rows = cells.any(-1)
        if rows.sum() < 2:
            continue
        means = (weights * cells)[:, rows].sum(-1).mean(-1)  # (H,)
        patterns[name] = {
            "weights": means.nan_to_num().tolist(),
            "chance": float((even * cells)[rows].sum(-1).mean()),
            "rows": int(rows.sum()),
        }
    return patterns


def pattern_cells(
    T: int, S: int, ids: tuple[list[int], list[int]], grid: tuple[int, int] | None
) -> dict[str, Tensor]:
    """The cells (T, S) of each pattern that makes sense between these queries and keys."""
    i, j = torch.arange(T)[:, None], torch.arange(S)[None]
    if ids[0] is not ids[1]:
        if grid is not None or min(T, S) < 3:
            return {}
        return {"alignment": (j * (T - 1) - i * (S - 1)).abs() < T}  # within one key of the straight line
    if grid is not None:
        classes = {"class": (j == 0) & (i > 0)} if T > grid[0] * grid[1] else {}
        return classes | {"itself": i == j, "near": near_cells(T, grid)}
    first = {"first": (j == 0) & (i > 0), "itself": i == j}
    words = torch.tensor(ids[0])
    same = words[:, None] == words[None]
    after = torch.zeros(T, S, dtype=torch.bool)
    after[:, 1:] = same[:, :-1]  # the token after an earlier one like this
    offsets = {"previous": i - j == 1, "next": j - i == 1}
    positional = {f"positional {k}": i - j == k for k in (2, 3, 4) if k < T - 1}
    repeats = {"induction": after & (j <= i), "duplicate": same & (j < i)}
    return first | offsets | positional | repeats


def near_cells(T: int, grid: tuple[int, int]) -> Tensor:
    """The patches around each patch; tokens before the patches have none."""
    R, C = grid
    before = T - R * C
    n = torch.arange(R * C)
    down = (n[:, None] // C - n[None] // C).abs()
    right = (n[:, None] % C - n[None] % C).abs()
    cells = torch.zeros(T, T, dtype=torch.bool)
    cells[before:, before:] = torch.maximum(down, right) == 1
    return cells


def name_heads(patterns: dict[str, Pattern], heads: int) -> list[str | None]:
    """For each head the pattern that most of its weight goes to, if that is much more than by chance."""
    return [best_pattern(patterns, head)[0] for head in range(heads)]


def best_pattern(patterns: dict[str, Pattern], head: int) -> tuple[str | None, float]:
    """The most informative pattern of a head, and its score."""
    best: tuple[str | None, float] = (None, 0.0)
    for name, pattern in patterns.items():
        weight, chance = pattern["weights"][head], pattern["chance"]
        if weight < max(LEAST_WEIGHT, LEAST_RATIO * chance):
            continue
        telling = TELLING[name.split()[0]] * (weight - chance)
        if telling > best[1]:
            best = name, telling
    return best


def choose_opening(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> Opening | None:
    """The most informative head: one with a name, or else the farthest from an even spread.

    In an encoder-decoder, a head of the cross-attention.
    """
    best: tuple[float, Opening] | None = None
    for part, layers in parts.items():
        if "cross" in parts and part != "cross":
            continue
        for attention in layers:
            for head, kind in enumerate(attention["kinds"]):
                focus = 0.1 * (1 - kind["entropy"] / max(attention["bits"], 1e-3))
                telling = best_pattern(attention["patterns"], head)[1] + focus
                if best is None or telling > best[0]:
                    best = telling, {"part": part, "layer": attention["layer"], "head": head}
    return None if best is None else best[1]


def even_bits(allowed: Tensor) -> float:
    """The entropy of an even spread over the keys that each query may attend to, in bits."""
    return float(allowed.sum(-1).clamp(min=1).log2().mean())


def allowed_cells(trace: Trace, name: str) -> Tensor:
    """Which keys each query may attend to (T, S)."""
    return trace[f"{name}.reason"].cpu() == 0


def side_ids(trace: Trace, rows: str, columns: str) -> tuple[list[int], list[int]]:
    """The ids of the queries and of the keys; the same list if they are the same tokens."""
    queries = ids_of(trace, rows)
    return queries, queries if rows == columns else ids_of(trace, columns)


def ids_of(trace: Trace, side: str) -> list[int]:
    """The ids of a side's tokens; tokens without ids, such as patches, are all different."""
    ids, count = trace.ids.get(side) or [], len(trace.tokens[side])
    return list(ids) if len(ids) == count else list(range(count))
