"""A drawing as a list of shapes, which svg.py and png.py write to files. Lengths are CSS pixels."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from regard.draw.terminal import visible

MARGIN, GAP = 16, 8
SMALL, LARGE = 9, 13  # font sizes
LONGEST_LABEL = 20  # characters
SCALE = 2  # pixels of a PNG per CSS pixel

# Named colours, on a light and on a dark background. Blue and orange after Okabe and Ito, which colour-blind
# people can distinguish. A shape takes one of these names, or "#rrggbb" for both backgrounds.
PALETTE = {
    "ink": ("#1f2328", "#e8ebee"),
    "pale": ("#59636e", "#9aa4af"),
    "ground": ("#ffffff", "#14181d"),
    "grid": ("#e4e8ec", "#2a3138"),
    "axis": ("#8b949e", "#6b7580"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#d55e00", "#f0a030"),
}
SERIES = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"  # Okabe and Ito's colours
NEUTRAL = "#8b949e"  # visible on light and dark backgrounds


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    fill: str | None
    edge: str | None = None


@dataclass(frozen=True)
class Line:
    """A blue line, for weights."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    opacity: float


@dataclass(frozen=True)
class Polyline:
    points: tuple[tuple[float, float], ...]
    colour: str
    width: float


@dataclass(frozen=True)
class Circle:
    x: float
    y: float
    radius: float
    fill: str
    edge: str | None = None


@dataclass(frozen=True)
class Text:
    """`y` is the middle of the letters. Vertical text reads upwards."""

    x: float
    y: float
    words: str
    size: float = LARGE
    anchor: str = "start"  # or "middle", "end"
    vertical: bool = False
    pale: bool = False
    bold: bool = False
    halo: bool = False  # an edge in the colour of the background, to stay readable on lines


@dataclass(frozen=True)
class Image:
    x: float
    y: float
    width: float
    height: float
    pixels: np.ndarray  # uint8 (height * SCALE, width * SCALE, 3)


Shape = Rectangle | Line | Polyline | Circle | Text | Image


@dataclass
class Scene:
    width: float
    height: float
    title: str
    shapes: list[Shape] = field(default_factory=list)
    corner: float = 0  # radius of the background's corners


class Figure(Protocol):
    """Data that can be drawn."""

    def scene(self) -> Scene: ...


def stack(scenes: Sequence[Scene]) -> Scene:
    """One scene with the given ones below each other."""
    result = Scene(max(s.width for s in scenes), 0, "; ".join(dict.fromkeys(s.title for s in scenes)))
    for scene in scenes:
        result.shapes += [shift(shape, 0, result.height) for shape in scene.shapes]
        result.height += scene.height
    return result


def side_by_side(scenes: Sequence[Scene], title: str) -> Scene:
    """One scene with the given ones in a row."""
    result = Scene(0, max(scene.height for scene in scenes), title)
    for scene in scenes:
        result.shapes += [shift(shape, result.width, 0) for shape in scene.shapes]
        result.width += scene.width
    return result


def shift(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, x1=shape.x1 + x, y1=shape.y1 + y, x2=shape.x2 + x, y2=shape.y2 + y)
    if isinstance(shape, Polyline):
        return replace(shape, points=tuple((px + x, py + y) for px, py in shape.points))
    return replace(shape, x=shape.x + x, y=shape.y + y)


def heading(title: str) -> Text:
    return Text(MARGIN, MARGIN + LARGE / 2, title, pale=True)


def make_label(text: str, longest: int = LONGEST_LABEL) -> str:
    """A token as a label: on one line, never blank, without control characters, shortened if long."""
    text = visible(text[: 4 * longest].strip(" ") or "␣").replace("\n", "\\n")
    if display_width(text) <= longest:
        return text
    while display_width(text) > longest - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def display_width(text: str) -> int:
    """Width in columns of a terminal: East Asian wide characters count as 2, combining ones as 0."""
    wide = {"W": 2, "F": 2}
    return sum(0 if unicodedata.combining(c) else wide.get(unicodedata.east_asian_width(c), 1) for c in text)


def text_width(texts: Sequence[str], size: float) -> float:
    """The approximate width of the widest text."""
    return math.ceil(max((0.6 * size * display_width(text) for text in texts), default=0))


def printable(text: str) -> str:
    """`text` with spaces for control characters, which XML does not allow."""
    return "".join(c if c.isprintable() else " " for c in text)
