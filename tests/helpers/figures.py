"""Read the shapes of a figure from its SVG."""

import xml.etree.ElementTree as ET
from typing import Any

import numpy as np

from regard.draw.picture import draw

NS = "{http://www.w3.org/2000/svg}"


def elements(figure: Any, kind: str) -> list[ET.Element]:
    return list(ET.fromstring(draw(figure).svg()).iter(NS + kind))


def polylines(figure: Any) -> list[np.ndarray]:
    """The points (N, 2) of every curve."""
    return [
        np.array([list(map(float, p.split(","))) for p in e.attrib["points"].split()])
        for e in elements(figure, "polyline")
        if float(e.attrib["stroke-width"]) == 2
    ]


def dots(figure: Any) -> np.ndarray:
    """The centres (N, 2) of all circles."""
    return np.array([[float(e.attrib["cx"]), float(e.attrib["cy"])] for e in elements(figure, "circle")])
