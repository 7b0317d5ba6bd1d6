"""Pictures of drawn shapes with captions: "a red circle above a blue square". Any number, without a file.

Of two shapes the caption names the larger one first, so a picture has one right caption. Some combinations
never occur unless asked for (`held`): who captions those has understood colour, shape and place.

Shapes: N pictures, of SIZE x SIZE pixels.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

SIZE = 32  # pixels, each way
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 90, 225),
    "yellow": (235, 210, 50),
    "purple": (150, 55, 175),
    "white": (240, 240, 240),
}
RELATIONS = {"above": (0, -1), "below": (0, 1), "left of": (-1, 0), "right of": (1, 0)}  # x, y
ALONE = 0.25  # the share of pictures with one shape
Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels; the last two are the first outside


def circle(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.hypot(x, y) - r


def square(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.maximum(abs(x), abs(y)) - 0.9 * r


def triangle(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    y, R = y - 0.29 * r, 1.15 * r  # its middle is not that of its corners' circle
    return np.maximum(y, math.sqrt(0.75) * abs(x) - y / 2) - R / 2


def cross(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    long, short = np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
    return np.maximum(long - r, short - r / 3)


KINDS = {f.__name__: f for f in (circle, square, triangle, cross)}  # distances from the edge, inside below 0


@dataclass(frozen=True)
class Drawn:
    pixels: np.ndarray  # uint8 (N, 3, SIZE, SIZE)
    captions: list[str]
    labels: list[str]  # the kind of the only or the larger shape
    boxes: list[dict[str, Box]]  # "red circle" -> where it is


def drawn(seed: int, count: int, held: bool = False) -> Drawn:
    """So many pictures. What is drawn with `held` never is without it."""
    rng = np.random.Generator(np.random.Philox(key=(seed << 1) + held))
    n, m = len(COLOURS), len(KINDS)
    # Every coloured shape, alone and in every relation to every other one, is either held or not.
    one = np.indices((n, m)).reshape(2, -1).T
    two = np.indices((n, m, n, m, len(RELATIONS))).reshape(5, -1).T
    two = two[(two[:, 0] != two[:, 2]) | (two[:, 1] != two[:, 3])]
    one, two = (some[(some.sum(1) % 5 == 0) == held] for some in (one, two))
    alone = rng.random(count) < ALONE
    chosen = two[rng.integers(len(two), size=count)]  # colour, kind, colour, kind, relation
    chosen[alone, :2] = one[rng.integers(len(one), size=count)][alone]

    sizes = rng.uniform((6, 3.5), (8, 5), size=(count, 2))
    centres = _placed(rng, sizes, np.array(list(RELATIONS.values()))[chosen[:, 4]])
    middle = sizes[:, :1] + rng.random((count, 2)) * (SIZE - 2 * sizes[:, :1])
    centres[alone, 0] = middle[alone]
    colours = np.array(list(COLOURS.values()))[chosen[:, [0, 2]]] + rng.uniform(-15, 15, (count, 2, 3))
    ground = rng.uniform(20, 70, (count, 1)) + rng.uniform(-8, 8, (count, 3))
    pixels = np.empty((count, 3, SIZE, SIZE), dtype=np.uint8)
    edges = np.empty((count, 2, 4), dtype=np.int64)
    for start in range(0, count, 1024):
        rows = slice(start, start + 1024)
        covers = [_cover(chosen[rows, 2 * i + 1], centres[rows, i], sizes[rows, i]) for i in (0, 1)]
        covers[1][alone[rows]] = 0
        picture = np.broadcast_to(ground[rows, :, None, None], pixels[rows].shape)
        for i, cover in enumerate(covers):
            picture = picture + cover[:, None] * (colours[rows, i, :, None, None] - picture)
            edges[rows, i] = _edges(cover)
        picture = picture + rng.normal(0, 4, picture.shape)
        pixels[rows] = picture.round().clip(0, 255)

    captions, boxes = [], []
    for (c, k, c2, k2, r), single, where in zip(chosen, alone, edges.tolist(), strict=True):
        first, second = (f"{_name(COLOURS, a)} {_name(KINDS, b)}" for a, b in ((c, k), (c2, k2)))
        captions.append(f"a {first}" if single else f"a {first} {_name(RELATIONS, r)} a {second}")
        x0, y0, x1, y1 = where[0]
        boxes.append({first: (x0, y0, x1, y1)})
        if not single:
            x0, y0, x1, y1 = where[1]
            boxes[-1][second] = (x0, y0, x1, y1)
    return Drawn(pixels, captions, [_name(KINDS, k) for k in chosen[:, 1]], boxes)


def _name(words: dict[str, Any], i: int) -> str:
    return list(words)[i]


def _placed(rng: np.random.Generator, sizes: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Centres (N, 2, 2) of a larger shape and of a smaller one from which it stands `towards` (N, 2)."""
    a, b = sizes.T
    away = a + b + 1 + rng.random(len(a)) * (SIZE - 1 - 2 * (a + b))
    aside = rng.uniform(-0.5, 0.5, len(a)) * away
    along = a + rng.random(len(a)) * (SIZE - a - b - away)  # of the larger one, from the side it stands at
    low, high = np.maximum(a, b - aside), np.minimum(SIZE - a, SIZE - b - aside)
    across = low + rng.random(len(a)) * (high - low)
    centres = np.stack([along, across, along + away, across + aside], axis=1).reshape(-1, 2, 2)
    centres[towards.sum(1) > 0, :, 0] = SIZE - centres[towards.sum(1) > 0, :, 0]
    upright = towards[:, 0] == 0
    centres[upright] = centres[upright][:, :, ::-1]
    return centres


def _cover(kinds: np.ndarray, centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How much of each pixel a shape covers, 0 to 1: (N, SIZE, SIZE)."""
    at = np.arange(SIZE) + 0.5
    cover = np.empty((len(kinds), SIZE, SIZE))
    for i, distance in enumerate(KINDS.values()):
        (x, y), r = centres[kinds == i].T[:, :, None, None], sizes[kinds == i][:, None, None]
        cover[kinds == i] = (0.5 - distance(at - x, at[:, None] - y, r)).clip(0, 1)
    return cover


def _edges(cover: np.ndarray) -> np.ndarray:
    """The smallest box (N, 4) around what is covered."""
    sides = []
    for axis in (1, 2):
        touched = np.asarray((cover > 0).any(axis))
        sides.append((touched.argmax(1), SIZE - touched[:, ::-1].argmax(1)))
    (x0, x1), (y0, y1) = sides
    return np.stack([x0, y0, x1, y1], axis=1)
