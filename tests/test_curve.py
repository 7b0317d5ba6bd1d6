import math
import re
from xml.etree import ElementTree

import pytest

from regard.curve import MOST_POINTS, STYLE, curve_svg, ticks


def of_class(svg, name):
    return [e for e in ElementTree.fromstring(svg).iter() if e.get("class") == name]


def pixels(svg, kind):
    """The points of a curve as (x, y) pairs."""
    (line,) = [e for e in of_class(svg, kind) if e.get("points")]
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


def reader(svg, tick, axis):
    """Reads values off the picture as a person would: by the labels of the axis."""
    marks = [(float(e.get(axis)), float(e.text.replace(",", ""))) for e in of_class(svg, tick)]
    (pixel0, value0), (pixel1, value1) = marks[0], marks[-1]
    shift = 4.5 if axis == "y" else 0  # the text stands on its baseline, below the line that it names
    return lambda pixel: value0 + (pixel + shift - pixel0) * (value1 - value0) / (pixel1 - pixel0)


def read(svg, kind):
    step, loss = reader(svg, "step-tick", "x"), reader(svg, "loss-tick", "y")
    return [(step(x), loss(y)) for x, y in pixels(svg, kind)]


ROWS = [{"step": s, "loss": 1.3 + 3 * math.exp(-s / 300)} for s in range(1, 1102, 11)]
ROWS += [{"step": s, "valid_loss": 1.7 + ((s - 700) / 500) ** 2} for s in range(100, 1101, 100)]


def test_points_stand_where_the_axes_say():
    svg = curve_svg(ROWS)
    expected = [(row["step"], row["loss"]) for row in ROWS if "loss" in row]
    assert read(svg, "train") == [pytest.approx(point, rel=2e-3, abs=0.05) for point in expected]
    expected = [(row["step"], row["valid_loss"]) for row in ROWS if "valid_loss" in row]
    assert [loss for _, loss in read(svg, "valid")] == pytest.approx([loss for _, loss in expected], abs=1e-3)
    assert len(of_class(svg, "valid-dot")) == len(expected)


def test_best_is_the_one_that_was_kept():
    (label,) = of_class(curve_svg(ROWS, kept={"step": 200, "valid_loss": 2.7, "valid_f1": 0.9}), "label")
    assert label.text == "best 2.7 at step 200"


def test_best_is_labelled_at_its_point():
    svg = curve_svg(ROWS)
    (label,) = of_class(svg, "label")
    assert label.text == "best 1.7 at step 700"
    (ring,) = of_class(svg, "best")
    assert (float(ring.get("cx")), float(ring.get("cy"))) in pixels(svg, "valid")
    assert reader(svg, "step-tick", "x")(float(ring.get("cx"))) == pytest.approx(700, abs=0.1)


def test_the_curves_fill_the_frame():
    svg = curve_svg(ROWS)
    frame, lowest = of_class(svg, "axis")[-1], of_class(svg, "grid")[0]
    assert pixels(svg, "train")[-1][0] == float(frame.get("x2"))  # the run ends at the right edge
    assert lowest.get("y1") == frame.get("y1")  # the lowest tick is the axis


def test_everything_stays_inside_the_picture():
    root = ElementTree.fromstring(curve_svg(ROWS))
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter():
        for name, limit in [("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height)]:
            assert 0 <= float(element.get(name, 0)) <= limit


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None])
def test_values_that_are_not_numbers_are_skipped(value):
    broken = [{"step": 5, "loss": value}, {"step": 5, "valid_loss": value}]
    assert curve_svg(ROWS + broken) == curve_svg(ROWS)
    assert curve_svg(broken) == curve_svg([])


def test_nothing_and_one_point():
    assert "nothing logged yet" in curve_svg([])
    svg = curve_svg([{"step": 37, "loss": 2.25}])
    (dot,) = of_class(svg, "train-dot")
    assert reader(svg, "step-tick", "x")(float(dot.get("cx"))) == pytest.approx(37, abs=0.01)
    assert reader(svg, "loss-tick", "y")(float(dot.get("cy"))) == pytest.approx(2.25, abs=0.001)
    for row in [{"step": 0, "loss": 0.0}, {"step": 0, "valid_loss": -3.0}, {"step": 1, "loss": 1e-9}]:
        assert "nan" not in curve_svg([row])


def test_long_runs_are_thinned_by_means():
    rows = [{"step": s, "loss": 2.0 if s % 2 else 4.0} for s in range(2 * MOST_POINTS)]
    svg = curve_svg([*rows, {"step": 9, "valid_loss": 5.0}])
    assert len(pixels(svg, "train")) == MOST_POINTS
    assert {round(loss, 3) for _, loss in read(svg, "train")} == {3.0}
    assert len(pixels(curve_svg(ROWS * 53), "train")) <= MOST_POINTS


def test_title_is_escaped_and_kept_out_of_the_legend():
    svg = curve_svg(ROWS, title='<script>"&\x00\ud800')
    (title,) = of_class(svg, "title")
    assert title.text == '<script>"&  '
    assert "<script" not in svg
    (title,) = of_class(curve_svg(ROWS, title="a" * 300), "title")
    assert len(title.text) <= 50


def test_dark_mode_recolors_every_color():
    light, dark = STYLE.split("prefers-color-scheme: dark")
    colored = re.findall(r"(\.[\w-]+)[^{}]*\{[^}]*#", light)
    assert len(colored) > 8
    assert [name for name in colored if f"{name} " not in dark and f"{name}," not in dark] == []


@pytest.mark.parametrize(("low", "high", "about", "expected"), [
    (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    (1.3, 4.1, 6, [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
    (0, 2000, 7, [0, 500, 1000, 1500, 2000]),
    (-3, 12, 5, [-5, 0, 5, 10, 15]),
    (2.2, 2.2, 5, [1.9, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5]),  # room of a tenth on both sides
])  # fmt: skip
def test_ticks_are_round_and_enclose(low, high, about, expected):
    found = ticks(low, high, about)
    assert found[0] <= low
    assert found[-1] >= high
    assert found == pytest.approx(expected)


def test_steps_have_whole_ticks():
    assert ticks(0, 3, about=7, whole=True) == [0, 1, 2, 3]
