"""What stands in the scene has room: names of rows, fields, and the way back to the whole model."""

import itertools

import pytest

from helpers import looking
from helpers.browsing import WORDS
from helpers.looking import captioner, noise, reader
from helpers.serving import serve_session
from regard.viewer.session import Session

NAMES_OF_ROWS = """() => {
  const layer = document.querySelector(".layer.head");
  const place = (one) => one.getBoundingClientRect();
  const places = (selector) => [...layer.querySelectorAll(selector)].map(place);
  const [words, images] = [places(".caption.end bdi"), places("canvas.pixels")];
  const { left } = layer.getBoundingClientRect();
  const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;
  const apart = (a, b) => beside(a, b) || a.bottom <= b.top || b.bottom <= a.top;
  return { count: words.length, clear: words.every((word) =>
    word.left >= left && images.every((image) => apart(word, image))) };
}"""


LONG = " ".join((WORDS.split() * 5)[:21])
SIDES = {  # one has names for its rows, the other has too many, or patches of a picture
    "both": lambda: Session(reader("translate", "transformer"), LONG, LONG),
    "short": lambda: Session(reader("translate", "transformer"), LONG, "the fox jumps"),
    "patches": lambda: Session(captioner(size=32), noise(32), "the quick brown fox"),
}


@pytest.mark.parametrize("kind", SIDES)
def test_names_of_rows_stand_clear_in_a_head(tab, kind):
    """Also where only one of the two sides has room for them."""
    with serve_session(SIDES[kind]()) as server:
        it = tab(server.url, "#view=look&depth=head")
        for width, height in ((1440, 900), (1440, 640), (1440, 520), (1024, 640), (390, 844)):
            it.page.set_viewport_size({"width": width, "height": height})
            it.turn("#view=look")
            it.turn("#view=look&depth=head")
            it.page.wait_for_selector(".layer.head:only-child canvas.pixels")
            rows = it.page.evaluate(NAMES_OF_ROWS)
            assert rows["clear"], (width, height)
            assert rows["count"] or kind == "both" or height < 900


def test_a_field_of_one_line_shows_one_line(tab):
    """A long text goes on to its right, where one can scroll, instead of in half a line below."""
    it = tab("gpt")
    it.page.set_viewport_size({"width": 390, "height": 844})
    it.page.fill("#input", " ".join([WORDS] * 4))
    high, room, wide, width = it.page.eval_on_selector(
        "#input", "e => [e.scrollHeight, e.clientHeight, e.scrollWidth, e.clientWidth]"
    )
    assert high <= room
    assert wide > width


def test_crumbs_name_what_there_is(tab):
    """No product of queries and keys in an attention that adds them; and no name twice."""
    it = tab("gru", "#view=look&depth=number")
    names = it.page.eval_on_selector_all(".crumbs li", "all => all.map((one) => one.textContent)")
    assert len(names) == len(set(names)) == 4
    assert not [name for name in names if "Q" in name]


@pytest.mark.parametrize("kind", ["transformer", "vit"])
def test_no_title_of_a_part_is_cut_off(tab, kind):
    it = tab(kind)
    it.page.set_viewport_size({"width": 1440, "height": 900})
    it.turn("#view=look")
    it.page.wait_for_selector(".layer.model:only-child .slab")
    titles = it.page.eval_on_selector_all(
        ".layer > .slab > span", "all => all.map((e) => [e.textContent, e.scrollHeight, e.clientHeight])"
    )
    assert len(titles) > 5
    assert not [title for title, full, room in titles if full > room]


CUT = """() => {
  const strip = document.getElementById("strip");
  const { top, bottom } = strip.getBoundingClientRect();
  const words = [...strip.querySelectorAll("bdi")].map((e) => e.getBoundingClientRect());
  const cut = words.filter((word) => (word.top < top) !== (word.bottom <= top + 1)
    || (word.bottom > bottom) !== (word.top >= bottom - 1));
  return { cut: cut.length, hidden: words.filter((word) => word.bottom <= top + 1).length };
}"""


@pytest.mark.parametrize("width", [1024, 2560])
def test_no_line_of_a_long_text_is_cut(tab, width, monkeypatch):
    """It is scrolled to the selected token: by whole lines."""
    monkeypatch.setattr(looking, "CONTEXT", 200)
    model = reader("write", "gpt", depth=1, context=200)
    with serve_session(Session(model, " ".join(WORDS.split() * 30))) as server:
        it = tab(server.url, "#view=look&token=100", viewport={"width": width, "height": 1000})
        for token in (100, 137, 0):
            it.turn(f"#view=look&token={token}")
            it.page.wait_for_selector(f"#strip-text-{token}[aria-pressed=true]")
            lines = it.page.evaluate(CUT)
            assert lines["cut"] == 0, token
            assert token == 0 or lines["hidden"] > 0


def test_a_mark_says_where_tokens_are_left_out(tab, monkeypatch):
    monkeypatch.setattr(looking, "CONTEXT", 200)
    model = reader("write", "gpt", depth=1, context=200)
    with serve_session(Session(model, " ".join(WORDS.split() * 10))) as server:
        it = tab(server.url, "#view=look&token=40")
        shown = it.page.eval_on_selector_all(
            ".chips.queries .chip", "all => all.map((e) => Number(e.dataset.query))"
        )
        gaps = sum(after > before + 1 for before, after in itertools.pairwise(shown))
        assert 0 < len(shown) < 50
        assert it.page.locator(".chips.queries .skipped").count() == gaps > 0


MOTIONS = """() => document.getAnimations().filter((one) => one.animationName).map((one) =>
  [one.animationName, one.effect.getTiming().iterations])"""


def test_the_first_picture_comes_in_motion_that_ends(tab):
    """Once; nothing moves for longer than five seconds, and nothing at all for readers who want no motion."""
    it = tab("gpt", "#view=look", reduced_motion="no-preference")
    it.page.reload(wait_until="commit")
    it.page.wait_for_selector(".layer.enter .leaves", state="attached")
    motions = dict(it.page.evaluate(MOTIONS))
    assert {"come", "sweep", "grow", "flow"} <= motions.keys()
    assert all(times <= 4 for times in motions.values())
    it.page.wait_for_selector(".layer.model:not(.enter)")
    it.page.evaluate("document.getAnimations().forEach((one) => one.finish())")
    it.page.click(".heads button[aria-pressed=false]")
    it.wait_until_still()
    assert it.page.locator(".enter").count() == 0
    assert tab("gpt", "#view=look").page.evaluate(MOTIONS) == []


CONTRASTS = """async () => {
  const { palette } = await import("/page/colour.js");
  const { textColour } = await import("/page/ink.js");
  const light = (channels) => {
    const [r, g, b] = channels.map((x) => x / 255).map((x) =>
      (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  return [false, true].flatMap((signed) => [...palette(signed)].map((pixel, i) => {
    const under = light([pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]);
    const ink = light([1, 3, 5].map((at) => parseInt(textColour(signed, i / 255).slice(at, at + 2), 16)));
    return Math.max(under, ink) / Math.min(under, ink);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_cells_can_be_read_on_every_colour(tab, scheme):
    contrasts = tab("gpt", "#view=look", color_scheme=scheme).page.evaluate(CONTRASTS)
    assert len(contrasts) == 2 * 256
    assert min(contrasts) >= 4.5


NEIGHBOURS = """async () => {
  const { drawMatrix } = await import("/page/scene_paint.js");
  const data = Float32Array.from([-16.88, -99.94, -123.4, -9.994, -0.5, -1234]);
  const tensor = { shape: [1, 6], data };
  const layer = document.querySelector(".layer");
  layer.append(...drawMatrix({ title: "", tensor, numbers: true }, { x: 0, y: 40, width: 264, height: 18 }));
  const texts = [...layer.querySelectorAll(".cell-numbers text")].slice(-6);
  return texts.map((e) => [e.textContent, e.getBoundingClientRect().left, e.getBoundingClientRect().right]);
}"""


def test_large_numbers_in_cells_do_not_touch(tab):
    """In cells as narrow as those with numbers may be."""
    texts = tab("gpt", "#view=look").page.evaluate(NEIGHBOURS)
    assert [text for text, _, _ in texts] == ["−16.9", "−99.9", "−123", "−9.99", "−0.50", "−1234"]
    assert all(right < left for (_, _, right), (_, left, _) in itertools.pairwise(texts))


def test_the_terms_of_a_sum_fit_a_phone(tab):
    """All columns, also above a row that sums up many smaller terms."""
    model = reader("write", "gpt", depth=1, heads=1, dim=96)
    with serve_session(Session(model, WORDS)) as server:
        it = tab(
            server.url,
            "#view=look&cell=blocks.0.attn.scores:0,4,2",
            viewport={"width": 390, "height": 844},
        )
        it.page.wait_for_selector(".cell tbody th[colspan]")
        room = it.page.eval_on_selector(".cell .scroll", "one => [one.scrollWidth, one.clientWidth]")
        assert room[0] <= room[1]
