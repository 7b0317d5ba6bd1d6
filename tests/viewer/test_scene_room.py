"""What stands in the scene has room: names of rows, fields, and the way back to the whole model."""

import pytest

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
