"""Spoken digits, and images of shapes with captions such as "a red circle above a blue square".

The caption names the larger of two shapes first, so an image has one right caption. Some combinations
occur only with `held_out`: a model that captions those generalises over colour, shape and place.

`python -m regard.data.synthetic picture.png [SEED]` saves one to try a model with, and prints its caption;
`word.wav` instead is a digit, said by a voice that no model has heard in training.

Shapes: N images of SIZE x SIZE pixels.
"""

import math
import sys
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.audio.formants import DIGITS, Voice, say
from regard.audio.mel import RATE

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
ALONE = 0.25  # the share of images with one shape
Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels; x1 and y1 are exclusive


def circle(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.hypot(x, y) - r


def square(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.maximum(abs(x), abs(y)) - 0.9 * r


def triangle(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    y, R = y - 0.29 * r, 1.15 * r  # centred on its bounding box, not on the circle through its corners
    return np.maximum(y, math.sqrt(0.75) * abs(x) - y / 2) - R / 2


def cross(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> np.ndarray:
    long, short = np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
    return np.maximum(long - r, short - r / 3)


KINDS = {
    f.__name__: f for f in (circle, square, triangle, cross)
}  # signed distances from the edge, negative inside


@dataclass(frozen=True)
class ShapeImages:
    pixels: np.ndarray  # uint8 (N, 3, SIZE, SIZE)
    captions: list[str]
    labels: list[str]  # the kind of the larger shape, or of the only one
    boxes: list[dict[str, Box]]  # "red circle" -> its box


def draw_shapes(seed: int, count: int, held_out: bool = False) -> ShapeImages:
    """Draw `count` images; no caption occurs both with and without `held_out`."""
    rng = np.random.Generator(np.random.Philox(key=(seed << 1) + held_out))
    n, m = len(COLOURS), len(KINDS)
    # Every coloured shape, alone and in every relation to every other one, is either held out or not.
    single = np.indices((n, m)).reshape(2, -1).T
    double = np.indices((n, m, n, m, len(RELATIONS))).reshape(5, -1).T
    double = double[(double[:, 0] != double[:, 2]) | (double[:, 1] != double[:, 3])]
    single, double = (rows[(rows.sum(1) % 5 == 0) == held_out] for rows in (single, double))
    alone = rng.random(count) < ALONE
    chosen = double[rng.integers(len(double), size=count)]  # colour, kind, colour, kind, relation
    chosen[alone, :2] = single[rng.integers(len(single), size=count)][alone]

    sizes = rng.uniform((6, 3.5), (8, 5), size=(count, 2))
    centres = _place_shapes(rng, sizes, np.array(list(RELATIONS.values()))[chosen[:, 4]])
    centre_alone = sizes[:, :1] + rng.random((count, 2)) * (SIZE - 2 * sizes[:, :1])
    centres[alone, 0] = centre_alone[alone]
    colours = np.array(list(COLOURS.values()))[chosen[:, [0, 2]]] + rng.uniform(-15, 15, (count, 2, 3))
    background = rng.uniform(20, 70, (count, 1)) + rng.uniform(-8, 8, (count, 3))
    pixels = np.empty((count, 3, SIZE, SIZE), dtype=np.uint8)
    edges = np.empty((count, 2, 4), dtype=np.int64)
    for start in range(0, count, 1024):
        rows = slice(start, start + 1024)
        covers = [_coverage(chosen[rows, 2 * i + 1], centres[rows, i], sizes[rows, i]) for i in (0, 1)]
        covers[1][alone[rows]] = 0
        image = np.broadcast_to(background[rows, :, None, None], pixels[rows].shape)
        for i, cover in enumerate(covers):
            image = image + cover[:, None] * (colours[rows, i, :, None, None] - image)
            edges[rows, i] = _bounding_boxes(cover)
        image = image + rng.normal(0, 4, image.shape)
        pixels[rows] = image.round().clip(0, 255)

    captions, boxes = [], []
    for (c, k, c2, k2, r), is_alone, where in zip(chosen, alone, edges.tolist(), strict=True):
        first, second = (f"{_name(COLOURS, a)} {_name(KINDS, b)}" for a, b in ((c, k), (c2, k2)))
        captions.append(f"a {first}" if is_alone else f"a {first} {_name(RELATIONS, r)} a {second}")
        x0, y0, x1, y1 = where[0]
        boxes.append({first: (x0, y0, x1, y1)})
        if not is_alone:
            x0, y0, x1, y1 = where[1]
            boxes[-1][second] = (x0, y0, x1, y1)
    return ShapeImages(pixels, captions, [_name(KINDS, k) for k in chosen[:, 1]], boxes)


def _name(words: dict[str, Any], i: int) -> str:
    return list(words)[i]


def _place_shapes(rng: np.random.Generator, sizes: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Return centres (N, 2, 2) of a larger and a smaller shape, with the larger one `towards` (N, 2)."""
    a, b = sizes.T
    distance = a + b + 1 + rng.random(len(a)) * (SIZE - 1 - 2 * (a + b))
    offset = rng.uniform(-0.5, 0.5, len(a)) * distance
    along = a + rng.random(len(a)) * (
        SIZE - a - b - distance
    )  # of the larger one, from its side of the image
    low, high = np.maximum(a, b - offset), np.minimum(SIZE - a, SIZE - b - offset)
    across = low + rng.random(len(a)) * (high - low)
    centres = np.stack([along, across, along + distance, across + offset], axis=1).reshape(-1, 2, 2)
    centres[towards.sum(1) > 0, :, 0] = SIZE - centres[towards.sum(1) > 0, :, 0]
    vertical = towards[:, 0] == 0
    centres[vertical] = centres[vertical][:, :, ::-1]
    return centres


def _coverage(kinds: np.ndarray, centres: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the share of each pixel that a shape covers, 0 to 1: (N, SIZE, SIZE)."""
    pixel = np.arange(SIZE) + 0.5
    cover = np.empty((len(kinds), SIZE, SIZE))
    for i, distance in enumerate(KINDS.values()):
        (x, y), r = centres[kinds == i].T[:, :, None, None], sizes[kinds == i][:, None, None]
        cover[kinds == i] = (0.5 - distance(pixel - x, pixel[:, None] - y, r)).clip(0, 1)
    return cover


def _bounding_boxes(cover: np.ndarray) -> np.ndarray:
    """Return the smallest box (N, 4) around what is covered."""
    sides = []
    for axis in (1, 2):
        covered = np.asarray((cover > 0).any(axis))
        sides.append((covered.argmax(1), SIZE - covered[:, ::-1].argmax(1)))
    (x0, x1), (y0, y1) = sides
    return np.stack([x0, y0, x1, y1], axis=1)


def speak_digits(seed: int, voices: int, takes: int) -> list[tuple[str, str, np.ndarray]]:
    """Synthesize every digit in several voices, several times: the word, the voice's name, samples (N)."""
    recordings = []
    for number in range(voices):
        rng = np.random.Generator(np.random.Philox(key=seed << 32 | number))
        voice = Voice.draw(rng)
        for word in DIGITS:
            recordings += [(word, f"voice{seed}-{number}", say(word, voice, rng)) for _ in range(takes)]
    return recordings


def save_sample(path: str | Path, seed: int = 0) -> str:
    """Save a held-out image, eight times as large, or a recording (.wav); return its caption or word."""
    if Path(path).suffix == ".wav":
        return save_digit(path, seed)
    from PIL import Image  # loaded only when an image is read or written

    drawing = draw_shapes(seed, 1, held_out=True)
    image = Image.fromarray(np.ascontiguousarray(drawing.pixels[0].transpose(1, 2, 0)))
    image.resize((8 * SIZE, 8 * SIZE), Image.Resampling.NEAREST).save(path)
    return drawing.captions[0]


def save_digit(path: str | Path, seed: int) -> str:
    """Save a digit, said by a voice that is not among the built-in ones; return its name."""
    rng = np.random.Generator(np.random.Philox(key=3 + seed << 32))  # 1 and 2 have the built-in voices
    word = list(DIGITS)[(7 + seed) % len(DIGITS)]
    samples = say(word, Voice.draw(rng), rng)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)  # 16 bits
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return word


if __name__ == "__main__":
    print(save_sample(sys.argv[1], *map(int, sys.argv[2:])))
