"""Attention as lines between words.

Shapes: T rows, S columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.draw.scene import GAP, LARGE, MARGIN, Line, Scene, Shape, Text, heading, make_label, text_width

MAX_LINES = 2000
FAINT = 0.02  # smaller weights are not drawn


@dataclass(frozen=True)
class Arcs:
    """Attention weights: row t attends to column s with weights[t, s]."""

    title: str
    weights: np.ndarray  # (T, S)
    rows: Sequence[str]
    columns: Sequence[str]

    def scene(self) -> Scene:
        """Queries on the left, keys on the right; wider lines are larger weights."""
        rows, columns = ([make_label(word) for word in side] for side in (self.rows, self.columns))
        height = LARGE + 5
        left, top = MARGIN + text_width(rows, LARGE), MARGIN + 2 * LARGE + GAP
        right = left + max(160, text_width([self.title], LARGE) - left)
        y = [top + height * (i + 0.5) for i in range(max(len(rows), len(columns)))]
        shapes: list[Shape] = []
        order = np.argsort(self.weights, axis=None, kind="stable")[::-1][:MAX_LINES]
        for i, j in zip(*np.unravel_index(order, self.weights.shape), strict=True):
            if (weight := float(self.weights[i, j])) >= FAINT:
                width, opacity = 0.5 + 5 * weight, 0.15 + 0.85 * weight
                shapes.append(Line(left + GAP, y[i], right - GAP, y[j], width, opacity))
        shapes.append(heading(self.title))
        shapes += [Text(left, y[i], word, anchor="end") for i, word in enumerate(rows)]
        shapes += [Text(right, y[j], word) for j, word in enumerate(columns)]
        width = right + text_width(columns, LARGE) + MARGIN
        return Scene(width, top + height * len(y) + MARGIN, self.title, shapes)
