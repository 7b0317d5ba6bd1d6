"""Write a scene as a PNG on a light background."""

import functools
import io
import math
from typing import TYPE_CHECKING

import numpy as np

from regard.draw.scene import PALETTE, SCALE, Circle, Image, Line, Polyline, Rectangle, Scene, Text

if TYPE_CHECKING:  # Pillow takes a moment to import, and most commands draw nothing
    from PIL.Image import Image as Canvas
    from PIL.ImageFont import FreeTypeFont, ImageFont

SMOOTHING = 2  # lines are drawn this many times larger and then reduced
FONTS = "DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf"


def png(scene: Scene) -> bytes:
    return encode_png(draw_scene(scene))


def draw_scene(scene: Scene) -> "Canvas":
    """The scene as pixels."""
    import PIL.Image
    from PIL import ImageDraw

    size = math.ceil(scene.width) * SCALE, math.ceil(scene.height) * SCALE
    canvas = PIL.Image.new("RGB", size, light("ground"))
    if lines := [shape for shape in scene.shapes if isinstance(shape, Line | Polyline | Circle)]:
        canvas = draw_lines(canvas, lines)  # below everything else
    pen = ImageDraw.Draw(canvas)
    for shape in scene.shapes:
        if isinstance(shape, Rectangle):
            x, y = round(shape.x * SCALE), round(shape.y * SCALE)
            right, bottom = (shape.x + shape.width) * SCALE, (shape.y + shape.height) * SCALE
            box = [x, y, max(x, round(right) - 1), max(y, round(bottom) - 1)]
            fill, edge = (None if colour is None else light(colour) for colour in (shape.fill, shape.edge))
            pen.rectangle(box, fill=fill, outline=edge, width=2 * SCALE if edge else 0)
        elif isinstance(shape, Image):
            pixels = PIL.Image.fromarray(shape.pixels)
            canvas.paste(pixels, (round(shape.x * SCALE), round(shape.y * SCALE)))
        elif isinstance(shape, Text):
            draw_text(canvas, shape)
    return canvas


def light(colour: str) -> str:
    """A colour on a light background, as #rrggbb."""
    return PALETTE[colour][0] if colour in PALETTE else colour


def draw_lines(canvas: "Canvas", shapes: list[Line | Polyline | Circle]) -> "Canvas":
    """The canvas with lines and circles that have smooth edges."""
    from PIL import ImageDraw

    canvas = canvas.resize((canvas.width * SMOOTHING, canvas.height * SMOOTHING))
    pen, z = ImageDraw.Draw(canvas, "RGBA"), SCALE * SMOOTHING
    for shape in shapes:
        if isinstance(shape, Circle):
            edge = light(shape.edge) if shape.edge else None
            radius = z * (shape.radius + 1.25 if edge else shape.radius)  # the edge lies half outside
            width = round(2.5 * z) if edge else 1
            pen.circle((z * shape.x, z * shape.y), radius, light(shape.fill), edge, width)
        elif isinstance(shape, Polyline):
            points = [(z * x, z * y) for x, y in shape.points]
            width = max(1, round(z * shape.width))
            pen.line(points, fill=light(shape.colour), width=width, joint="curve")
        else:
            ends = [z * x for x in (shape.x1, shape.y1, shape.x2, shape.y2)]
            r, g, b = bytes.fromhex(light("blue")[1:])
            pen.line(ends, fill=(r, g, b, round(255 * shape.opacity)), width=max(1, round(z * shape.width)))
    return canvas.reduce(SMOOTHING)


def draw_text(canvas: "Canvas", text: Text) -> None:
    from PIL import Image, ImageDraw

    font = choose_font(text.words, text.size * SCALE)
    width, height = math.ceil(font.getlength(text.words)) + 2, round(2 * text.size * SCALE)
    before = {"start": 0, "middle": width / 2, "end": width}[text.anchor]
    x, y = text.x * SCALE, text.y * SCALE
    layers = [("ground", 3 * SCALE)] if text.halo else []
    for colour, stroke in [*layers, ("pale" if text.pale else "ink", int(text.bold))]:
        mask = Image.new("L", (width + 2 * stroke, height))
        # The baseline is 0.35 of the font size below the middle, as in the SVG.
        baseline = 1 + stroke, height / 2 + 0.35 * text.size * SCALE
        ImageDraw.Draw(mask).text(baseline, text.words, 255, font, anchor="ls", stroke_width=stroke)
        left, top = x - before - stroke, y - height / 2
        if text.vertical:
            mask, left, top = mask.rotate(90, expand=True), x - height / 2, y - width + before - stroke
        canvas.paste(Image.new("RGB", mask.size, light(colour)), (round(left), round(top)), mask)


def choose_font(words: str, size: float) -> "FreeTypeFont | ImageFont":
    """The first installed font that has every letter, or Pillow's own."""
    fonts = installed_fonts(size)
    return next((font for font in fonts if has_glyphs(font, words)), fonts[0])


@functools.cache
def installed_fonts(size: float) -> "list[FreeTypeFont | ImageFont]":
    """Pillow's own font, then those of FONTS that are installed."""
    from PIL import ImageFont

    fonts = [ImageFont.load_default(size)]
    for name in FONTS:
        try:
            fonts.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return fonts


def has_glyphs(font: "FreeTypeFont | ImageFont", words: str) -> bool:
    """Whether the font has every letter. A missing one looks like the noncharacter U+10FFFE."""
    missing = bytes(font.getmask("\U0010fffe"))
    return all(c == " " or bytes(font.getmask(c)) != missing for c in words)


def encode_png(image: "np.ndarray | Canvas") -> bytes:
    import PIL.Image

    file = io.BytesIO()
    image = PIL.Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(file, "PNG", optimize=False, dpi=(96 * SCALE, 96 * SCALE))
    return file.getvalue()
