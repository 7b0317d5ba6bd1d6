"""Plots: curves between axes, bars, attention pooling.

Shapes: N points, T queries.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from regard.draw.axes import log_ticks, tick_label, ticks
from regard.draw.heat import SCALE_CELL, SCALE_CELLS, colour_scale, heat_colours, resize_nearest, scale_to_max
from regard.draw.scene import (
    GAP,
    LARGE,
    MARGIN,
    NEUTRAL,
    SCALE,
    SERIES,
    SMALL,
    Circle,
    Image,
    Polyline,
    Rectangle,
    Scene,
    Shape,
    Text,
    heading,
    make_label,
    side_by_side,
    text_width,
)
from regard.draw.terminal import quantity

WIDTH, HEIGHT = 400, 240  # of the area between the axes
BAR_WIDTH, BAR_HEIGHT = 22, 160
TICK = 4

Series = tuple[np.ndarray, np.ndarray]  # x and y


@dataclass(frozen=True)
class Curves:
    """Lines by name over one axis."""

    title: str
    x: str  # what the axis shows
    curves: Mapping[str, Series]
    points: Series | None = None  # drawn as dots
    log: bool = False  # both axes are logarithmic; all numbers are positive

    def scene(self) -> Scene:
        series = [*self.curves.values(), *([self.points] if self.points else [])]
        x, y = (np.concatenate([np.asarray(pair[i], dtype=np.float64) for pair in series]) for i in (0, 1))
        y = y[np.isfinite(y)] if np.isfinite(y).any() else np.full(1, float(self.log))
        first, last = float(x.min()), float(x.max())
        x_ticks, y_ticks = self.ticks(first, last, about=6), self.ticks(float(y.min()), float(y.max()), 5)
        low, high = y_ticks[0], y_ticks[-1]
        left = MARGIN + text_width([self.label(tick, y_ticks) for tick in y_ticks], SMALL) + GAP
        top = MARGIN + 2 * LARGE + (LARGE + GAP if any(self.curves) else 0)
        scale: Callable[[float], float] = math.log10 if self.log else float

        def place(x: float, y: float) -> tuple[float, float]:
            across = (scale(x) - scale(first)) / (scale(last) - scale(first) or 1)
            up = (scale(high) - scale(y)) / (scale(high) - scale(low))
            return left + WIDTH * across, top + HEIGHT * up

        shapes: list[Shape] = [heading(self.title)]
        for tick in y_ticks:
            height = place(first, tick)[1]
            shapes.append(Polyline(((left, height), (left + WIDTH, height)), NEUTRAL, 0.4))
            words = self.label(tick, y_ticks)
            shapes.append(Text(left - GAP / 2, height, words, SMALL, "end", pale=True))
        bottom = top + HEIGHT
        for tick in x_ticks:
            if first <= tick <= last:
                across, words = place(tick, low)[0], self.label(tick, x_ticks)
                shapes.append(Polyline(((across, bottom), (across, bottom + TICK)), NEUTRAL, 1))
                shapes.append(Text(across, bottom + TICK + SMALL, words, SMALL, "middle", pale=True))
        axis_title = bottom + TICK + 2.5 * SMALL
        shapes.append(Text(left + WIDTH / 2, axis_title, self.x, SMALL, "middle", pale=True))
        if self.points:
            shapes += [Circle(*place(x, y), 3, NEUTRAL) for x, y in zip(*self.points, strict=True)]
        lines, right = self.lines(place, left, top - GAP - LARGE)
        width = max(left + WIDTH, right, text_width([self.title], LARGE) + MARGIN)
        height = axis_title + SMALL + MARGIN / 2
        return Scene(width + MARGIN, height, self.title, shapes + lines)

    def ticks(self, low: float, high: float, about: int) -> list[float]:
        return log_ticks(low, high) if self.log else ticks(low, high, about)

    def label(self, tick: float, among: Sequence[float]) -> str:
        return quantity(tick).replace(".0", "") if self.log else tick_label(tick, among)

    def lines(
        self, place: Callable[[float, float], tuple[float, float]], left: float, top: float
    ) -> tuple[list[Shape], float]:
        """The curves with their legend, and where that ends."""
        shapes: list[Shape] = []
        for n, (name, (xs, ys)) in enumerate(self.curves.items()):
            colour = SERIES[n % len(SERIES)]
            for run in finite_runs(ys):
                points = tuple(place(float(xs[i]), float(ys[i])) for i in run)
                shapes.append(Polyline(points, colour, 2))
            if name:
                entry, left = legend_entry(name, colour, left, top)
                shapes += entry
        return shapes, left


def position_curves(losses: Mapping[str, Sequence[float]]) -> Curves:
    """The loss of models, by name, at each position of the context, counted from 1."""
    curves = {name: (np.arange(1, len(ys) + 1), np.asarray(ys)) for name, ys in losses.items()}
    return Curves("loss by the number of tokens before", "tokens before", curves)


def finite_runs(y: np.ndarray) -> list[np.ndarray]:
    """Indices of each run of two or more finite numbers."""
    finite = np.flatnonzero(np.isfinite(y))
    runs = np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1)
    return [run for run in runs if len(run) > 1]


def legend_entry(name: str, colour: str, x: float, y: float) -> tuple[list[Shape], float]:
    """A colour with its name, and where the next entry begins."""
    text = x + 14 + GAP / 2
    shapes: list[Shape] = [Rectangle(x, y, 14, 4, colour), Text(text, y + 2, name, SMALL)]
    return shapes, text + text_width([name], SMALL) + GAP


@dataclass(frozen=True)
class Bars:
    """A bar for each name, and beside it those of the other groups, from 0 up."""

    title: str
    names: Sequence[str]
    groups: Mapping[str, np.ndarray]  # a height for each name; NaN: no bar

    def scene(self) -> Scene:
        """Names below the bars, numbers above them."""
        tallest = max(float(np.nanmax(heights)) for heights in self.groups.values()) or 1.0
        G = len(self.groups)
        names = [make_label(name) for name in self.names]
        step = max(G * BAR_WIDTH + 2 * GAP, text_width(names, LARGE) + GAP)
        legend, left = MARGIN + 2 * LARGE, float(MARGIN + GAP)
        top = legend + (LARGE + GAP if G > 1 else 0) + SMALL
        shapes: list[Shape] = [heading(self.title)]
        right = left
        for g, (group, heights) in enumerate(self.groups.items()):
            colour = SERIES[g % len(SERIES)]
            if G > 1:
                entry, right = legend_entry(group, colour, right, legend)
                shapes += entry
            for i, value in enumerate(np.asarray(heights, dtype=np.float64).tolist()):
                if math.isnan(value):
                    continue
                x = left + i * step + (step - G * BAR_WIDTH) / 2 + g * BAR_WIDTH
                y, height = top + BAR_HEIGHT * (1 - value / tallest), BAR_HEIGHT * value / tallest
                shapes.append(Rectangle(x + 1, y, BAR_WIDTH - 2, height, colour))
                middle = x + BAR_WIDTH / 2
                shapes.append(Text(middle, y - SMALL, f"{value:.2f}", SMALL, "middle", pale=True))
        bottom = top + BAR_HEIGHT
        shapes.append(Polyline(((left, bottom), (left + len(names) * step, bottom)), NEUTRAL, 1))
        for i, name in enumerate(names):
            shapes.append(Text(left + (i + 0.5) * step, bottom + LARGE, name, anchor="middle"))
        width = max(left + len(names) * step, right, text_width([self.title], LARGE) + MARGIN)
        return Scene(width + MARGIN, bottom + 2 * LARGE + MARGIN, self.title, shapes)


@dataclass(frozen=True)
class Pooling:
    """A curve fitted to points by attention pooling, with the weights of each query on the points."""

    title: str
    x: np.ndarray  # N
    y: np.ndarray  # N
    queries: np.ndarray  # T
    fitted: np.ndarray  # T
    weights: np.ndarray  # (T, N)

    def scene(self) -> Scene:
        """The curve over its points, and beside it the weights: a row per query, a column per point."""
        curve = Curves(self.title, "x", {"": (self.queries, self.fitted)}, (self.x, self.y)).scene()
        return side_by_side([curve, self.weights_scene(curve.height)], self.title)

    def weights_scene(self, height: float) -> Scene:
        order, side = np.argsort(self.x, kind="stable"), HEIGHT
        left, top = MARGIN + text_width(["query x = 0.0"], SMALL), MARGIN + 2 * LARGE
        middle, bottom = left + side / 2, top + side
        shares = scale_to_max(self.weights[:, order])
        pixels = resize_nearest(heat_colours(shares), side * SCALE, side * SCALE)
        shapes: list[Shape] = [
            Text(left, MARGIN + LARGE / 2, "weights", pale=True),
            Image(left, top, side, side, pixels),
        ]
        for y, x in ((SMALL, self.queries[0]), (side - SMALL, self.queries[-1])):
            shapes.append(Text(left - GAP / 2, top + y, f"query x = {x:.1f}", SMALL, "end", pale=True))
        words = f"the {len(order)} points by x"
        shapes.append(Text(middle, bottom + TICK + SMALL, words, SMALL, "middle", pale=True))
        below = bottom + TICK + 2.5 * SMALL - SCALE_CELL / 2
        scale_left = middle - SCALE_CELLS * SCALE_CELL / 2
        shapes += colour_scale(scale_left, below, "0", f"{self.weights.max():.2f}")
        return Scene(left + side + MARGIN, height, "weights", shapes)
