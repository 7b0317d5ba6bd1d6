"""The tour is up to date: regenerated pages and pictures equal those in docs/tour."""

import base64
import importlib.util
import io
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.looking import captioner, reader, seer
from regard.cli.parser import build_parser
from regard.runs import recipe
from regard.viewer.html import VIEWS
from regard.viewer.views import views

TOUR = Path(__file__).parent.parent / "docs" / "tour"
PAGES = sorted(path.name for path in TOUR.glob("*.md"))
PICTURES = sorted(path.name for path in (TOUR / "pictures").iterdir())
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LARGEST = 60_000  # bytes of a picture
MADE = "is not as the code has it by now; run `python docs/tour/make.py`, and read what has changed"


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("make", TOUR / "make.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("tour")
    script.make(folder)
    return folder


def same(old, new):
    """Check that the words are the same, and that numbers differ by at most one in their last digit."""
    if NUMBER.split(old) != NUMBER.split(new):
        return False
    for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True):
        digits = len(a.partition(".")[2])
        if len(b.partition(".")[2]) != digits or abs(float(a) - float(b)) > (
            1.01 * 10**-digits if digits else 0
        ):
            return False
    return True


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_is_made(tour, name):
    old, new = (TOUR / name).read_text().splitlines(), (tour / name).read_text().splitlines()
    assert len(old) == len(new), f"{name} {MADE}"
    for n, (a, b) in enumerate(zip(old, new, strict=True), 1):
        assert same(a, b), f"{name}:{n} {MADE}"


def parts(path):
    """(kind, words, numbers, pixels) of everything in a picture."""
    for e in ET.fromstring(path.read_text()).iter():
        numbers, pixels = [], None
        for key, value in sorted(e.attrib.items()):
            if value.startswith("data:image/png;base64,"):
                data = base64.b64decode(value.partition(",")[2])
                pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float64)
            elif re.fullmatch("#[0-9a-f]{6}", value):
                numbers += [
                    int(value[i : i + 2], 16) / 10 for i in (1, 3, 5)
                ]  # of colours, shades may differ
            elif key != "viewBox":
                numbers += map(float, NUMBER.findall(value))
        yield e.tag, e.text, numbers, pixels


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_it_is_made(tour, name):
    assert (TOUR / "pictures" / name).stat().st_size < LARGEST
    old, new = (list(parts(folder / "pictures" / name)) for folder in (TOUR, tour))
    assert [part[0] for part in old] == [part[0] for part in new], f"{name} {MADE}"
    for (_, words, numbers, pixels), (_, new_words, new_numbers, new_pixels) in zip(old, new, strict=True):
        assert same(words or "", new_words or ""), f"{name} {MADE}"
        np.testing.assert_allclose(numbers, new_numbers, atol=1, err_msg=f"{name} {MADE}")
        if pixels is not None:
            assert pixels.shape == new_pixels.shape
            assert np.abs(pixels - new_pixels).mean() < 3, f"{name} {MADE}"


def test_nothing_is_made_that_is_not_there(tour):
    assert sorted(path.name for path in tour.glob("*.md")) == PAGES
    assert sorted(path.name for path in (tour / "pictures").iterdir()) == PICTURES
    shown = {n for page in PAGES for n in re.findall(r"pictures/([\w-]+\.svg)", (TOUR / page).read_text())}
    assert shown == set(PICTURES)


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", (TOUR / page).read_text()):
            assert (TOUR / link).exists(), f"{page}: {link}"


def test_equations_survive_markdown():
    for page in PAGES[:-1]:
        equations = re.findall(r"\$\$(.+?)\$\$", (TOUR / page).read_text())
        assert equations, page
        for equation in equations:  # where a backslash before a sign is lost, or a tag is seen
            assert not re.search(r"\\[^a-zA-Z ]|<", equation), f"{page}: {equation}"


def commands():
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", (TOUR / page).read_text(), re.DOTALL | re.MULTILINE):
            yield from ((page, line) for line in block.splitlines())


def test_commands_are_known(capsys):
    known = set(VIEWS)
    for model in (
        reader("chat", "transformer"),
        reader("write", "gpt"),
        reader("fill", "bert"),
        seer(),
        captioner(),
    ):
        known |= set(views(model))
    tried = set()
    for page, line in commands():
        name, *words = shlex.split(line, comments=True)
        assert name == "regard", f"{page}: {line}"
        options = build_parser().parse_args(words)
        if words[0] == "train":
            assert options.recipe in recipe.names(), f"{page}: {line}"
            recipe.change(recipe.read(options.recipe), recipe.assignments(options.set))
        if getattr(options, "view", None):
            assert options.view in known, f"{page}: {line}"
        tried.add(page)
    assert tried == set(PAGES) - {"README.md"}


def test_a_drifted_page_would_be_noticed():
    assert same("| a | 0.25 | 7 |", "| a | 0.26 | 7 |")
    assert not same("| a | 0.25 | 7 |", "| a | 0.27 | 7 |")
    assert not same("| a | 0.25 | 7 |", "| a | 0.25 | 8 |")
    assert not same("| a | 0.25 |", "| b | 0.25 |")
