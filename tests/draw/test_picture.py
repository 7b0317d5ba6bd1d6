"""Figures as SVG and PNG show the same, for any labels."""

import base64
import io
import xml.etree.ElementTree as ET

import numpy as np
import PIL.Image
import pytest

from helpers.errors import user_error
from helpers.looking import noise
from regard.draw.arcs import FAINT, Arcs
from regard.draw.diagram import Box, Diagram
from regard.draw.heat import Atlas, Matrix, heat_colours
from regard.draw.maps import Maps
from regard.draw.picture import Picture, draw
from regard.draw.plots import Bars, Curves
from regard.draw.scene import SCALE, Circle, Image, Line, Polyline, Rectangle, Scene, Text, make_label
from regard.draw.tree import Tree
from regard.draw.word_map import Points, WordMap

NS = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "</text><script>alert(1)</script>",
    "&amp;\"'<!--",
    "]]>",
    "\x00\x1b[31m\x7f\ud800\ufffe",
    "\u202eright to left\u202c",
    "שלום",
    "مرحبا",
    "🦊👩‍👩‍👧",
    "e\u0301" * 40,
    "狐" * 10_000,
    "a" * 10_000,
    "",
    "   ",
    "\n\t",
]


def random_weights(*shape):
    """Rows that sum to 1."""
    x = np.random.default_rng(7).random(shape) ** 4
    return x / x.sum(-1, keepdims=True)


def decode_png(picture):
    return np.asarray(PIL.Image.open(io.BytesIO(picture.png())).convert("RGB"))


def texts(picture):
    return [e.text for e in ET.fromstring(picture.svg()).iter(f"{NS}text")]


ROWS, COLUMNS = ["der", "Fuchs", "springt"], ["the", "quick", "brown", "fox", "jumps"]
FIGURES = {
    "matrix": Matrix("layer 0", random_weights(3, 5), ROWS, COLUMNS),
    "arcs": Arcs("layer 0", random_weights(3, 5), ROWS, COLUMNS),
    "atlas": Atlas("2 layers, 3 heads", random_weights(2, 3, 5, 7)),
    "maps": Maps(
        "a fox", noise(6).permute(1, 2, 0).numpy(), random_weights(2, 9).reshape(2, 3, 3), ["a", "fox"]
    ),
    "diagram": Diagram(
        "a model",
        [
            (
                "reads",
                [
                    Box("a", "Embedding", [3, 8]),
                    Box("b", "Attention", [3, 8], "2 heads", "block 0", residual=True),
                ],
            ),
            ("writes", [Box("c", "Attention", [5, 8], "2 heads", "block 0", source="b")]),
        ],
    ),
}
every_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=list(FIGURES))


@every_figure
def test_both_writers_give_the_same_size(figure):
    picture = draw(figure)
    root = ET.fromstring(picture.svg())
    sides = [int(root.get(name)) for name in ("width", "height")]
    assert root.get("viewBox") == f"0 0 {sides[0]} {sides[1]}"
    image = PIL.Image.open(io.BytesIO(picture.png()))
    assert image.size == tuple(SCALE * side for side in sides)
    assert round(image.info["dpi"][0]) == 96 * SCALE  # so that it is printed as large


@every_figure
def test_the_same_figure_gives_the_same_file(figure):
    assert draw(figure).svg() == draw(figure).svg()
    assert draw(figure).png() == draw(figure).png()


@every_figure
def test_nothing_is_outside_the_picture(figure):
    scene = figure.scene()
    for part in scene.shapes:
        if isinstance(part, Rectangle | Image):
            assert part.x >= 0
            assert part.y >= 0
            assert part.x + part.width <= scene.width
            assert part.y + part.height <= scene.height
    ink = (decode_png(Picture(scene)) != 255).any(-1)
    for edge in (ink[:, :8], ink[:, -8:], ink[:8], ink[-8:]):  # nothing is cut off
        assert not edge.any()


@pytest.mark.parametrize("kind", [Matrix, Arcs])
def test_every_label_is_written(kind):
    assert set(texts(draw(kind("t", random_weights(3, 5), ROWS, COLUMNS)))) >= {*ROWS, *COLUMNS, "t"}


def test_cells_have_the_colours_of_their_weights():
    figure = FIGURES["matrix"]
    picture = draw(figure)
    boxes = [e for e in ET.fromstring(picture.svg()).iter(f"{NS}rect") if e.get("class") != "ground"][:15]
    pixels = decode_png(picture)
    expected = heat_colours(figure.weights / figure.weights.max()).reshape(15, 3)
    for box, colour in zip(boxes, expected, strict=True):
        assert box.get("fill") == "#" + bytes(colour.tolist()).hex()
        x, y, w, h = (SCALE * int(box.get(name)) for name in ("x", "y", "width", "height"))
        assert (pixels[y : y + h, x : x + w] == colour).all()
    x, y = zip(*[(float(box.get("x")), float(box.get("y"))) for box in boxes], strict=True)
    assert len(set(x)) == 5  # columns
    assert len(set(y)) == 3


def lightness(colour):
    """CIE L* of an sRGB colour."""
    c = np.array(colour) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16


def test_colours_darken_evenly():
    steps = np.array([lightness(c) for c in heat_colours(np.linspace(0, 1, 33))])
    assert (np.diff(steps) < 0).all()
    assert np.ptp(np.diff(steps)) < 1.5
    assert steps[0] > 95
    assert steps[-1] < 16
    assert (heat_colours(np.array([np.nan, -1, 2])) == heat_colours(np.array([0, 0, 1]))).all()


def test_only_the_attended_region_is_bright():
    weights = np.zeros((1, 3, 3))
    weights[0, 1, 2] = 1
    grey = np.full((6, 6, 3), 128, np.uint8)
    scene = Maps("t", grey, weights, ["w"]).scene()
    plain, lit = (part for part in scene.shapes if isinstance(part, Image))
    assert (plain.pixels == 128).all()
    pixels = decode_png(Picture(scene))
    side = int(lit.width) * SCALE // 3
    x, y = (round(SCALE * at) for at in (lit.x, lit.y))
    for r in range(3):
        for c in range(3):
            patch = pixels[y + r * side : y + (r + 1) * side, x + c * side : x + (c + 1) * side]
            assert (patch > 128).all() if (r, c) == (1, 2) else (patch < 50).all()


def test_marks_frame_their_regions():
    scene = Maps("t", np.zeros((6, 6, 3), np.uint8), np.ones((1, 3, 3)), ["w"], [5]).scene()
    (mark,) = (part for part in scene.shapes if isinstance(part, Rectangle))
    image = [part for part in scene.shapes if isinstance(part, Image)][1]
    assert mark.x == image.x + 2 * image.width / 3
    assert mark.y == image.y + image.height / 3
    assert mark.edge in Picture(scene).svg()


def test_svg_and_png_have_the_same_images():
    picture = draw(FIGURES["maps"])
    elements = list(ET.fromstring(picture.svg()).iter(f"{NS}image"))
    assert len(elements) == 3
    pixels = decode_png(picture)
    for element in elements:
        head, data = element.get("href").split(",")
        assert head == "data:image/png;base64"
        own = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(data))))
        x, y = (round(SCALE * float(element.get(name))) for name in ("x", "y"))
        assert (pixels[y : y + own.shape[0], x : x + own.shape[1]] == own).all()


def test_hostile_labels_are_escaped():
    many = len(HOSTILE)
    for figure in (
        Matrix("t", random_weights(many, many), HOSTILE, HOSTILE),
        Arcs("t", random_weights(many, many), HOSTILE, HOSTILE),
        Maps(
            HOSTILE[0] + HOSTILE[3],
            np.zeros((6, 6, 3), np.uint8),
            random_weights(many, 9).reshape(-1, 3, 3),
            HOSTILE,
        ),
    ):
        picture = draw(figure)
        svg = picture.svg()
        root = ET.fromstring(svg)  # well-formed
        assert {e.tag.removeprefix(NS) for e in root.iter()} <= {
            *("svg", "title", "style", "rect", "text", "line", "image")
        }
        words = [e.text for e in root.iter(f"{NS}text")]
        assert all(words)
        assert all(len(word) <= 100 for word in words)
        assert any("…" in word for word in words)
        assert not any(c in "".join(words) for c in "\x00\x1b\u202e\n\t")
        assert picture.scene.width < 2000
        assert len(picture.png()) > 1000
        svg.encode()


def test_labels_show_spaces_and_are_shortened():
    assert [make_label(word) for word in ("fox", " fox", "", " ", "a b")] == ["fox", "fox", "␣", "␣", "a b"]
    assert make_label("x" * 20) == "x" * 20
    assert make_label("x" * 21) == "x" * 19 + "…"
    assert make_label("狐" * 11) == "狐" * 9 + "…"
    assert make_label("שלום") == "שלום"


def test_a_large_matrix_keeps_its_peaks():
    weights = np.zeros((1301, 1301))
    weights[1234, 567] = 1
    scene = Matrix("t", weights, ["a"] * 1301, ["b"] * 1301).scene()
    assert scene.width < 1000
    (image,) = (part for part in scene.shapes if isinstance(part, Image))
    dark = np.argwhere((image.pixels == heat_colours(np.ones(()))).all(-1))
    np.testing.assert_allclose(dark.mean(0) / len(image.pixels), [1234 / 1301, 567 / 1301], atol=0.003)
    assert len(scene.shapes) < 400  # words that would touch are left out
    flat = np.ones((700, 700)) / 700
    lines = [p for p in Arcs("t", flat, ["a"] * 700, ["b"] * 700).scene().shapes if isinstance(p, Line)]
    assert not lines  # all are faint


def test_the_width_of_a_line_shows_the_weight():
    figure = FIGURES["arcs"]
    lines = [part for part in figure.scene().shapes if isinstance(part, Line)]
    assert len(lines) == (figure.weights >= FAINT).sum()
    widths = sorted((0.5 + 5 * w for w in figure.weights.ravel() if w >= FAINT), reverse=True)
    np.testing.assert_allclose([line.width for line in lines], widths)
    assert len(list(ET.fromstring(draw(figure).svg()).iter(f"{NS}line"))) == len(lines)


def test_saving(tmp_path):
    picture = draw(FIGURES["matrix"])
    for name in ("a.svg", "a.png", "b.SVG"):
        picture.save(tmp_path / name)
    assert (
        (tmp_path / "a.svg").read_text("utf-8")
        == picture._repr_svg_()
        == (tmp_path / "b.SVG").read_text("utf-8")
    )
    assert (tmp_path / "a.png").read_bytes() == picture._repr_png_()
    for name in ("a.pdf", "a", "a.html"):
        user_error(lambda name=name: picture.save(tmp_path / name), name, ".svg", ".png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.SVG"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    picture = draw(FIGURES["matrix"])
    picture.save(tmp_path / "a.svg")
    before = (tmp_path / "a.svg").read_bytes()

    def full(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("regard.files.atomic.flush", full)
    with pytest.raises(OSError, match="No space left"):
        draw(FIGURES["arcs"]).save(tmp_path / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    assert (tmp_path / "a.svg").read_bytes() == before


# Colours and text of both writers


def pixel(picture, x, y):
    return tuple(decode_png(picture)[round(SCALE * y), round(SCALE * x)].tolist())


def test_named_colours_are_for_light_and_dark_backgrounds():
    shapes = [
        Polyline(((10, 10), (90, 10)), "blue", 6),
        Circle(30, 50, 9, "ground", "orange"),
        Rectangle(60, 40, 20, 20, "grid"),
    ]
    picture = Picture(Scene(100, 80, "t", shapes))
    light, dark = picture.svg().split("</style>")[0].rsplit("prefers-color-scheme: dark", 1)
    used = {"fill-ground", "fill-grid", "stroke-blue", "stroke-orange"}
    for text in (light, dark):
        assert {name for name in used if f".{name} {{" in text} == used
    classes = [e.get("class", "") for e in ET.fromstring(picture.svg()).iter()]
    assert used <= set(" ".join(classes).split())
    assert pixel(picture, 50, 10) == (0x00, 0x72, 0xB2)
    assert pixel(picture, 30, 50) == (255, 255, 255)
    assert pixel(picture, 30, 41) == (0xD5, 0x5E, 0x00)
    assert pixel(picture, 70, 50) == (0xE4, 0xE8, 0xEC)
    plain = Picture(Scene(100, 80, "t", [Rectangle(60, 40, 20, 20, "#112233")])).svg()
    assert "fill-" not in plain


def test_a_halo_covers_lines_around_text():
    line = Polyline(((0, 20), (100, 20)), "blue", 40)
    with_halo, without = (Picture(Scene(100, 40, "t", [line, Text(30, 20, "H", 20, halo=h)])) for h in (1, 0))
    white = [(decode_png(picture) > 250).all(-1).sum() for picture in (with_halo, without)]
    assert white[0] > white[1] + 100
    assert len(list(ET.fromstring(with_halo.svg()).iter(f"{NS}text"))) == 2


def test_bold_text_has_more_ink():
    ink = [
        (decode_png(Picture(Scene(90, 40, "t", [Text(9, 20, "word", bold=b)]))) < 200).sum() for b in (1, 0)
    ]
    assert ink[0] > 1.2 * ink[1]


@pytest.mark.parametrize(
    "figure",
    [
        Curves("\x1b", "\x00", {"\x07": (np.arange(3), np.arange(3))}),
        Bars("\x1b", ["\x00"], {"\x07": np.ones(1), "b": np.ones(1)}),
        Points("\x1b", np.zeros((1, 2)), ["\x00"]),
        WordMap(["\x00a"], np.zeros((1, 2))),
        Tree("\x1b", {("\x00",): 1.0}, []),
    ],
    ids=lambda figure: type(figure).__name__,
)
def test_control_characters_never_reach_the_svg(figure):
    svg = draw(figure).svg()
    ET.fromstring(svg)
    assert not any(c in svg for c in "\x00\x07\x1b")
