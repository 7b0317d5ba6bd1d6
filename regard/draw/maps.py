"""Attention over an image: the image, and beside it copies that are bright where the weights are large.

Shapes: C channels, H height, W width, N maps of R rows and Q columns of regions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.draw.heat import resize_nearest, scale_to_max
from regard.draw.scene import (
    GAP,
    LARGE,
    MARGIN,
    SCALE,
    Image,
    Rectangle,
    Scene,
    Shape,
    Text,
    heading,
    make_label,
    text_width,
)

if TYPE_CHECKING:
    from torch import Tensor

MARK = "#e69f00"  # Okabe and Ito's orange
PER_ROW = 7


@dataclass(frozen=True)
class Maps:
    """An image, and attention weights over its regions."""

    title: str
    picture: np.ndarray  # uint8 (H, W, 3)
    maps: np.ndarray  # (N, R, Q)
    words: Sequence[str]  # N, the subject of each map
    marks: Sequence[int] = ()  # N regions, counted row by row, to frame

    def scene(self) -> Scene:
        N = len(self.maps)
        side = 240 if N == 1 else 112
        H, W = self.picture.shape[:2]
        height = side if H >= W else round(side * H / W)
        width = side if H < W else max(1, round(side * W / H))
        title = make_label(self.title, 100)
        rows = math.ceil((N + 1) / PER_ROW)
        per_row = math.ceil((N + 1) / rows)
        top, row_height = MARGIN + 2 * LARGE, LARGE + GAP / 2 + height + LARGE
        shapes: list[Shape] = [heading(title)]
        for n in range(N + 1):
            x, y = MARGIN + n % per_row * (width + GAP), top + n // per_row * row_height
            shapes += self.panel(n - 1, x, y, width, height)
        widest = max(per_row * (width + GAP) - GAP, text_width([title], LARGE))
        return Scene(widest + 2 * MARGIN, top + rows * row_height - LARGE + MARGIN, title, shapes)

    def panel(self, n: int, x: float, y: float, width: int, height: int) -> list[Shape]:
        """The n-th map over the image with its word above; of number -1, only the image."""
        size, top = (height * SCALE, width * SCALE), y + LARGE + GAP / 2
        if n < 0:
            return [Image(x, top, width, height, resize_nearest(self.picture, *size))]
        word = make_label(self.words[n], int(width / (0.6 * LARGE)))
        shapes: list[Shape] = [
            Text(x + width / 2, y + LARGE / 2, word, LARGE, "middle"),
            Image(x, top, width, height, highlight(self.picture, self.maps[n], *size)),
        ]
        if self.marks:
            R, Q = self.maps.shape[1:]
            r, q = divmod(self.marks[n], Q)
            left, above = x + width * q / Q, top + height * r / R
            shapes.append(Rectangle(left, above, width / Q, height / R, None, MARK))
        return shapes


def highlight(picture: np.ndarray, weights: np.ndarray, height: int, width: int) -> np.ndarray:
    """The image darkened, and brighter where the weights (R, Q) are large; the maximum is brightest."""
    pixels = resize_nearest(picture, height, width)
    shares = resize_nearest(scale_to_max(weights), height, width)[..., None]
    return ((0.3 + 0.4 * shares) * pixels + 0.3 * shares * 255).round().astype(np.uint8)


def to_image(pixels: "Tensor") -> np.ndarray:
    """Bytes (C, H, W), grey or in colour, as (H, W, 3)."""
    return pixels.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()
