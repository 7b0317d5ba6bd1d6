"""Synthetic shapes: captions describe what is in the image."""

import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.synthetic import (
    COLOURS,
    KINDS,
    RELATIONS,
    SIZE,
    ShapeImages,
    draw_shapes,
    save_sample,
    speak_digits,
)


@pytest.fixture(scope="module")
def images() -> ShapeImages:
    return draw_shapes(seed=3, count=401)


def nearest_colour(colour: np.ndarray) -> str:
    return min(COLOURS, key=lambda name: np.abs(np.array(COLOURS[name]) - colour).sum())


def test_sizes_and_types(images: ShapeImages) -> None:
    assert images.pixels.shape == (401, 3, SIZE, SIZE)
    assert images.pixels.dtype == np.uint8
    assert len(images.captions) == len(images.labels) == len(images.boxes) == 401
    assert set(images.labels) == set(KINDS)


def test_the_seed_decides() -> None:
    one, same, other = (
        draw_shapes(seed=5, count=17),
        draw_shapes(seed=5, count=17),
        draw_shapes(seed=6, count=17),
    )
    assert np.array_equal(one.pixels, same.pixels)
    assert one.captions == same.captions
    assert not np.array_equal(one.pixels, other.pixels)
    assert not np.array_equal(one.pixels, draw_shapes(seed=5, count=17, held_out=True).pixels)


def test_captions_name_what_has_boxes_and_the_first_is_the_class(images: ShapeImages) -> None:
    alone = 0
    for caption, label, boxes in zip(images.captions, images.labels, images.boxes, strict=True):
        first, *more = boxes
        alone += not more
        assert first.split()[1] == label
        if not more:
            assert caption == f"a {first}"
        else:
            relation = caption.removeprefix(f"a {first} ").removesuffix(f" a {more[0]}")
            assert relation in RELATIONS
    assert 70 < alone < 130  # a fourth


def test_colours_and_kinds_are_in_their_boxes(images: ShapeImages) -> None:
    """Read from the pixels: the colour in the middle, and how the box is filled."""
    for pixels, boxes in zip(images.pixels.astype(int), images.boxes, strict=True):
        ground = np.median(pixels.reshape(3, -1), axis=1)
        for name, (x0, y0, x1, y1) in boxes.items():
            colour, kind = name.split()
            inside = pixels[:, y0:y1, x0:x1]
            middle = inside[:, (y1 - y0) // 2 - 1 : (y1 - y0) // 2 + 1, (x1 - x0) // 2].mean(1)
            assert nearest_colour(middle) == colour
            true = np.array(COLOURS[colour])[:, None, None]
            filled = abs(inside - true).sum(0) < abs(inside - ground[:, None, None]).sum(0)
            if x1 - x0 > 10:  # small ones are mostly edge
                assert of_kind(filled) == kind, name


def of_kind(filled: np.ndarray) -> str:
    """A square fills its corners; a triangle is wider below; a cross has nothing between its arms."""
    if filled[[1, 1, -2, -2], [1, -2, 1, -2]].all():
        return "square"
    third, quarter = len(filled) // 3, len(filled) // 4
    if filled[-third:].mean() > filled[:third].mean() + 0.25:
        return "triangle"
    return "circle" if filled[quarter, quarter] else "cross"


def test_relations_and_sizes_are_as_stated(images: ShapeImages) -> None:
    for caption, boxes in zip(images.captions, images.boxes, strict=True):
        if len(boxes) == 1:
            continue
        (a, b, c, d), (e, f, g, h) = boxes.values()
        assert (c - a) * (d - b) > (g - e) * (h - f), "the larger one is named first"
        assert c <= e or g <= a or d <= f or h <= b, "they don't touch"
        dx, dy = (a + c) - (e + g), (b + d) - (f + h)
        stated = next(relation for relation in RELATIONS if f" {relation} " in caption)
        actual = (
            ("left of" if dx < 0 else "right of") if abs(dx) > abs(dy) else "above" if dy < 0 else "below"
        )
        assert stated == actual


def test_nothing_of_a_shape_is_outside_its_box_or_the_picture(images: ShapeImages) -> None:
    for pixels, boxes in zip(images.pixels.astype(int), images.boxes, strict=True):
        outside = np.ones((SIZE, SIZE), dtype=bool)
        for x0, y0, x1, y1 in boxes.values():
            assert 0 <= x0 < x1 <= SIZE
            assert 0 <= y0 < y1 <= SIZE
            outside[y0:y1, x0:x1] = False
        rest = pixels[:, outside]
        assert np.abs(rest - np.median(rest, axis=1, keepdims=True)).max() < 30  # noise alone


def test_held_combinations_never_occur_otherwise() -> None:
    usual, held = draw_shapes(seed=1, count=6007), draw_shapes(seed=2, count=1009, held_out=True)
    assert not set(usual.captions) & set(held.captions)
    assert len(set(held.captions)) > 300
    words = {word for caption in usual.captions for word in caption.split()}
    assert {word for caption in held.captions for word in caption.split()} == words  # only put together anew


def test_a_sample_is_a_picture_of_its_caption(tmp_path: Path) -> None:
    caption = save_sample(tmp_path / "sample.png", 3)
    drawing = draw_shapes(3, 1, held_out=True)
    assert caption == drawing.captions[0]
    with Image.open(tmp_path / "sample.png") as image:
        pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.NEAREST))
    assert (pixels == drawing.pixels[0].transpose(1, 2, 0)).all()


def test_a_recording_says_the_digit_that_is_printed(tmp_path: Path) -> None:
    assert [save_sample(tmp_path / "sample.wav", seed) for seed in range(3)] == ["seven", "eight", "nine"]
    assert save_sample(tmp_path / "sample.wav", 3) == "zero"
    with wave.open(str(tmp_path / "sample.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    _, _, same = speak_digits(6, 1, 1)[0]  # the same voice, and its first word
    np.testing.assert_allclose(samples, same, atol=1e-4)
