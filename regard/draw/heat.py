"""Heat maps: one matrix with labels, or all heads of all layers. Darker cells are larger numbers.

Shapes: L layers, H heads, T rows, S columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.draw.scene import (
    GAP,
    LARGE,
    MARGIN,
    SCALE,
    SMALL,
    Image,
    Rectangle,
    Scene,
    Shape,
    Text,
    heading,
    make_label,
    text_width,
)

# Light to dark in even steps of lightness (CIE L* 98 to 14), from yellow over green to blue: the order is
# also visible in grey, and to colour-blind people.
RAMP = (
    *("#fafbe8", "#c9e3b7", "#84cea0", "#1bb69f", "#0095a0"),
    *("#00749d", "#11558b", "#2b3864", "#1c2337"),
)
WIDEST = 900  # pixels of a matrix, as far as its cells allow
MAX_CELLS = 600  # along a side of a matrix; more are max-pooled
MAX_RECTANGLES = 1024  # more cells become one image
SCALE_CELL, SCALE_CELLS = 4, 24  # the colour scale below a matrix


@dataclass(frozen=True)
class Matrix:
    """Attention weights: row t attends to column s with weights[t, s]."""

    title: str
    weights: np.ndarray  # (T, S)
    rows: Sequence[str]
    columns: Sequence[str]
    low: float = 0.0  # the number of the lightest colour; the darkest is the maximum

    def scene(self) -> Scene:
        """Row labels on the left, column labels above, the colour scale below."""
        T, S = self.weights.shape
        weights = max_pool(self.weights)
        cell = int(max(2 if max(T, S) < MAX_CELLS else 1, min(22, WIDEST // max(weights.shape))))
        height, width = cell * weights.shape[0], cell * weights.shape[1]
        size = min(LARGE, max(SMALL, cell - 3))
        rows, columns = place_labels(self.rows, height, size), place_labels(self.columns, width, size)
        left = MARGIN + text_width([word for _, word in rows], size) + GAP
        top = MARGIN + 2 * LARGE + text_width([word for _, word in columns], size) + GAP
        shapes: list[Shape] = [heading(self.title)]
        shapes += [Text(left - GAP / 2, top + middle, word, size, "end") for middle, word in rows]
        shapes += [Text(left + middle, top - GAP / 2, word, size, vertical=True) for middle, word in columns]
        shapes += heat_cells(scale_to_max(weights - self.low), left, top, cell)
        bottom = top + height + GAP
        peak = float(self.weights.max(initial=0))
        shapes += colour_scale(left, bottom, f"{self.low:.2g}", f"{peak:.2f}")
        widths = width, SCALE_CELLS * SCALE_CELL + 40, text_width([self.title], LARGE) - left + MARGIN
        return Scene(left + max(widths) + MARGIN, bottom + SCALE_CELL + MARGIN, self.title, shapes)


def confusion_matrix(name: str, classes: Sequence[str], counts: Sequence[Sequence[int]]) -> Matrix:
    """The shares of each class's rows (a row) that were predicted as each class (a column)."""
    shares = np.asarray(counts, dtype=np.float64)
    shares /= np.maximum(1, shares.sum(1, keepdims=True))
    return Matrix(f"{name}: true classes (rows) and predicted ones", shares, classes, classes)


@dataclass(frozen=True)
class Atlas:
    """Attention weights of all heads of all layers."""

    title: str
    weights: np.ndarray  # (L, H, T, S)

    def scene(self) -> Scene:
        """A small heat map of each head, a row for each layer."""
        L, H, T, S = self.weights.shape
        side = max(24, min(96, WIDEST // H))
        height = side if S <= T else max(12, round(side * T / S))
        width = side if S > T else max(12, round(side * S / T))
        left = MARGIN + text_width([f"layer {L - 1}"], SMALL) + GAP
        top = MARGIN + 2 * LARGE + SMALL + GAP
        shapes: list[Shape] = [heading(self.title)]
        for h in range(H):
            words, middle = f"head {h}" if width >= 40 else str(h), left + h * (width + GAP) + width / 2
            shapes.append(Text(middle, top - GAP, words, SMALL, "middle", pale=True))
        for layer in range(L):
            y = top + layer * (height + GAP)
            name = f"layer {layer}"
            shapes.append(Text(left - GAP / 2, y + height / 2, name, SMALL, "end", pale=True))
            for h in range(H):
                colours = heat_colours(scale_to_max(max_pool(self.weights[layer, h], height * SCALE)))
                pixels = resize_nearest(colours, height * SCALE, width * SCALE)
                shapes.append(Image(left + h * (width + GAP), y, width, height, pixels))
        right = max(left + H * (width + GAP), MARGIN + text_width([self.title], LARGE))
        return Scene(right + MARGIN, top + L * (height + GAP) + MARGIN, self.title, shapes)


def place_labels(words: Sequence[str], length: float, size: float) -> list[tuple[float, str]]:
    """(middle, label) of each word along a side; only every second, third, … if they would touch."""
    spacing = length / len(words)
    step = max(1, math.ceil((size + 1) / spacing))
    return [(spacing * (i + 0.5), make_label(words[i])) for i in range(0, len(words), step)]


def heat_cells(shares: np.ndarray, x: float, y: float, cell: int) -> list[Shape]:
    """Numbers from 0 to 1 as coloured squares, or as one image if there are many."""
    (T, S), colours = shares.shape, heat_colours(shares)
    if T * S > MAX_RECTANGLES:
        pixels = resize_nearest(colours, T * cell * SCALE, S * cell * SCALE)
        return [Image(x, y, S * cell, T * cell, pixels)]
    return [
        Rectangle(x + j * cell, y + i * cell, cell, cell, "#" + bytes(colours[i, j].tolist()).hex())
        for i in range(T)
        for j in range(S)
    ]


def colour_scale(x: float, y: float, low: str, high: str) -> list[Shape]:
    """All colours in a row, between the numbers of the first and the last."""
    middle, right = y + SCALE_CELL / 2, x + SCALE_CELLS * SCALE_CELL
    return [
        *heat_cells(np.linspace(0, 1, SCALE_CELLS)[None], x, y, SCALE_CELL),
        Text(x - GAP / 2, middle, low, SMALL, "end", pale=True),
        Text(right + GAP / 2, middle, high, SMALL, pale=True),
    ]


def heat_colours(shares: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 (...) as colours uint8 (..., 3)."""
    stops = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in RAMP])
    at = np.linspace(0, 1, len(stops))
    shares = np.nan_to_num(shares).clip(0, 1)
    return np.stack([np.interp(shares, at, stops[:, i]) for i in range(3)], axis=-1).round().astype(np.uint8)


def scale_to_max(weights: np.ndarray) -> np.ndarray:
    return weights / (float(weights.max(initial=0)) or 1.0)


def resize_nearest(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W, ...) at another size, without smoothing."""
    return x[np.arange(height) * len(x) // height][:, np.arange(width) * x.shape[1] // width]


def max_pool(weights: np.ndarray, limit: int = MAX_CELLS) -> np.ndarray:
    """(T, S) with at most `limit` rows and columns, each the maximum of its neighbours."""
    for axis in (0, 1):
        if (n := weights.shape[axis]) > limit:
            starts = np.arange(limit) * n // limit
            weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights
