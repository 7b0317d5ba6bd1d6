"""The loss curve of a run as a picture, written by hand: a plotting library is heavy for one SVG."""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

Point = tuple[float, float]  # (step, loss)

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 68, WIDTH - 32, 64, HEIGHT - 56  # the frame of the plot
MOST_POINTS = 1000  # more cannot be told apart at this width

# Blue and orange after Okabe and Ito, which colour-blind people can tell apart. Plain values rather than CSS
# variables, which few viewers besides browsers understand.
STYLE = """
  text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #59636e }
  .ground { fill: #ffffff }
  .title { font-size: 16px; font-weight: 600; fill: #1f2328 }
  .grid { stroke: #e4e8ec }
  .axis { stroke: #8b949e }
  .train, .valid { fill: none; stroke-linejoin: round; stroke-linecap: round }
  .train { stroke: #0072b2; stroke-width: 1.25 }
  .valid { stroke: #d55e00; stroke-width: 2.5 }
  .train-dot { fill: #0072b2 }
  .valid-dot { fill: #d55e00 }
  .best { fill: #ffffff; stroke: #d55e00; stroke-width: 2.5 }
  .halo { stroke: #ffffff; stroke-width: 5; stroke-linejoin: round }
  .label { fill: #1f2328 }
  @media (prefers-color-scheme: dark) {
    text { fill: #9aa4af }
    .ground { fill: #14181d }
    .title, .label { fill: #e8ebee }
    .grid { stroke: #2a3138 }
    .axis { stroke: #6b7580 }
    .train { stroke: #56b4e9 }
    .valid { stroke: #f0a030 }
    .train-dot { fill: #56b4e9 }
    .valid-dot { fill: #f0a030 }
    .best { fill: #14181d; stroke: #f0a030 }
    .halo { stroke: #14181d }
  }
"""


def curve_svg(
    rows: Sequence[Mapping[str, Any]], title: str = "loss", kept: Mapping[str, Any] | None = None
) -> str:
    """A standalone SVG of the training and validation loss in rows of log.jsonl. The best is the row that was
    `kept`, or the one of the lowest loss."""
    train, valid = _points(rows, "loss"), _points(rows, "valid_loss")
    best = min(_points([kept], "valid_loss") if kept else valid, key=lambda point: point[1], default=None)
    train, valid = _thinned(train), _thinned(valid)
    every = [*train, *valid, *([best] if best else [])]

    # Steps end where the run ends. Losses end at round numbers, which leaves the curve some room.
    last_step = max([step for step, _ in every], default=1) or 1
    losses = [loss for _, loss in every] or [0.0, 1.0]
    loss_ticks = ticks(min(losses), max(losses), about=6)
    low, high = loss_ticks[0], loss_ticks[-1]

    def x(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * step / last_step

    def y(loss: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (loss - low) / (high - low)

    def curve(kind: str, points: list[Point], radius: float) -> list[str]:
        path = " ".join(f"{x(step):.2f},{y(loss):.2f}" for step, loss in points)
        dots = [_dot(f"{kind}-dot", x(step), y(loss), radius) for step, loss in points if radius]
        return [f'<polyline class="{kind}" points="{path}"/>', *dots]

    svg = []
    for loss in loss_ticks:
        svg.append(_line("grid", LEFT, y(loss), RIGHT, y(loss)))
        svg.append(_text("loss-tick", LEFT - 10, y(loss) + 4.5, _written(loss, loss_ticks), "end"))
    for step in ticks(0, last_step, about=7, whole=True):
        if step <= last_step:
            svg.append(_line("axis", x(step), BOTTOM, x(step), BOTTOM + 5))
            svg.append(_text("step-tick", x(step), BOTTOM + 21, f"{step:,.0f}", "middle"))
    svg.append(_line("axis", LEFT, BOTTOM, RIGHT, BOTTOM))
    svg.append(_text("axis-name", (LEFT + RIGHT) / 2, HEIGHT - 14, "step", "middle"))
    svg.append(_text("axis-name", LEFT - 10, TOP - 14, "loss", "end"))

    if not every:
        svg.append(_text("label", (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2, "nothing logged yet", "middle"))
    if train:
        svg += curve("train", train, radius=3 if len(train) == 1 else 0)  # a line of one point draws nothing
    if valid:
        svg += curve("valid", valid, radius=3.5 if len(valid) <= 50 else 1.5)
    if best:
        at_x, at_y = x(best[0]), y(best[1])
        share = (at_x - LEFT) / (RIGHT - LEFT)
        anchor = "start" if share < 0.2 else "end" if share > 0.8 else "middle"
        words = f"best {best[1]:.4g} at step {best[0]:,.0f}"
        svg.append(_dot("best", at_x, at_y, 5))
        # Above the point, because a falling curve leaves that side free.
        svg += [_text(kind, at_x, at_y - 14, words, anchor) for kind in ("halo", "label")]
    for left, kind, words in [(RIGHT - 220, "train", "training"), (RIGHT - 105, "valid", "validation")]:
        svg += [_line(kind, left, 26, left + 22, 26), _text("legend", left + 30, 30.5, words)]

    title = "".join(c if c.isprintable() else " " for c in title)  # XML has no control characters at all
    shown = title if len(title) <= 50 else title[:49] + "…"  # it ends before the legend
    head = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        _text("title", LEFT, 31, shown),
    ]
    return "\n".join([*head, *svg, "</svg>"]) + "\n"


def ticks(low: float, high: float, about: int, whole: bool = False) -> list[float]:
    """About `about` round numbers that enclose `low` and `high`, 1, 2 or 5 times a power of ten apart."""
    if high - low <= 1e-6 * abs(high):  # as good as one value: make room around it
        room = abs(high) / 10 or 1.0
        low, high = low - room, high + room
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    if whole:
        apart = max(apart, 1.0)
    first, last = math.floor(low / apart + 1e-9), math.ceil(high / apart - 1e-9)
    return [i * apart for i in range(first, last + 1)]


def _written(value: float, among: list[float]) -> str:
    """A tick with as many decimals as tell it from its neighbours."""
    decimals = max(0, -math.floor(math.log10(among[1] - among[0]) + 1e-9))
    return f"{value:.{decimals}f}" if abs(value) < 1e6 else f"{value:.3g}"


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[Point]:
    """The (step, value) of the rows that have a finite value."""
    points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    return [(step, value) for step, value in points if math.isfinite(value)]


def _thinned(points: list[Point]) -> list[Point]:
    """At most MOST_POINTS points: neighbours become their mean."""
    group = math.ceil(len(points) / MOST_POINTS)
    if group <= 1:
        return points
    groups = [points[i : i + group] for i in range(0, len(points), group)]
    return [(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"/>'


def _dot(kind: str, x: float, y: float, radius: float) -> str:
    return f'<circle class="{kind}" cx="{x:.2f}" cy="{y:.2f}" r="{radius}"/>'


def _text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(words)}</text>'
