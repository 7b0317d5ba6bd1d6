"""Write a scene as a standalone SVG that is readable on light and dark backgrounds."""

import base64
import math
from xml.sax.saxutils import escape

from regard.draw.png import encode_png
from regard.draw.scene import PALETTE, Circle, Image, Line, Polyline, Rectangle, Scene, Shape, Text
from regard.draw.terminal import visible

# Plain values rather than CSS variables, which few viewers besides browsers understand.
STYLE = f"""
  text {{ font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: {PALETTE["ink"][0]} }}
  .pale {{ fill: {PALETTE["pale"][0]} }}
  .ground {{ fill: {PALETTE["ground"][0]} }}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: {PALETTE["ink"][1]} }}
    .pale {{ fill: {PALETTE["pale"][1]} }}
    .ground {{ fill: {PALETTE["ground"][1]} }}
    line {{ stroke: {PALETTE["blue"][1]} }}
  }}
"""


def svg(scene: Scene) -> str:
    width, height = math.ceil(scene.width), math.ceil(scene.height)
    corner = f' rx="{scene.corner:g}"' if scene.corner else ""
    head = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(visible(scene.title))}</title>",
        f"<style>{STYLE}{palette_style(scene)}</style>",
        f'<rect class="ground" width="{width}" height="{height}"{corner}/>',
    ]
    return "\n".join([*head, *map(element, scene.shapes), "</svg>"]) + "\n"


def paints(shape: Shape) -> list[tuple[str, str]]:
    """(property, colour) of a shape whose colours may be names of the palette."""
    if isinstance(shape, Polyline):
        return [("fill", "none"), ("stroke", shape.colour)]
    if isinstance(shape, Rectangle | Circle):
        return [("fill", shape.fill or "none"), *([("stroke", shape.edge)] if shape.edge else [])]
    return [("stroke", "ground")] if isinstance(shape, Text) and shape.halo else []


def palette_style(scene: Scene) -> str:
    """Rules for the named colours that a scene uses."""
    names = {pair for shape in scene.shapes for pair in paints(shape) if pair[1] in PALETTE}
    rules = [[f"  .{p}-{name} {{ {p}: {PALETTE[name][i]} }}\n" for p, name in sorted(names)] for i in (0, 1)]
    if not names:
        return ""
    return "".join(rules[0]) + "  @media (prefers-color-scheme: dark) {\n  " + "  ".join(rules[1]) + "  }\n"


def paint(shape: Shape) -> str:
    """Attributes for the colours of a shape; named ones are classes."""
    pairs = paints(shape)
    classes = " ".join(f"{name}-{colour}" for name, colour in pairs if colour in PALETTE)
    plain = [f'{name}="{colour}"' for name, colour in pairs if colour not in PALETTE]
    return " ".join([*([f'class="{classes}"'] if classes else []), *plain])


def element(shape: Shape) -> str:
    if isinstance(shape, Rectangle):
        edge = ' stroke-width="2"' if shape.edge else ""
        return f'<rect {box(shape)} {paint(shape)}{edge} shape-rendering="crispEdges"/>'
    if isinstance(shape, Line):
        ends = f'x1="{shape.x1:g}" y1="{shape.y1:g}" x2="{shape.x2:g}" y2="{shape.y2:g}"'
        width = f'stroke-width="{shape.width:.2f}" stroke-opacity="{shape.opacity:.2f}"'
        return f'<line {ends} stroke="{PALETTE["blue"][0]}" {width}/>'
    if isinstance(shape, Polyline):
        points = " ".join(f"{x:.2f},{y:.2f}" for x, y in shape.points)
        width = f'stroke-width="{shape.width:g}" stroke-linejoin="round"'
        return f'<polyline points="{points}" {paint(shape)} {width}/>'
    if isinstance(shape, Circle):
        centre = f'cx="{shape.x:.2f}" cy="{shape.y:.2f}" r="{shape.radius:g}"'
        edge = ' stroke-width="2.5"' if shape.edge else ""
        return f"<circle {centre} {paint(shape)}{edge}/>"
    if isinstance(shape, Image):
        data = base64.b64encode(encode_png(shape.pixels)).decode()
        return f'<image {box(shape)} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    return text_element(shape)


def box(shape: Rectangle | Image) -> str:
    return f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'


def text_element(text: Text) -> str:
    rotation = f' transform="rotate(-90 {text.x:g} {text.y:g})"' if text.vertical else ""
    kind = ' class="pale"' if text.pale else ""
    place = f'x="{text.x:g}" y="{text.y:g}" dy="0.35em" font-size="{text.size:g}"'
    place += f' text-anchor="{text.anchor}"' + (' font-weight="600"' if text.bold else "")
    words = escape(visible(text.words))
    # An element of its own, because not every viewer knows paint-order.
    halo = f'<text {paint(text)} {place} stroke-width="5" stroke-linejoin="round"{rotation}>{words}</text>\n'
    return (halo if text.halo else "") + f"<text{kind} {place}{rotation}>{words}</text>"
