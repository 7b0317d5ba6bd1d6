import math
import re
from xml.etree import ElementTree

import pytest

from regard.draw.axes import ticks
from regard.draw.curve import MAX_POINTS, curve_scene, curve_svg
from regard.draw.picture import Picture
from regard.draw.scene import SERIES

TRAIN, VALID = "blue", "orange"


def elements(svg, tag, class_name=None):
    elements = ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}")
    return [e for e in elements if class_name is None or e.get("class") == class_name]


def polylines(svg, colour):
    """The points of each line of a colour as (x, y) pairs."""
    return [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in elements(svg, "polyline", f"stroke-{colour}")
    ]


def pixels(svg, colour):
    """The points of a curve, whose other line is in the legend."""
    curve, _ = polylines(svg, colour)
    return curve


def dots(svg, colour):
    return elements(svg, "circle", f"fill-{colour}")


def texts(svg):
    return [e.text for e in elements(svg, "text")]


def reader(svg, axis):
    """Read values from the picture by the labels of an axis."""
    anchor = {"x": "middle", "y": "end"}[axis]
    labels = [e for e in elements(svg, "text", "pale") if e.get("text-anchor") == anchor]
    labels = [(float(e.get(axis)), e.text.replace(",", "")) for e in labels]
    marks = [(pixel, float(text)) for pixel, text in labels if re.fullmatch(r"-?[\d.]+", text)]
    (pixel0, value0), (pixel1, value1) = marks[0], marks[-1]
    return lambda pixel: value0 + (pixel - pixel0) * (value1 - value0) / (pixel1 - pixel0)


def read(svg, colour):
    step, loss = reader(svg, "x"), reader(svg, "y")
    return [(step(x), loss(y)) for x, y in pixels(svg, colour)]


ROWS = [{"step": s, "loss": 1.3 + 3 * math.exp(-s / 300)} for s in range(1, 1102, 11)]
ROWS += [{"step": s, "valid_loss": 1.7 + ((s - 700) / 500) ** 2} for s in range(100, 1101, 100)]


def test_points_are_where_the_axes_say():
    svg = curve_svg(ROWS)
    expected = [(row["step"], row["loss"]) for row in ROWS if "loss" in row]
    assert read(svg, TRAIN) == [pytest.approx(point, rel=2e-3, abs=0.05) for point in expected]
    expected = [(row["step"], row["valid_loss"]) for row in ROWS if "valid_loss" in row]
    assert [loss for _, loss in read(svg, VALID)] == pytest.approx([loss for _, loss in expected], abs=1e-3)
    assert len(dots(svg, VALID)) == len(expected)


def test_best_is_the_given_row():
    svg = curve_svg(ROWS, best={"step": 200, "valid_loss": 2.7, "valid_f1": 0.9})
    assert "best 2.7 at step 200" in texts(svg)


def test_best_is_labelled_at_its_point():
    svg = curve_svg(ROWS)
    assert texts(svg).count("best 1.7 at step 700") == 2  # with its halo
    (ring,) = elements(svg, "circle", "fill-ground stroke-orange")
    assert (float(ring.get("cx")), float(ring.get("cy"))) in pixels(svg, VALID)
    assert reader(svg, "x")(float(ring.get("cx"))) == pytest.approx(700, abs=0.1)


def test_the_curves_fill_the_frame():
    svg = curve_svg(ROWS)
    frame, lowest = polylines(svg, "axis")[-1], polylines(svg, "grid")[0]
    assert pixels(svg, TRAIN)[-1][0] == frame[1][0]  # the run ends at the right edge
    assert lowest == frame  # the lowest tick is the axis


def test_nothing_is_outside_the_picture():
    root = ElementTree.fromstring(curve_svg(ROWS))
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter():
        for name, limit in [("x", width), ("cx", width), ("y", height), ("cy", height)]:
            assert 0 <= float(element.get(name, 0)) <= limit
        for point in element.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None])
def test_values_that_are_not_finite_are_skipped(value):
    broken = [{"step": 5, "loss": value}, {"step": 5, "valid_loss": value}]
    assert curve_svg(ROWS + broken) == curve_svg(ROWS)
    assert curve_svg(broken) == curve_svg([])


@pytest.mark.parametrize("value", ["x", [], {}, 10**400, 1e308, -1e308])
def test_what_was_edited_into_a_log_is_skipped(value):
    """It ended a run, at its first curve."""
    rows = [{"step": n, "loss": value, "valid_loss": value, "grad_norm": value} for n in range(1500)]
    good = [{"step": n, "loss": 1.0 + n} for n in range(9)]
    assert curve_svg(rows + good, "a") == curve_svg(good, "a")


def test_nothing_and_one_point():
    assert "nothing logged yet" in curve_svg([])
    svg = curve_svg([{"step": 37, "loss": 2.25}])
    (dot,) = dots(svg, TRAIN)
    assert reader(svg, "x")(float(dot.get("cx"))) == pytest.approx(37, abs=0.01)
    assert reader(svg, "y")(float(dot.get("cy"))) == pytest.approx(2.25, abs=0.001)
    for row in [{"step": 0, "loss": 0.0}, {"step": 0, "valid_loss": -3.0}, {"step": 1, "loss": 1e-9}]:
        assert "nan" not in curve_svg([row])


def test_long_runs_are_thinned_by_means():
    rows = [{"step": s, "loss": 2.0 if s % 2 else 4.0} for s in range(2 * MAX_POINTS)]
    svg = curve_svg([*rows, {"step": 9, "valid_loss": 5.0}])
    assert len(pixels(svg, TRAIN)) == MAX_POINTS
    assert {round(loss, 3) for _, loss in read(svg, TRAIN)} == {3.0}
    assert len(pixels(curve_svg(ROWS * 53), TRAIN)) <= MAX_POINTS


def test_title_is_escaped_and_ends_before_the_legend():
    svg = curve_svg(ROWS, title='<script>"&\x00\ud800')
    assert texts(svg)[0] == '<script>"&  '
    assert "<script" not in svg
    assert len(texts(curve_svg(ROWS, title="a" * 300))[0]) <= 50


def test_dark_mode_recolors_every_color():
    svg = curve_svg(ROWS)
    (style,) = (e.text for e in elements(svg, "style"))
    rule = re.compile(r"([\w.-]+) \{[^{}]*?(?:fill|stroke): (#\w{6})")
    light, dark = {}, {}
    for n, part in enumerate(
        re.split(r"@media \(prefers-color-scheme: dark\) \{(.*?\n)  \}", style, flags=re.DOTALL)
    ):
        (dark if n % 2 else light).update(rule.findall(part))
    assert len(light) > 8
    assert [name for name, colour in light.items() if dark.get(name, colour) == colour] == []
    classes = {c for e in ElementTree.fromstring(svg).iter() for c in e.get("class", "").split()}
    assert {f".{name}" for name in classes} <= set(light)
    shapes = ElementTree.fromstring(svg).iter()
    assert not any(e.get(name, "none") != "none" for e in shapes for name in ("fill", "stroke"))


def test_a_curve_can_be_a_png():
    assert Picture(curve_scene(ROWS)).png().startswith(b"\x89PNG")


@pytest.mark.parametrize(("low", "high", "about", "expected"), [
    (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    (1.3, 4.1, 6, [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]),
    (0, 2000, 7, [0, 500, 1000, 1500, 2000]),
    (-3, 12, 5, [-5, 0, 5, 10, 15]),
    (2.2, 2.2, 5, [1.9, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5]),  # room of a tenth on both sides
])  # fmt: skip
def test_ticks_are_round_numbers_around_the_values(low, high, about, expected):
    result = ticks(low, high, about)
    assert result[0] <= low
    assert result[-1] >= high
    assert result == pytest.approx(expected)


def test_steps_have_whole_ticks():
    assert ticks(0, 3, about=7, integers=True) == [0, 1, 2, 3]


def test_the_norm_of_the_gradient_has_a_panel_of_its_own():
    """A spike is visible among thousands of steps; the axis is logarithmic; infinite norms are left out."""
    losses = [{"step": s, "loss": 1.0} for s in range(1, 5 * MAX_POINTS)]
    rows = [row | {"grad_norm": 1e4 if row["step"] == 1777 else 0.1} for row in losses]
    rows += [{"step": 4000, "loss": 1.0, "grad_norm": norm} for norm in (math.nan, math.inf, 0.0, None)]
    svg = curve_svg(rows)
    (line,) = [e.get("points").split() for e in elements(svg, "polyline") if e.get("stroke") == SERIES[2]]
    points = [tuple(map(float, point.split(","))) for point in line]
    assert len(points) <= MAX_POINTS
    height, rest = sorted({y for _, y in points})  # all but one are the same
    (peak,) = (x for x, y in points if y == height)
    assert reader(curve_svg(losses), "x")(peak) == pytest.approx(1777, abs=20)
    grid = {e.text: float(e.get("y")) for e in elements(svg, "text", "pale")}
    assert rest == grid["0.1"]
    assert height - grid["1000"] == pytest.approx((grid["1000"] - grid["10"]) / 2)  # 10000, on a log axis
    assert "gradient norm, before clipping" in grid
    assert curve_scene(losses).height < curve_scene(rows).height
