"""Pictures of what a model looked at: a scene of rectangles, lines, dots, texts, images; as SVG and as PNG.

Both writers draw the same scene. Positions are in pixels of a screen; a PNG has SCALE of its own for each.
"""

import base64
import functools
import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from regard.data.pictures import pillow
from regard.display import visible

from .views import Arcs, Atlas, Maps, Matrix, View

SCALE = 2  # pixels of a PNG for one of a screen
# Light to dark in even steps of lightness (CIE L* 98 to 14), from yellow over green to blue: also without
# colours, and to colour-blind eyes, the darker is the more.
RAMP = (
    *("#fafbe8", "#c9e3b7", "#84cea0", "#1bb69f", "#0095a0"),
    *("#00749d", "#11558b", "#2b3864", "#1c2337"),
)
LINE = "#0072b2"  # Okabe and Ito's blue
MARK = "#e69f00"  # their orange
INK, PALE, GROUND = "#1f2328", "#59636e", "#ffffff"
STYLE = f"""
  text {{ font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: {INK} }}
  .pale {{ fill: {PALE} }}
  .ground {{ fill: {GROUND} }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e8ebee }}
    .pale {{ fill: #9aa4af }}
    .ground {{ fill: #14181d }}
    line {{ stroke: #56b4e9 }}
  }}
"""
MARGIN, GAP = 16, 8
SMALL, LARGE = 9, 13  # of letters
LONGEST = 20  # letters of a label
WIDEST = 900  # a matrix, as far as its cells allow
MOST_CELLS = 600  # of a matrix each way: more become the largest among neighbours
MOST_RECTANGLES = 1024  # more are an image
MOST_LINES = 2000
FAINT = 0.02  # weights below are not drawn as lines


# A scene


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    fill: str | None  # "#rrggbb"; None: only its edge is drawn
    edge: str | None = None


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    opacity: float


@dataclass(frozen=True)
class Curve:
    points: tuple[tuple[float, float], ...]
    ink: str
    width: float


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    radius: float
    ink: str


@dataclass(frozen=True)
class Text:
    """`y` is the middle of its letters; one that is turned reads upwards, from y or to it."""

    x: float
    y: float
    words: str
    size: float = LARGE
    anchor: str = "start"  # or "middle", "end"
    turned: bool = False
    pale: bool = False


@dataclass(frozen=True)
class Image:
    x: float
    y: float
    width: float
    height: float
    pixels: np.ndarray  # uint8 (height * SCALE, width * SCALE, 3)


Part = Rectangle | Line | Curve | Dot | Text | Image


@dataclass
class Scene:
    width: float
    height: float
    title: str
    parts: list[Part] = field(default_factory=list)


def scene(view: View) -> Scene:
    drawers: dict[type, Any] = {Arcs: of_arcs, Matrix: of_matrix, Atlas: of_atlas, Maps: of_maps}
    return drawers[type(view)](view)


def stacked(scenes: Sequence[Scene]) -> Scene:
    """Scenes below each other, as one."""
    whole = Scene(max(s.width for s in scenes), 0, "; ".join(dict.fromkeys(s.title for s in scenes)))
    for one in scenes:
        whole.parts += [moved(part, 0, whole.height) for part in one.parts]
        whole.height += one.height
    return whole


def moved(part: Part, x: float, y: float) -> Part:
    """The same elsewhere."""
    if isinstance(part, Line):
        return replace(part, x1=part.x1 + x, y1=part.y1 + y, x2=part.x2 + x, y2=part.y2 + y)
    if isinstance(part, Curve):
        return replace(part, points=tuple((px + x, py + y) for px, py in part.points))
    return replace(part, x=part.x + x, y=part.y + y)


# Words


def label(text: str, longest: int = LONGEST) -> str:
    """A word for a picture: on one line, never blank, nothing in it that steers, cut if it is long."""
    text = visible(text[: 4 * longest].strip(" ") or "␣").replace("\n", "\\n")
    if cells(text) <= longest:
        return text
    while cells(text) > longest - 1:
        text = text[:-1]
    return text.rstrip() + "…"


def cells(text: str) -> int:
    """How wide a text is, in letters."""
    wide = {"W": 2, "F": 2}
    return sum(0 if unicodedata.combining(c) else wide.get(unicodedata.east_asian_width(c), 1) for c in text)


def breadth(words: Sequence[str], size: float) -> float:
    """About what the widest of them needs."""
    return math.ceil(max((0.6 * size * cells(word) for word in words), default=0))


# Colours


def colours(shares: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 (...) as colours uint8 (..., 3)."""
    stops = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in RAMP])
    at = np.linspace(0, 1, len(stops))
    shares = np.nan_to_num(shares).clip(0, 1)
    return np.stack([np.interp(shares, at, stops[:, i]) for i in range(3)], axis=-1).round().astype(np.uint8)


def hexed(colour: np.ndarray) -> str:
    return "#" + bytes(colour.tolist()).hex()


def share(weights: np.ndarray) -> np.ndarray:
    """Of the largest."""
    return weights / (float(weights.max(initial=0)) or 1.0)


def lit(picture: np.ndarray, weights: np.ndarray, height: int, width: int) -> np.ndarray:
    """The picture in the dark, and in the light where the weights (R, C) are large.

    Each region is as it was weighed, without smoothing; the one looked at most has the full light.
    """
    p, s = stretched(picture, height, width), stretched(share(weights), height, width)[..., None]
    return ((0.3 + 0.4 * s) * p + 0.3 * s * 255).round().astype(np.uint8)


def stretched(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W, ...) at another size, each pixel the one that it lies in."""
    return x[np.arange(height) * len(x) // height][:, np.arange(width) * x.shape[1] // width]


def pooled(weights: np.ndarray, most: int = MOST_CELLS) -> np.ndarray:
    """At most so many each way: of neighbours, the largest."""
    for axis in (0, 1):
        if (n := weights.shape[axis]) > most:
            starts = np.arange(most) * n // most
            weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights


# Views


def of_matrix(view: Matrix) -> Scene:
    """Words that look on the left, what they look at above; the darker, the more, with a scale below."""
    T, S = view.weights.shape
    weights = pooled(view.weights)
    cell = int(max(2 if max(T, S) < MOST_CELLS else 1, min(22, WIDEST // max(weights.shape))))
    height, width = cell * weights.shape[0], cell * weights.shape[1]
    size = min(LARGE, max(SMALL, cell - 3))
    rows, columns = some_labels(view.rows, height, size), some_labels(view.columns, width, size)
    left = MARGIN + breadth([word for _, word in rows], size) + GAP
    top = MARGIN + 2 * LARGE + breadth([word for _, word in columns], size) + GAP
    parts: list[Part] = [Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True)]
    parts += [Text(left - GAP / 2, top + at, word, size, "end") for at, word in rows]
    parts += [Text(left + at, top - GAP / 2, word, size, turned=True) for at, word in columns]
    parts += heat(share(weights - view.low), left, top, cell)
    bottom = top + height + GAP
    peak = float(view.weights.max(initial=0))
    parts += heat(np.linspace(0, 1, 24)[None], left, bottom, 4)
    parts += [
        Text(left - GAP / 2, bottom + 2, f"{view.low:.2g}", SMALL, "end", pale=True),
        Text(left + 24 * 4 + GAP / 2, bottom + 2, f"{peak:.2f}", SMALL, pale=True),
    ]
    wide = left + max(width, 24 * 4 + 40, breadth([view.title], LARGE) - left + MARGIN) + MARGIN
    return Scene(wide, bottom + 4 + MARGIN, view.title, parts)


def some_labels(words: Sequence[str], length: float, size: float) -> list[tuple[float, str]]:
    """(middle, word) of each word along a side; of every second, third, … if they would touch."""
    apart = length / len(words)
    every = max(1, math.ceil((size + 1) / apart))
    return [(apart * (i + 0.5), label(words[i])) for i in range(0, len(words), every)]


def heat(shares: np.ndarray, x: float, y: float, cell: int) -> list[Part]:
    """Cells in their colours; as one image if they are many."""
    (T, S), ink = shares.shape, colours(shares)
    if T * S > MOST_RECTANGLES:
        pixels = stretched(ink, T * cell * SCALE, S * cell * SCALE)
        return [Image(x, y, S * cell, T * cell, pixels)]
    return [
        Rectangle(x + j * cell, y + i * cell, cell, cell, hexed(ink[i, j]))
        for i in range(T)
        for j in range(S)
    ]


def of_atlas(view: Atlas) -> Scene:
    """A small heat map of each head, a row for each layer."""
    L, H, T, S = view.weights.shape
    side = max(24, min(96, WIDEST // H))
    high, wide = (side, max(12, round(side * S / T))) if S <= T else (max(12, round(side * T / S)), side)
    left, top = MARGIN + breadth([f"layer {L - 1}"], SMALL) + GAP, MARGIN + 2 * LARGE + SMALL + GAP
    parts: list[Part] = [Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True)]
    for h in range(H):
        words = f"head {h}" if wide >= 40 else str(h)
        parts.append(Text(left + h * (wide + GAP) + wide / 2, top - GAP, words, SMALL, "middle", pale=True))
    for l in range(L):
        y = top + l * (high + GAP)
        parts.append(Text(left - GAP / 2, y + high / 2, f"layer {l}", SMALL, "end", pale=True))
        for h in range(H):
            ink = colours(share(pooled(view.weights[l, h], high * SCALE)))
            pixels = stretched(ink, high * SCALE, wide * SCALE)
            parts.append(Image(left + h * (wide + GAP), y, wide, high, pixels))
    across = max(left + H * (wide + GAP), MARGIN + breadth([view.title], LARGE))
    return Scene(across + MARGIN, top + L * (high + GAP) + MARGIN, view.title, parts)


def of_arcs(view: Arcs) -> Scene:
    """Words that look on the left, what they look at on the right; the wider a line, the more."""
    rows, columns = ([label(word) for word in side] for side in (view.rows, view.columns))
    high = LARGE + 5
    left, top = MARGIN + breadth(rows, LARGE), MARGIN + 2 * LARGE + GAP
    right = left + max(160, breadth([view.title], LARGE) - left)
    y = [top + high * (i + 0.5) for i in range(max(len(rows), len(columns)))]
    parts: list[Part] = []
    order = np.argsort(view.weights, axis=None, kind="stable")[::-1][:MOST_LINES]
    for i, j in zip(*np.unravel_index(order, view.weights.shape), strict=True):
        if (weight := float(view.weights[i, j])) >= FAINT:
            parts.append(Line(left + GAP, y[i], right - GAP, y[j], 0.5 + 5 * weight, 0.15 + 0.85 * weight))
    parts.append(Text(MARGIN, MARGIN + LARGE / 2, view.title, pale=True))
    parts += [Text(left, y[i], word, anchor="end") for i, word in enumerate(rows)]
    parts += [Text(right, y[j], word) for j, word in enumerate(columns)]
    return Scene(right + breadth(columns, LARGE) + MARGIN, top + high * len(y) + MARGIN, view.title, parts)


def of_maps(view: Maps) -> Scene:
    """The picture, and beside it once for each word, lit where that word looked."""
    many = len(view.maps)
    side = 240 if many == 1 else 112
    tall, wide = view.picture.shape[:2]
    high, across = (
        (side, max(1, round(side * wide / tall))) if tall >= wide else (round(side * tall / wide), side)
    )
    title, size = label(view.title, 100), LARGE
    room = int(across / (0.6 * size))
    rows = math.ceil((many + 1) / 7)
    in_row = math.ceil((many + 1) / rows)
    top, down = MARGIN + 2 * LARGE, size + GAP / 2 + high + LARGE
    parts: list[Part] = [Text(MARGIN, MARGIN + LARGE / 2, title, pale=True)]
    plain = stretched(view.picture, high * SCALE, across * SCALE)
    for n in range(many + 1):
        x, y = MARGIN + n % in_row * (across + GAP), top + n // in_row * down
        image = plain if n == 0 else lit(view.picture, view.maps[n - 1], *plain.shape[:2])
        if n:
            parts.append(Text(x + across / 2, y + size / 2, label(view.words[n - 1], room), size, "middle"))
        parts.append(Image(x, y + size + GAP / 2, across, high, image))
        if n and view.marks:
            R, C = view.maps.shape[1:]
            r, c = divmod(view.marks[n - 1], C)
            at = x + across * c / C, y + size + GAP / 2 + high * r / R
            parts.append(Rectangle(*at, across / C, high / R, None, MARK))
    breadths = in_row * (across + GAP) - GAP, breadth([title], LARGE)
    return Scene(max(breadths) + 2 * MARGIN, top + rows * down - LARGE + MARGIN, title, parts)


# Writers


def svg(scene: Scene) -> str:
    """A standalone SVG, at home on light and dark grounds."""
    width, height = math.ceil(scene.width), math.ceil(scene.height)
    head = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(visible(scene.title))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
    ]
    return "\n".join([*head, *map(element, scene.parts), "</svg>"]) + "\n"


def element(part: Part) -> str:
    if isinstance(part, Rectangle):
        ink = f'fill="{part.fill or "none"}"' + (
            f' stroke="{part.edge}" stroke-width="2"' if part.edge else ""
        )
        box = f'x="{part.x:g}" y="{part.y:g}" width="{part.width:g}" height="{part.height:g}"'
        return f'<rect {box} {ink} shape-rendering="crispEdges"/>'
    if isinstance(part, Line):
        ends = f'x1="{part.x1:g}" y1="{part.y1:g}" x2="{part.x2:g}" y2="{part.y2:g}"'
        ink = f'stroke="{LINE}" stroke-width="{part.width:.2f}" stroke-opacity="{part.opacity:.2f}"'
        return f"<line {ends} {ink}/>"
    if isinstance(part, Curve):
        points = " ".join(f"{x:.2f},{y:.2f}" for x, y in part.points)
        ink = f'stroke="{part.ink}" stroke-width="{part.width:g}" stroke-linejoin="round"'
        return f'<polyline points="{points}" fill="none" {ink}/>'
    if isinstance(part, Dot):
        return f'<circle cx="{part.x:.2f}" cy="{part.y:.2f}" r="{part.radius:g}" fill="{part.ink}"/>'
    if isinstance(part, Image):
        box = f'x="{part.x:g}" y="{part.y:g}" width="{part.width:g}" height="{part.height:g}"'
        data = base64.b64encode(encoded(part.pixels)).decode()
        return f'<image {box} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    turn = f' transform="rotate(-90 {part.x:g} {part.y:g})"' if part.turned else ""
    kind = ' class="pale"' if part.pale else ""
    at = f'x="{part.x:g}" y="{part.y:g}" dy="0.35em" font-size="{part.size:g}" text-anchor="{part.anchor}"'
    return f"<text{kind} {at}{turn}>{escape(part.words)}</text>"


def png(scene: Scene) -> bytes:
    """The same as a PNG, on white."""
    Pixels = pillow()
    from PIL import ImageDraw

    size = math.ceil(scene.width) * SCALE, math.ceil(scene.height) * SCALE
    canvas = Pixels.new("RGB", size, GROUND)
    if lines := [part for part in scene.parts if isinstance(part, Line | Curve | Dot)]:  # below all else
        fine = 2
        canvas = canvas.resize((size[0] * fine, size[1] * fine))  # for soft edges
        pen, z = ImageDraw.Draw(canvas, "RGBA"), SCALE * fine
        for line in lines:
            if isinstance(line, Dot):
                pen.circle((z * line.x, z * line.y), z * line.radius, fill=line.ink)
            elif isinstance(line, Curve):
                points = [(z * x, z * y) for x, y in line.points]
                pen.line(points, fill=line.ink, width=max(1, round(z * line.width)), joint="curve")
            else:
                ends = [z * x for x in (line.x1, line.y1, line.x2, line.y2)]
                ink = (*bytes.fromhex(LINE[1:]), round(255 * line.opacity))
                pen.line(ends, fill=ink, width=max(1, round(z * line.width)))
        canvas = canvas.reduce(fine)
    pen = ImageDraw.Draw(canvas)
    for part in scene.parts:
        if isinstance(part, Rectangle):
            x, y = round(part.x * SCALE), round(part.y * SCALE)
            right, bottom = (part.x + part.width) * SCALE, (part.y + part.height) * SCALE
            box = [x, y, max(x, round(right) - 1), max(y, round(bottom) - 1)]
            pen.rectangle(box, fill=part.fill, outline=part.edge, width=2 * SCALE if part.edge else 0)
        elif isinstance(part, Image):
            canvas.paste(Pixels.fromarray(part.pixels), (round(part.x * SCALE), round(part.y * SCALE)))
        elif isinstance(part, Text):
            put(canvas, part)
    return encoded(canvas)


def put(canvas: Any, text: Text) -> None:
    """A text on a PNG."""
    Pixels = pillow()
    from PIL import ImageDraw

    font = lettering(text.words, text.size * SCALE)
    ink = bytes.fromhex((PALE if text.pale else INK)[1:])
    long, high = math.ceil(font.getlength(text.words)) + 2, round(2 * text.size * SCALE)
    mask = Pixels.new("L", (long, high))
    # 0.35 of a letter's height below the middle, as in the SVG
    ImageDraw.Draw(mask).text((1, high / 2 + 0.35 * text.size * SCALE), text.words, 255, font, anchor="ls")
    before = {"start": 0, "middle": long / 2, "end": long}[text.anchor]
    x, y = text.x * SCALE, text.y * SCALE
    if text.turned:
        mask, at = mask.rotate(90, expand=True), (x - high / 2, y - long + before)
    else:
        at = x - before, y - high / 2
    canvas.paste(Pixels.new("RGB", mask.size, tuple(ink)), (round(at[0]), round(at[1])), mask)


FONTS = "DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf"  # where they are installed


def lettering(words: str, size: float) -> Any:
    """Pillow's own font; if it lacks a letter, the first that is installed and has them all."""
    own = fonts(size)[0]
    return next((font for font in fonts(size) if has(font, words)), own)


@functools.cache
def fonts(size: float) -> list[Any]:
    from PIL import ImageFont

    found: list[Any] = [ImageFont.load_default(size)]
    for name in FONTS:
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return found


def has(font: Any, words: str) -> bool:
    """Does it have a shape for each letter, other than the one for those that it lacks?"""
    lacking = bytes(font.getmask("\U0010fffe"))
    return all(c == " " or bytes(font.getmask(c)) != lacking for c in words)


def encoded(pixels: Any) -> bytes:
    """A PNG of an array or an image."""
    Pixels = pillow()
    image, kept = Pixels.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels, io.BytesIO()
    image.save(kept, "PNG", optimize=False, dpi=(96 * SCALE, 96 * SCALE))
    return kept.getvalue()
