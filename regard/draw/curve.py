"""The training curve of a run: training and validation loss by step, and below the norm of the gradient."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from regard.draw.axes import tick_label, ticks
from regard.draw.scene import SERIES, Circle, Polyline, Scene, Shape, Text, printable
from regard.draw.svg import svg

Point = tuple[float, float]  # (step, loss)

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 68, WIDTH - 32, 64, HEIGHT - 56  # of the area between the axes
PANEL = 96  # height of the area for the norm of the gradient, which is drawn below, if it was logged
LARGEST = 1e100  # number that is drawn: sums of such numbers are finite
MAX_POINTS = 1000  # more can't be distinguished at this width
LONGEST_TITLE = 50  # characters that fit beside the legend


def curve_svg(
    rows: Sequence[Mapping[str, Any]], title: str = "loss", best: Mapping[str, Any] | None = None
) -> str:
    """The curve of rows of log.jsonl as SVG. `best` is the best row; by default that of the lowest loss."""
    return svg(curve_scene(rows, title, best))


def curve_scene(
    rows: Sequence[Mapping[str, Any]], title: str = "loss", best: Mapping[str, Any] | None = None
) -> Scene:
    train, valid = finite_points(rows, "loss"), finite_points(rows, "valid_loss")
    best_point = min(finite_points([best], "valid_loss") if best else valid, key=lambda p: p[1], default=None)
    train, valid = thin_out(train), thin_out(valid)
    points = [*train, *valid, *([best_point] if best_point else [])]

    # Steps end where the run ends. Losses end at round numbers, which leaves the curve some room.
    last_step = max([step for step, _ in points], default=1) or 1
    losses = [loss for _, loss in points] or [0.0, 1.0]
    loss_ticks = ticks(min(losses), max(losses), about=6)
    low, high = loss_ticks[0], loss_ticks[-1]

    def place(point: Point) -> Point:
        x = LEFT + (RIGHT - LEFT) * point[0] / last_step
        return x, BOTTOM - (BOTTOM - TOP) * (point[1] - low) / (high - low)

    title = printable(title)
    short = title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"
    shapes: list[Shape] = [Text(LEFT, 25.4, short, 16, bold=True)]
    for loss in loss_ticks:
        y = place((0, loss))[1]
        shapes.append(Polyline(((LEFT, y), (RIGHT, y)), "grid", 1))
        shapes.append(Text(LEFT - 10, y, tick_label(loss, loss_ticks), anchor="end", pale=True))
    for step in ticks(0, last_step, about=7, integers=True):
        if step <= last_step:
            x = place((step, low))[0]
            shapes.append(Polyline(((x, BOTTOM), (x, BOTTOM + 5)), "axis", 1))
            shapes.append(Text(x, BOTTOM + 16.5, f"{step:,.0f}", anchor="middle", pale=True))
    shapes.append(Polyline(((LEFT, BOTTOM), (RIGHT, BOTTOM)), "axis", 1))
    shapes.append(Text((LEFT + RIGHT) / 2, HEIGHT - 18.5, "step", anchor="middle", pale=True))
    shapes.append(Text(LEFT - 10, TOP - 18.5, "loss", anchor="end", pale=True))
    if not points:
        middle = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
        shapes.append(Text(*middle, "nothing logged yet", anchor="middle"))
    # A line of one point draws nothing, so that needs a dot.
    shapes += draw_line([place(p) for p in train], "blue", 1.25, radius=3 if len(train) == 1 else 0)
    shapes += draw_line([place(p) for p in valid], "orange", 2.5, radius=3.5 if len(valid) <= 50 else 1.5)
    if best_point:
        shapes += mark_best(best_point, *place(best_point))
    for x, colour, width, words in (
        (RIGHT - 220, "blue", 1.25, "training"),
        (RIGHT - 105, "orange", 2.5, "validation"),
    ):
        shapes += [Polyline(((x, 26), (x + 22, 26)), colour, width), Text(x + 30, 26, words, pale=True)]
    norms = [(step, norm) for step, norm in finite_points(rows, "grad_norm") if norm > 0]
    if norms:
        shapes += draw_norms(thin_out(norms, max), last_step)
    return Scene(WIDTH, HEIGHT + (PANEL + 40 if norms else 0), title, shapes, corner=8)


def draw_norms(norms: list[Point], last_step: float) -> list[Shape]:
    """The norm of the gradient before clipping, by step, on a logarithmic axis."""
    exponents = [math.log10(norm) for _, norm in norms]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    high = max(high, low + 1)
    top, bottom = HEIGHT + 20, HEIGHT + 20 + PANEL
    shapes: list[Shape] = [Text(LEFT, top - 14, "gradient norm, before clipping", pale=True)]
    for exponent in range(low, high + 1, -(-(high - low) // 4)):
        y = bottom - PANEL * (exponent - low) / (high - low)
        shapes.append(Polyline(((LEFT, y), (RIGHT, y)), "grid", 1))
        shapes.append(Text(LEFT - 10, y, f"{10.0**exponent:g}", anchor="end", pale=True))
    steps = [LEFT + (RIGHT - LEFT) * step / last_step for step, _ in norms]
    heights = [bottom - PANEL * (exponent - low) / (high - low) for exponent in exponents]
    places = list(zip(steps, heights, strict=True))
    return shapes + draw_line(places, SERIES[2], 1.25, radius=3 if len(norms) == 1 else 0)


def draw_line(places: list[Point], colour: str, width: float, radius: float) -> list[Shape]:
    dots: list[Shape] = [Circle(x, y, radius, colour) for x, y in places if radius]
    return [Polyline(tuple(places), colour, width), *dots] if places else []


def mark_best(best: Point, x: float, y: float) -> list[Shape]:
    """A ring at the best step, and its numbers above, where a falling curve leaves room."""
    share = (x - LEFT) / (RIGHT - LEFT)
    anchor = "start" if share < 0.2 else "end" if share > 0.8 else "middle"
    words = f"best {best[1]:.4g} at step {best[0]:,.0f}"
    return [Circle(x, y, 5, "ground", "orange"), Text(x, y - 18.5, words, anchor=anchor, halo=True)]


def finite_points(rows: Sequence[Mapping[str, Any]], key: str) -> list[Point]:
    """(step, value) of the rows that have a number that can be drawn: logs may have been edited."""
    points = [(row["step"], row.get(key)) for row in rows]
    return [(step, v) for step, v in points if isinstance(v, int | float) and abs(v) <= LARGEST]


def thin_out(points: list[Point], combine: Callable[[list[float]], float] = fmean) -> list[Point]:
    """At most MAX_POINTS points, each of several neighbours, whose values `combine` makes one."""
    size = math.ceil(len(points) / MAX_POINTS)
    if size <= 1:
        return points
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(fmean(s for s, _ in g), combine([v for _, v in g])) for g in groups]
