"""Every view has a picture in the documents, and `docs/pictures.py` draws them for any models."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

import regard
from helpers.browsing import WORDS, shown, trained
from helpers.looking import captioner, noise
from regard.viewer.html import VIEWS
from regard.viewer.session import Session

DOCS = Path(__file__).parents[2] / "docs"
LARGEST = 150_000  # bytes of a picture


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_view_has_its_picture():
    text = (DOCS / "looking.md").read_text("utf-8")
    for name in (*VIEWS, "cell", "atlas", "lens"):
        path = DOCS / "pictures" / f"page-{name}.png"
        assert path.stat().st_size < LARGEST, name
        assert f"(pictures/{path.name})" in text
        with Image.open(path) as picture:
            assert picture.size == (1120, 720)
    there = {path.name for path in (DOCS / "pictures").glob("page-*")}
    assert there == {name for name in there if f"pictures/{name}" in text}


@pytest.mark.slow
def test_pictures_are_made_of_every_view(script, browser, tmp_path):
    write = Session(regard.load(trained(tmp_path / "run"), "cpu"), WORDS)
    models = {"write": write, "answer": shown("gru"), "see": Session(captioner(), noise(12), "the fox")}
    paths = script.pictures(browser, models, tmp_path)
    assert [path.name for path in paths[: len(VIEWS)]] == [f"page-{view}.png" for view in VIEWS]
    records = set()
    for path in paths:
        assert path.stat().st_size < LARGEST
        with Image.open(path) as picture:
            assert picture.size == (1120, 720)
            assert len(picture.getcolors()) > 20, path.name  # something is drawn
            records.add(picture.tobytes())
    assert len(records) == len(paths)
