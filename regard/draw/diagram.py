"""The parts of a model as boxes, joined by arrows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from regard.draw.scene import (
    GAP,
    LARGE,
    MARGIN,
    NEUTRAL,
    SMALL,
    Circle,
    Polyline,
    Rectangle,
    Scene,
    Shape,
    Text,
    heading,
    text_width,
)

WIDTH, HEIGHT, BELOW = 270, 32, 40  # of a box; the space for the arrow below it
BETWEEN = 96  # two columns
PADDING = 16  # of the frame around a block
TIP, PLUS = 4, 5  # half the width of an arrow's tip; radius of the sign where a residual is added


@dataclass(frozen=True)
class Box:
    """A part of a model."""

    name: str
    title: str
    shape: Sequence[int]  # of its output
    note: str = ""
    group: str | None = None  # the block that it belongs to
    source: str | None = None  # the name of a part of another column that it reads, too
    residual: bool = False  # whether its input is added to its output


@dataclass(frozen=True)
class Diagram:
    """Columns of boxes, each with its title; data flow downwards."""

    title: str
    columns: Sequence[tuple[str, Sequence[Box]]]

    def scene(self) -> Scene:
        top = MARGIN + 2 * LARGE
        shapes: list[Shape] = [heading(self.title)]
        places: dict[str, tuple[float, float]] = {}
        frames: list[Shape] = []
        for n, (name, boxes) in enumerate(self.columns):
            x = MARGIN + PADDING + n * (WIDTH + BETWEEN)
            shapes.append(Text(x, top + LARGE / 2, name, SMALL, pale=True))
            ys = [top + 2 * LARGE + i * (HEIGHT + BELOW) for i in range(len(boxes))]
            places |= {box.name: (x, y) for box, y in zip(boxes, ys, strict=True)}
            frames += draw_frames(boxes, x, ys)
            for box, y in zip(boxes, ys, strict=True):
                shapes += draw_box(box, x, y, last=box is boxes[-1])
        for _, boxes in self.columns:
            for box in boxes:
                if box.source in places:
                    shapes += draw_crossing(places[box.source], places[box.name])
        height = max(y for _, y in places.values()) + HEIGHT + BELOW + MARGIN
        width = max(x for x, _ in places.values()) + WIDTH + BETWEEN / 2 + MARGIN
        return Scene(
            max(width, text_width([self.title], LARGE) + 2 * MARGIN), height, self.title, frames + shapes
        )


def draw_frames(boxes: Sequence[Box], x: float, ys: Sequence[float]) -> list[Shape]:
    """A frame around the boxes of each block, with its name."""
    shapes: list[Shape] = []
    for group, pairs in groupby(zip(boxes, ys, strict=True), key=lambda pair: pair[0].group):
        if group is not None:
            inside = [y for _, y in pairs]
            left, top, height = x - PADDING, inside[0] - PADDING, inside[-1] + HEIGHT - inside[0]
            shapes.append(Rectangle(left, top, WIDTH + 2 * PADDING, height + 2 * PADDING, None, "grid"))
            shapes.append(Text(x + WIDTH + PADDING + GAP / 2, top + SMALL, group, SMALL, pale=True))
    return shapes


def draw_box(box: Box, x: float, y: float, last: bool) -> list[Shape]:
    """A box, the shape of its output, and an arrow to the next box."""
    middle, bottom = x + WIDTH / 2, y + HEIGHT
    shapes = [] if last else arrow([(middle, bottom), (middle, bottom + BELOW)])
    shapes += [Rectangle(x, y, WIDTH, HEIGHT, "ground", "axis"), Text(x + GAP, y + HEIGHT / 2, box.title)]
    if box.residual:
        shapes += draw_residual(x, y)
    if box.note:
        shapes.append(Text(x + WIDTH - GAP, y + HEIGHT / 2, box.note, SMALL, "end", pale=True))
    words = " × ".join(map(str, box.shape))
    return [*shapes, Text(middle + GAP + PLUS, bottom + BELOW / 2, words, SMALL, pale=True)]


def draw_residual(x: float, y: float) -> list[Shape]:
    """A line around a box, and a plus where it meets the box's output."""
    middle, above, below, left = x + WIDTH / 2, y - PADDING / 2, y + HEIGHT + PADDING / 2, x - PADDING / 2
    around = (middle, above), (left, above), (left, below), (middle - PLUS, below)
    half = PLUS - 2
    across, down = (
        ((middle - half, below), (middle + half, below)),
        ((middle, below - half), (middle, below + half)),
    )
    return [
        Polyline(around, NEUTRAL, 1),
        Circle(middle, below, PLUS, "ground", "axis"),
        *(Polyline(line, NEUTRAL, 1) for line in (across, down)),
    ]


def draw_crossing(start: tuple[float, float], end: tuple[float, float]) -> list[Shape]:
    """An arrow from the right of one box to the left of another."""
    from_y, to_y, bend = start[1] + HEIGHT / 2, end[1] + HEIGHT / 2, end[0] - 2 * PADDING
    return arrow([(start[0] + WIDTH, from_y), (bend, from_y), (bend, to_y), (end[0], to_y)])


def arrow(points: Sequence[tuple[float, float]]) -> list[Shape]:
    """A line whose last part is horizontal or vertical, with a tip."""
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (TIP * ((b > a) - (b < a)) for a, b in ((x0, x), (y0, y)))
    tip = (x - dx - dy, y - dy - dx), (x, y), (x - dx + dy, y - dy + dx)
    return [Polyline(tuple(points), NEUTRAL, 1), Polyline(tip, NEUTRAL, 1)]
