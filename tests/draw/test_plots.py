"""Plots: each point, bar and line is drawn where its number is."""

import io
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from helpers.figures import dots, elements, polylines
from regard.draw.axes import log_ticks, tick_label
from regard.draw.heat import Matrix
from regard.draw.picture import draw
from regard.draw.plots import HEIGHT, WIDTH, Bars, Curves, Pooling, finite_runs
from regard.draw.scene import Polyline, Text, side_by_side, stack
from regard.draw.tree import Tree
from regard.draw.word_map import Points

RNG = np.random.default_rng(11)
X, Y = RNG.uniform(0, 5, 23), RNG.normal(0, 1, 23)


def pooling(width):
    """Pooling with a Gaussian kernel."""
    queries = np.linspace(X.min(), X.max(), 31)
    weights = np.exp(-(((queries[:, None] - X) / width) ** 2) / 2)
    weights /= weights.sum(1, keepdims=True)
    return Pooling("gaussian", X, Y, queries, weights @ Y, weights)


FIGURES = {
    "curves": Curves("two", "steps", {"a": (X, Y), "b": (X, -Y)}, (X, Y)),
    "one curve": Curves("one", "x", {"": (np.arange(3), np.array([1.0, math.nan, 2.0]))}),
    "points": Points("words", RNG.normal(size=(7, 2)), list("abcdef") + ["</text>&"]),
    "one place": Points("words", np.zeros((3, 2)), ["a", "b", "c"]),
    "bars": Bars(
        "p", ["fine", "good", "<ill>"], {"a": np.array([0.5, 0.3, 0.2]), "b": np.array([1.0, 0, 0])}
    ),
    "pooling": pooling(0.5),
    "tree": Tree("beams", {("I",): 0.6, ("We",): 0.4, ("We", "are"): 0.3, ("I", "am"): 0.2}, [("We",)]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_svg_and_png_have_the_same_size(name):
    picture = draw(FIGURES[name])
    root = ET.fromstring(picture.svg())
    with Image.open(io.BytesIO(picture.png())) as image:
        assert image.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
        assert len(image.convert("RGB").getcolors(1 << 24)) > 5
    wide, high = float(root.get("width")), float(root.get("height"))
    for e in root.iter():  # nothing is drawn outside
        for x, y in ((e.get("x"), e.get("y")), (e.get("cx"), e.get("cy"))):
            assert x is None or (0 <= float(x) <= wide and 0 <= float(y) <= high)
    assert picture._repr_svg_() == picture.svg()


# Curves


def test_curves_and_dots_are_at_their_numbers():
    x, y = np.array([0.0, 2.0, 3.0, 7.0]), np.array([-1.0, 4.0, 0.5, 2.0])
    figure = Curves("t", "x", {"a": (x, y)}, (x, y))
    (line,) = polylines(figure)
    np.testing.assert_allclose(line, dots(figure), atol=0.01)
    for axis, numbers, length in ((0, x, WIDTH), (1, -y, HEIGHT)):  # linear, down for less
        slope = np.diff(line[:, axis]) / np.diff(numbers)
        np.testing.assert_allclose(slope, slope[0], rtol=1e-3)
        assert 0.5 * length < np.ptp(line[:, axis]) <= length + 0.01
    texts = [e.text for e in elements(figure, "text")]
    assert {"t", "x", "a", "0", "2", "4", "6"} <= set(texts)


def test_a_curve_is_interrupted_where_numbers_are_not_finite():
    y = np.array([1.0, 2.0, math.nan, 3.0, math.nan, 4.0, 5.0, 6.0])
    assert [run.tolist() for run in finite_runs(y)] == [[0, 1], [5, 6, 7]]
    assert [len(line) for line in polylines(Curves("t", "x", {"": (np.arange(8), y)}))] == [2, 3]


def test_tick_labels_have_the_fewest_decimals():
    assert [tick_label(t, [0.0, 0.25]) for t in (-1e-17, 0.25)] == ["0.0", "0.2"]
    assert [tick_label(t, [-0.01, 0.0]) for t in (-0.01, 0.02)] == ["-0.01", "0.02"]
    assert tick_label(1000.0, [0.0, 500.0]) == "1000"


def test_labels_of_a_map_do_not_overlap():
    figure = Points("t", np.zeros((5, 2)), ["one", "two", "three", "four", "five"])
    at = [(float(e.get("x")), float(e.get("y"))) for e in elements(figure, "text")][1:]
    assert len(set(at)) == 5


# Bars and trees


def test_heights_of_bars_are_their_numbers():
    figure = FIGURES["bars"]
    heights = [float(e.get("height")) for e in elements(figure, "rect") if e.get("width") == "20"]
    true = [*figure.groups["a"], *figure.groups["b"]]
    np.testing.assert_allclose(heights, np.array(true) * max(heights) / max(true), atol=1e-3)
    texts = [e.text for e in elements(figure, "text")]
    assert [f"{p:.2f}" for p in figure.groups["a"]] == [t for t in texts if re.fullmatch(r"0\.\d\d", t)][:3]
    assert "<ill>" in texts


def test_a_tree_has_a_line_for_each_text():
    figure = FIGURES["tree"]
    lines = elements(figure, "line")
    widths = [float(e.get("stroke-width")) for e in lines]
    assert widths == [round(0.5 + 6 * p, 2) for p in figure.texts.values()]
    at = {e.text.split()[0]: (float(e.get("x")), float(e.get("y"))) for e in elements(figure, "text")}
    assert at["I"][0] == at["We"][0] < at["are"][0]
    assert at["I"][1] == at["am"][1]  # its only child
    assert [e.get("stroke-opacity") for e in lines] == ["0.25", "0.90", "0.25", "0.25"]


# Scenes beside each other


def test_scenes_are_joined():
    one = Matrix("m", np.eye(3), "abc", "abc").scene()
    two = side_by_side([one, FIGURES["curves"].scene()], "both")
    assert two.width == one.width + FIGURES["curves"].scene().width
    assert len(two.shapes) == len(one.shapes) + len(FIGURES["curves"].scene().shapes)
    below = stack([one, FIGURES["curves"].scene()])
    assert below.height == one.height + FIGURES["curves"].scene().height


# Attention pooling


def test_pooling_is_drawn_with_its_points_and_its_weights():
    figure = pooling(0.5)
    assert len(dots(figure)) == len(X)
    (line,) = polylines(figure)
    assert len(line) == len(figure.queries)
    order = np.argsort(dots(figure)[:, 1], kind="stable")  # what is higher has the larger y
    assert (np.diff(Y[order]) < 0.02).all()
    with Image.open(io.BytesIO(draw(figure).png())) as image:
        assert image.size[0] > 2 * (WIDTH + HEIGHT)
    assert f">{figure.weights.max():.2f}<" in draw(figure).svg()


def test_logarithmic_axes_place_powers_evenly():
    x = np.array([100.0, 1000.0, 10000.0])
    scene = Curves("time", "tokens", {"a": (x, x / 100), "b": (x, x**2 / 1e4)}, log=True).scene()
    lines = [shape for shape in scene.shapes if isinstance(shape, Polyline) and len(shape.points) == 3]
    for line, slope in zip(lines, (1, 2), strict=True):
        (x0, y0), (x1, y1), (x2, y2) = line.points
        assert x1 - x0 == pytest.approx(x2 - x1)
        assert y1 - y0 == pytest.approx(y2 - y1)
        assert (y0 - y2) / HEIGHT == pytest.approx(slope * 2 / 4)  # of four decades
    texts = {shape.words for shape in scene.shapes if isinstance(shape, Text)}
    assert {"100", "1k", "10k", "1", "10"} <= texts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (256, 65536, [100, 1000, 10000, 100000]),
        (30, 40, [20, 50]),
        (3, 3, [2, 5]),
        (1, 10, [1, 2, 5, 10]),
        (0.004, 0.1, [0.002, 0.005, 0.01, 0.02, 0.05, 0.1]),
    ],
)
def test_logarithmic_ticks_enclose_the_numbers(low, high, expected):
    assert log_ticks(low, high) == pytest.approx(expected)


def test_a_bar_that_is_not_a_number_is_not_drawn():
    heights = {"a": np.array([1.0, 0.5]), "b": np.array([0.25, math.nan])}
    texts = [
        shape.words for shape in Bars("speed", ["x", "y"], heights).scene().shapes if isinstance(shape, Text)
    ]
    assert [text for text in texts if "." in text] == ["1.00", "0.50", "0.25"]
