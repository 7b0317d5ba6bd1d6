"""Figures drawn as scenes: curves between axes, bars, words in the plane, attention pooling, trees."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.curve import ticks

from . import draw
from .draw import GAP, LARGE, MARGIN, SMALL, Curve, Dot, Image, Line, Part, Rectangle, Scene, Text
from .figures import Bars, Curves, Points, Pooling, Tree
from .views import View

INKS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"  # Okabe and Ito's
GRID = "#8b949e"  # seen on light and dark grounds
WIDTH, HEIGHT = 400, 240  # of what lies between the axes
MAP_WIDTH, MAP_HEIGHT = 560, 360
BAR = 22
HIGH, FORK = 26, 48  # of a text in a tree, and of the lines before it


def scene(view: View | Bars | Pooling | Tree) -> Scene:
    drawers: dict[type, Any] = {Curves: of_curves, Points: of_points, Bars: of_bars}
    drawers |= {Pooling: of_pooling, Tree: of_tree}
    return drawers.get(type(view), draw.scene)(view)


def beside(scenes: Sequence[Scene], title: str) -> Scene:
    """Scenes in a row, as one."""
    whole = Scene(0, max(one.height for one in scenes), title)
    for one in scenes:
        whole.parts += [draw.moved(part, whole.width, 0) for part in one.parts]
        whole.width += one.width
    return whole


def of_curves(view: Curves) -> Scene:
    """Curves in the order of their names, dots below them."""
    every = [*view.curves.values(), *([view.points] if view.points else [])]
    wide, tall = (np.concatenate([np.asarray(pair[i], dtype=np.float64) for pair in every]) for i in (0, 1))
    tall = tall[np.isfinite(tall)] if np.isfinite(tall).any() else np.zeros(1)
    first, last = float(wide.min()), float(wide.max())
    across, along = ticks(first, last, about=6), ticks(float(tall.min()), float(tall.max()), about=5)
    low, high = along[0], along[-1]
    names = [name for name in view.curves if name]
    left = MARGIN + draw.breadth([written(tick, along) for tick in along], SMALL) + GAP
    top = MARGIN + 2 * LARGE + (LARGE + GAP if names else 0)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - first) / (last - first or 1)
        return left + WIDTH * share, top + HEIGHT * (high - y) / (high - low)

    parts: list[Part] = [Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True)]
    for tick in along:
        y = place(first, tick)[1]
        parts.append(Curve(((left, y), (left + WIDTH, y)), GRID, 0.4))
        parts.append(Text(left - GAP / 2, y, written(tick, along), SMALL, "end", pale=True))
    for tick in across:
        if first <= tick <= last:
            x = place(tick, low)[0]
            parts.append(Curve(((x, top + HEIGHT), (x, top + HEIGHT + 4)), GRID, 1))
            words = written(tick, across)
            parts.append(Text(x, top + HEIGHT + 4 + SMALL, words, SMALL, "middle", pale=True))
    below = top + HEIGHT + 4 + 2.5 * SMALL
    parts.append(Text(left + WIDTH / 2, below, view.x, SMALL, "middle", pale=True))
    if view.points:
        parts += [Dot(*place(x, y), 3, GRID) for x, y in zip(*view.points, strict=True)]
    at = left
    for n, (name, (xs, ys)) in enumerate(view.curves.items()):
        ink = INKS[n % len(INKS)]
        for run in unbroken(ys):
            parts.append(Curve(tuple(place(float(xs[i]), float(ys[i])) for i in run), ink, 2))
        if name:
            parts.append(Rectangle(at, top - GAP - LARGE, 14, 4, ink))
            parts.append(Text(at + 14 + GAP / 2, top - GAP - LARGE + 2, name, SMALL))
            at += 14 + GAP / 2 + draw.breadth([name], SMALL) + GAP
    width = max(left + WIDTH, at, draw.breadth([view.title], LARGE) + MARGIN)
    return Scene(width + MARGIN, below + SMALL + MARGIN / 2, view.title, parts)


def unbroken(y: np.ndarray) -> list[np.ndarray]:
    """Stretches of two or more finite numbers."""
    there = np.flatnonzero(np.isfinite(y))
    runs = np.split(there, np.flatnonzero(np.diff(there) > 1) + 1)
    return [run for run in runs if len(run) > 1]


def written(tick: float, among: Sequence[float]) -> str:
    """With as many decimals as tell it from its neighbours."""
    apart = among[1] - among[0]
    decimals = max(0, -math.floor(math.log10(apart) + 1e-9))
    return f"{tick if abs(tick) > apart / 2 else 0:.{decimals}f}"


def of_pooling(view: Pooling) -> Scene:
    """The curve over its points, and beside it who told it: a row for each query, a column for each point."""
    plot = of_curves(Curves(view.title, "x", {"": (view.queries, view.fitted)}, (view.x, view.y)))
    order, side = np.argsort(view.x, kind="stable"), HEIGHT
    left, top = MARGIN + draw.breadth(["query x = 0.0"], SMALL), MARGIN + 2 * LARGE
    parts: list[Part] = [Text(left, MARGIN + LARGE / 2, "weights", pale=True)]
    shares = draw.share(view.weights[:, order])
    pixels = draw.stretched(draw.colours(shares), side * draw.SCALE, side * draw.SCALE)
    parts.append(Image(left, top, side, side, pixels))
    for at, x in ((0, view.queries[0]), (side, view.queries[-1])):
        words = f"query x = {x:.1f}"
        parts.append(
            Text(left - GAP / 2, min(max(at, SMALL), side - SMALL) + top, words, SMALL, "end", pale=True)
        )
    parts.append(
        Text(
            left + side / 2,
            top + side + 4 + SMALL,
            f"the {len(order)} points by x",
            SMALL,
            "middle",
            pale=True,
        )
    )
    below = top + side + 4 + 2.5 * SMALL
    parts += draw.heat(np.linspace(0, 1, 24)[None], left + side / 2 - 48, below - 2, 4)
    parts.append(Text(left + side / 2 - 48 - GAP / 2, below, "0", SMALL, "end", pale=True))
    parts.append(Text(left + side / 2 + 48 + GAP / 2, below, f"{view.weights.max():.2f}", SMALL, pale=True))
    weights = Scene(left + side + MARGIN, plot.height, "weights", parts)
    return beside([plot, weights], view.title)


def of_points(view: Points) -> Scene:
    """A dot for each word; neighbours keep their distances, one scale for both ways."""
    places = view.places - view.places.min(0)
    wide, high = (float(side) or 1.0 for side in places.max(0))
    scale = min(MAP_WIDTH / wide, MAP_HEIGHT / high)
    words = [draw.label(word) for word in view.words]
    top = MARGIN + 2 * LARGE + GAP
    parts: list[Part] = [Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True)]
    taken: list[tuple[float, float, float, float]] = []
    spots = [(MARGIN + GAP + scale * x, top + GAP + scale * (high - y)) for x, y in places.tolist()]
    taken += [(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
    right = 0.0
    for word, (x, y) in zip(words, spots, strict=True):
        parts.append(Dot(x, y, 3, INKS[0]))
        long = draw.breadth([word], LARGE)
        beyond = sorted(range(-6, 7), key=abs)  # beside the dot, or as little above or below as is free
        ways = [(left, y + n * LARGE / 2) for n in beyond for left in (x + GAP, x - GAP - long)]
        boxes = [(a, b - LARGE / 2, a + long, b + LARGE / 2) for a, b in ways if a > 0]
        box = next((box for box in boxes if not any(touch(box, other) for other in taken)), boxes[0])
        taken.append(box)
        right = max(right, box[2], x)
        parts.append(Text(box[0], (box[1] + box[3]) / 2, word))
    width = max(right, draw.breadth([view.title], LARGE) + MARGIN) + MARGIN
    return Scene(width, top + scale * high + 2 * GAP + LARGE + MARGIN, view.title, parts)


def touch(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def of_bars(view: Bars) -> Scene:
    """Names below, heights above the bars."""
    tallest = max(float(np.max(heights)) for heights in view.groups.values()) or 1.0
    many = len(view.groups)
    names = [draw.label(name) for name in view.names]
    step = max(many * BAR + 2 * GAP, draw.breadth(names, LARGE) + GAP)
    top, left = MARGIN + 2 * LARGE + (LARGE + GAP if many > 1 else 0) + SMALL, float(MARGIN + GAP)
    tall = 160
    parts: list[Part] = [Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True)]
    at = left
    for g, (group, heights) in enumerate(view.groups.items()):
        ink = INKS[g % len(INKS)]
        if many > 1:
            parts.append(Rectangle(at, MARGIN + 2 * LARGE, 14, 4, ink))
            parts.append(Text(at + 14 + GAP / 2, MARGIN + 2 * LARGE + 2, group, SMALL))
            at += 14 + GAP / 2 + draw.breadth([group], SMALL) + GAP
        for i, value in enumerate(np.asarray(heights, dtype=np.float64).tolist()):
            x = left + i * step + (step - many * BAR) / 2 + g * BAR
            y = top + tall * (1 - value / tallest)
            parts.append(Rectangle(x + 1, y, BAR - 2, tall * value / tallest, ink))
            parts.append(Text(x + BAR / 2, y - SMALL, f"{value:.2f}", SMALL, "middle", pale=True))
    bottom = top + tall
    parts.append(Curve(((left, bottom), (left + len(names) * step, bottom)), GRID, 1))
    for i, name in enumerate(names):
        parts.append(Text(left + (i + 0.5) * step, bottom + LARGE, name, anchor="middle"))
    wide = max(left + len(names) * step, at, draw.breadth([view.title], LARGE) + MARGIN)
    return Scene(wide + MARGIN, bottom + 2 * LARGE + MARGIN, view.title, parts)


def of_tree(view: Tree) -> Scene:
    """A column for each word, the text so far to its left; the wider a line, the likelier the text."""
    y: dict[tuple[str, ...], float] = {}
    ends = 0

    def placed(text: tuple[str, ...]) -> None:
        """Ends below each other, each other text in the middle of what it became."""
        nonlocal ends
        after = [other for other in view.texts if other[:-1] == text]
        for other in after:
            placed(other)
        y[text] = sum(y[other] for other in after) / len(after) if after else (ends + 0.5) * HIGH
        ends += not after

    placed(())
    labels = {text: f"{draw.label(text[-1])} {p:.2f}" for text, p in view.texts.items()}
    x = [float(MARGIN + FORK)]
    for n in range(max(map(len, view.texts))):
        x.append(x[-1] + draw.breadth([labels[text] for text in labels if len(text) == n + 1], LARGE) + FORK)
    top = MARGIN + 2 * LARGE
    parts: list[Part] = []
    for text, p in view.texts.items():
        n, ink = len(text) - 1, 0.9 if text in view.kept else 0.25
        begin = x[n] - FORK, top + y[text[:-1]]
        parts.append(Line(*begin, x[n] - GAP / 2, top + y[text], 0.5 + 6 * p, ink))
    parts.append(Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True))
    for text, label in labels.items():
        parts.append(Text(x[len(text) - 1], top + y[text], label, pale=text not in view.kept))
    width = max(x[-1] - FORK, draw.breadth([view.title], LARGE) + MARGIN)
    return Scene(width + MARGIN, top + ends * HIGH + MARGIN, view.title, parts)
