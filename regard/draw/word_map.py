"""Maps of words in the plane.

Shapes: N words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.draw.scene import (
    GAP,
    LARGE,
    MARGIN,
    SERIES,
    Circle,
    Scene,
    Shape,
    Text,
    heading,
    make_label,
    printable,
    text_width,
)

POINTS_WIDTH, POINTS_HEIGHT = 560, 360
MAP_WIDTH, MAP_HEIGHT, MAP_MARGIN, MAP_TOP = 1100, 860, 60, 70
FONT_SIZE = 12  # of a map without points

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Points:
    """A few words as labelled points."""

    title: str
    places: np.ndarray  # (N, 2)
    words: Sequence[str]

    def scene(self) -> Scene:
        """Both axes have the same scale, so that distances are true."""
        places = self.places - self.places.min(0)
        width, height = (float(side) or 1.0 for side in places.max(0))
        scale = min(POINTS_WIDTH / width, POINTS_HEIGHT / height)
        top = MARGIN + 2 * LARGE + GAP
        shapes: list[Shape] = [heading(self.title)]
        spots = [(MARGIN + GAP + scale * x, top + GAP + scale * (height - y)) for x, y in places.tolist()]
        taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
        right = 0.0
        for word, (x, y) in zip(map(make_label, self.words), spots, strict=True):
            shapes.append(Circle(x, y, 3, SERIES[0]))
            box = place_label(word, x, y, taken)
            taken.append(box)
            right = max(right, box[2], x)
            shapes.append(Text(box[0], (box[1] + box[3]) / 2, word))
        right = max(right, text_width([self.title], LARGE) + MARGIN)
        bottom = top + scale * height + 2 * GAP + LARGE
        return Scene(right + MARGIN, bottom + MARGIN, self.title, shapes)


def place_label(word: str, x: float, y: float, taken: Sequence[Box]) -> Box:
    """A free box beside a point, or as little above or below as possible."""
    width = text_width([word], LARGE)
    offsets = sorted(range(-6, 7), key=abs)
    corners = [(left, y + n * LARGE / 2) for n in offsets for left in (x + GAP, x - GAP - width)]
    boxes = [(a, b - LARGE / 2, a + width, b + LARGE / 2) for a, b in corners if a > 0]
    return next((box for box in boxes if not any(overlap(box, other) for other in taken)), boxes[0])


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@dataclass(frozen=True)
class WordMap:
    """Hundreds of words, each written at its place."""

    words: Sequence[str]
    places: np.ndarray  # (N, 2)

    def scene(self) -> Scene:
        low, high = (self.places.min(0), self.places.max(0)) if len(self.places) else (0.0, 1.0)
        shares = (self.places - low) / np.maximum(high - low, 1e-12)
        title = f"the {len(self.words)} most frequent words; similar words are close together"
        shapes: list[Shape] = [Text(MAP_MARGIN, 30.4, title, 16, bold=True)]
        taken: list[tuple[float, float, float]] = []
        for word, (x, y) in zip(map(printable, self.words), shares.tolist(), strict=True):
            middle = MAP_MARGIN + (MAP_WIDTH - 2 * MAP_MARGIN) * x
            height = MAP_TOP + (MAP_HEIGHT - MAP_TOP - 60) * y
            half = 3.5 * len(word)  # about half its width
            while any(abs(middle - m) < half + h and abs(height - t) < FONT_SIZE for m, t, h in taken):
                height += FONT_SIZE / 2
            taken.append((middle, height, half))
            shapes.append(Text(middle, height - 0.35 * FONT_SIZE, word, FONT_SIZE, "middle"))
        return Scene(MAP_WIDTH, MAP_HEIGHT, title, shapes, corner=8)
