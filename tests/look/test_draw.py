"""From numbers to SVG and PNG: both the same picture, whatever stands in the words."""

import base64
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from looking import noise, reader, seer
from mistakes import mistake
from PIL import Image

import regard
from regard.look import Picture, draw
from regard.look.views import Arcs, Atlas, Maps, Matrix, view

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


def rows_of(*shape):
    """Weights that sum to 1."""
    x = np.random.default_rng(7).random(shape) ** 4
    return x / x.sum(-1, keepdims=True)


def drawn(view):
    return Picture(draw.scene(view))


def opened(picture):
    return np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB"))


def texts(picture):
    return [e.text for e in ET.fromstring(picture.svg()).iter(f"{NS}text")]


ROWS, COLUMNS = ["der", "Fuchs", "springt"], ["the", "quick", "brown", "fox", "jumps"]
VIEWS = {
    "matrix": Matrix("layer 0", rows_of(3, 5), ROWS, COLUMNS),
    "arcs": Arcs("layer 0", rows_of(3, 5), ROWS, COLUMNS),
    "atlas": Atlas("2 layers, 3 heads", rows_of(2, 3, 5, 7)),
    "maps": Maps("a fox", noise(6).permute(1, 2, 0).numpy(), rows_of(2, 9).reshape(2, 3, 3), ["a", "fox"]),
}
every_view = pytest.mark.parametrize("seen", VIEWS.values(), ids=list(VIEWS))


@every_view
def test_both_writers_give_the_same_size(seen):
    picture = drawn(seen)
    root = ET.fromstring(picture.svg())
    sides = [int(root.get(name)) for name in ("width", "height")]
    assert root.get("viewBox") == f"0 0 {sides[0]} {sides[1]}"
    image = Image.open(io.BytesIO(picture.png()))
    assert image.size == tuple(draw.SCALE * side for side in sides)
    assert round(image.info["dpi"][0]) == 96 * draw.SCALE  # so that it is printed as large


@every_view
def test_the_same_view_is_the_same_file(seen):
    assert drawn(seen).svg() == drawn(seen).svg()
    assert drawn(seen).png() == drawn(seen).png()


@every_view
def test_everything_lies_within(seen):
    scene = draw.scene(seen)
    for part in scene.parts:
        if isinstance(part, draw.Rectangle | draw.Image):
            assert part.x >= 0
            assert part.y >= 0
            assert part.x + part.width <= scene.width
            assert part.y + part.height <= scene.height
    ink = (opened(Picture(scene)) != 255).any(-1)
    for edge in (ink[:, :8], ink[:, -8:], ink[:8], ink[-8:]):  # nothing is cut off
        assert not edge.any()


@pytest.mark.parametrize("kind", [Matrix, Arcs])
def test_every_word_is_there(kind):
    assert set(texts(drawn(kind("t", rows_of(3, 5), ROWS, COLUMNS)))) >= {*ROWS, *COLUMNS, "t"}


def test_cells_have_the_colour_of_their_weight():
    seen = VIEWS["matrix"]
    picture = drawn(seen)
    boxes = [e for e in ET.fromstring(picture.svg()).iter(f"{NS}rect") if e.get("class") != "ground"][:15]
    pixels = opened(picture)
    wanted = draw.colours(seen.weights / seen.weights.max()).reshape(15, 3)
    for box, colour in zip(boxes, wanted, strict=True):
        assert box.get("fill") == "#" + bytes(colour.tolist()).hex()
        x, y, w, h = (draw.SCALE * int(box.get(name)) for name in ("x", "y", "width", "height"))
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
    steps = np.array([lightness(c) for c in draw.colours(np.linspace(0, 1, 33))])
    assert (np.diff(steps) < 0).all()
    assert np.ptp(np.diff(steps)) < 1.5
    assert steps[0] > 95
    assert steps[-1] < 16
    assert (draw.colours(np.array([np.nan, -1, 2])) == draw.colours(np.array([0, 0, 1]))).all()


def test_a_patch_that_is_looked_at_is_lit_and_no_other():
    weights = np.zeros((1, 3, 3))
    weights[0, 1, 2] = 1
    grey = np.full((6, 6, 3), 128, np.uint8)
    scene = draw.scene(Maps("t", grey, weights, ["w"]))
    plain, lit = (part for part in scene.parts if isinstance(part, draw.Image))
    assert (plain.pixels == 128).all()
    pixels = opened(Picture(scene))
    side = int(lit.width) * draw.SCALE // 3
    x, y = (round(draw.SCALE * at) for at in (lit.x, lit.y))
    for r in range(3):
        for c in range(3):
            patch = pixels[y + r * side : y + (r + 1) * side, x + c * side : x + (c + 1) * side]
            assert (patch > 128).all() if (r, c) == (1, 2) else (patch < 50).all()


def test_where_a_vision_model_looks_lights_up_there():
    """From the model's own weights to the pixels of the PNG."""
    model, pixels = seer(), noise(6)
    picture = regard.look(model, pixels)
    weights = view(model, pixels).maps[0]
    image = [part for part in picture.scene.parts if isinstance(part, draw.Image)][1].pixels.astype(float)
    side = image.shape[0] // 3
    plain = draw.stretched(pixels.permute(1, 2, 0).numpy(), *image.shape[:2])
    light = (image - 0.3 * plain) / (0.4 * plain + 76.5)  # from 0, not looked at, to 1
    found = light.mean(-1).reshape(3, side, 3, side).mean((1, 3))
    np.testing.assert_allclose(found, weights / weights.max(), atol=0.01)


def test_marks_lie_on_their_patches():
    scene = draw.scene(Maps("t", np.zeros((6, 6, 3), np.uint8), np.ones((1, 3, 3)), ["w"], [5]))
    (mark,) = (part for part in scene.parts if isinstance(part, draw.Rectangle))
    image = [part for part in scene.parts if isinstance(part, draw.Image)][1]
    assert mark.x == image.x + 2 * image.width / 3
    assert mark.y == image.y + image.height / 3
    assert mark.edge in Picture(scene).svg()


def test_images_in_an_svg_are_those_of_the_png():
    picture = drawn(VIEWS["maps"])
    elements = list(ET.fromstring(picture.svg()).iter(f"{NS}image"))
    assert len(elements) == 3
    whole = opened(picture)
    for element in elements:
        head, data = element.get("href").split(",")
        assert head == "data:image/png;base64"
        own = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        x, y = (round(draw.SCALE * float(element.get(name))) for name in ("x", "y"))
        assert (whole[y : y + own.shape[0], x : x + own.shape[1]] == own).all()


def test_hostile_words_do_no_harm():
    many = len(HOSTILE)
    for seen in (
        Matrix("t", rows_of(many, many), HOSTILE, HOSTILE),
        Arcs("t", rows_of(many, many), HOSTILE, HOSTILE),
        Maps(
            HOSTILE[0] + HOSTILE[3],
            np.zeros((6, 6, 3), np.uint8),
            rows_of(many, 9).reshape(-1, 3, 3),
            HOSTILE,
        ),
    ):
        picture = drawn(seen)
        svg = picture.svg()
        root = ET.fromstring(svg)  # well-formed
        assert {e.tag.removeprefix(NS) for e in root.iter()} <= {
            *("svg", "title", "style", "rect", "text", "line", "image")
        }
        said = [e.text for e in root.iter(f"{NS}text")]
        assert all(said)
        assert all(len(words) <= 100 for words in said)
        assert any("…" in words for words in said)
        assert not any(c in "".join(said) for c in "\x00\x1b\u202e\n\t")
        assert picture.scene.width < 2000
        assert len(picture.png()) > 1000
        svg.encode()


def test_short_words_are_whole_and_spaces_are_seen():
    assert [draw.label(word) for word in ("fox", " fox", "", " ", "a b")] == ["fox", "fox", "␣", "␣", "a b"]
    assert draw.label("x" * 20) == "x" * 20
    assert draw.label("x" * 21) == "x" * 19 + "…"
    assert draw.label("狐" * 11) == "狐" * 9 + "…"
    assert draw.label("שלום") == "שלום"


def test_a_long_text_keeps_its_peaks():
    weights = np.zeros((1301, 1301))
    weights[1234, 567] = 1
    scene = draw.scene(Matrix("t", weights, ["a"] * 1301, ["b"] * 1301))
    assert scene.width < 1000
    (image,) = (part for part in scene.parts if isinstance(part, draw.Image))
    dark = np.argwhere((image.pixels == draw.colours(np.ones(()))).all(-1))
    np.testing.assert_allclose(dark.mean(0) / len(image.pixels), [1234 / 1301, 567 / 1301], atol=0.003)
    assert len(scene.parts) < 400  # words that would touch are left out
    flat = np.ones((700, 700)) / 700
    lines = [
        p for p in draw.scene(Arcs("t", flat, ["a"] * 700, ["b"] * 700)).parts if isinstance(p, draw.Line)
    ]
    assert not lines  # all are faint


def test_the_wider_a_line_the_more():
    seen = VIEWS["arcs"]
    lines = [part for part in draw.scene(seen).parts if isinstance(part, draw.Line)]
    assert len(lines) == (seen.weights >= draw.FAINT).sum()
    widths = sorted((0.5 + 5 * w for w in seen.weights.ravel() if w >= draw.FAINT), reverse=True)
    np.testing.assert_allclose([line.width for line in lines], widths)
    assert len(list(ET.fromstring(drawn(seen).svg()).iter(f"{NS}line"))) == len(lines)


def test_several_inputs_stand_below_each_other():
    model = reader("write", "gpt")
    texts_of = ["the quick fox", "the lazy dog jumps"]
    both, *each = (regard.look(model, some) for some in (texts_of, *texts_of))
    assert both.scene.height == sum(one.scene.height for one in each)
    one, whole = opened(each[1]), opened(both)
    assert (whole[-one.shape[0] :, : one.shape[1]] == one).all()


def test_saving(tmp_path):
    picture = regard.look(reader("translate", "transformer"), "the fox", answer="der Fuchs")
    for name in ("a.svg", "a.png", "b.SVG"):
        picture.save(tmp_path / name)
    assert (
        (tmp_path / "a.svg").read_text("utf-8")
        == picture._repr_svg_()
        == (tmp_path / "b.SVG").read_text("utf-8")
    )
    assert (tmp_path / "a.png").read_bytes() == picture._repr_png_()
    for name in ("a.pdf", "a", "a.html"):
        mistake(lambda name=name: picture.save(tmp_path / name), name, ".svg", ".png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.SVG"]


def test_what_is_half_written_goes_away(tmp_path, monkeypatch):
    picture = drawn(VIEWS["matrix"])
    picture.save(tmp_path / "a.svg")
    before = (tmp_path / "a.svg").read_bytes()

    def full(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("regard.checkpoint.flush", full)
    with pytest.raises(OSError, match="No space left"):
        drawn(VIEWS["arcs"]).save(tmp_path / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    assert (tmp_path / "a.svg").read_bytes() == before
