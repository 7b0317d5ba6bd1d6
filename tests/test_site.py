"""The documents and their site: links, commands, and pages that everybody can read."""

import json
import re
from collections import Counter
from dataclasses import fields
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from docs import animate
from docs.site.build import ROOT, build, menu
from docs.site.reference import configs, rows

from helpers.documents import fenced, inline, split_commands
from helpers.slow import slow_after
from regard.cli.parser import build_parser
from regard.errors import UserError
from regard.runs import recipe
from regard.training.settings import find_sections

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LOOKED_AT = (
    *("index.html", "start.html", "tour/index.html", "tour/06-self-attention.html", "story.html"),
    "source/regard/models/t5.py.html",
)
COLOURFUL = ("tour/06-self-attention.html", "source/regard/models/t5.py.html")
SCHEMES = (("dark", COLOURFUL), ("light", LOOKED_AT))
GALLERY = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Models</title><h1>Models</h1>'
RESOURCES = {("img", "src"), ("source", "srcset"), ("link", "href"), ("script", "src"), ("iframe", "src")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """With a gallery of one page, as docs/site/gallery.py makes one."""
    folder, gallery = (tmp_path_factory.mktemp(name) for name in ("site", "gallery"))
    (gallery / "index.html").write_text(GALLERY)
    return folder, build(folder, gallery)


class References(HTMLParser):
    """The ids of a page, and what it refers to."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.tags = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name in ("href", "src", "srcset"):
                self.links.append((tag, name, value))


@pytest.fixture(scope="module")
def pages(site):
    folder, _ = site
    return {path: References(path.read_text()) for path in sorted(folder.rglob("*.html"))}


# Links


def test_no_link_is_broken(site, pages):
    folder, _ = site
    top, broken = folder.resolve(), []
    ids = {path: set(page.ids) for path, page in pages.items()}
    resolve = cache(lambda parent, name: (parent / name).resolve())
    for path, page in pages.items():
        for target in {target for _, _, target in page.links}:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            other = resolve(path.parent, unquote(parts.path)) if parts.path else path
            if other not in ids and (not other.is_file() or not other.is_relative_to(top)):
                broken.append(f"{path.relative_to(folder)}: {target}: no such page")
            elif parts.fragment and unquote(parts.fragment) not in ids[other]:
                broken.append(f"{path.relative_to(folder)}: {target}: no such heading")
    assert not broken, "\n".join(["links that lead nowhere:", *broken])


def test_nothing_is_requested_from_elsewhere(site, pages):
    folder, _ = site
    for path, page in pages.items():
        assert "script" not in page.tags, path
        assert len(page.ids) == len(set(page.ids)), path
        for tag, name, target in page.links:
            scheme = urlsplit(target).scheme
            assert scheme in (("",) if (tag, name) in RESOURCES else ("", "http", "https")), (path, target)
    assert not re.search(r"url\(|@import", (folder / "style.css").read_text())
    for path in folder.rglob("*.svg"):
        assert not re.search(r"<script|href=.https?:|url\(.?https?:", path.read_text()), path


def test_the_gallery_is_in_the_menu_if_it_was_made(site):
    folder, built = site
    assert 'href="../gallery/index.html"' in (folder / "tour" / "index.html").read_text()
    assert (folder / "gallery" / "index.html").read_text() == GALLERY
    built.gallery, files = [], built.gallery
    assert "gallery" not in menu(built, built.pages["README.md"])
    built.gallery = files


def test_the_tour_is_in_reading_order(site):
    folder, built = site
    order = [page for source, page in built.pages.items() if re.match(r"docs/tour/\d\d-", source)]
    assert len(order) >= 18
    for page, following in pairwise(order):
        last = (folder / page.address).read_text().split("<main", 1)[1].split("</main>")[0]
        assert re.search(rf'<a href="{Path(following.address).name}">[^<]*</a> →', last), page.source


def test_notebooks_can_be_downloaded(site):
    folder, _ = site
    for notebook in (ROOT / "docs" / "tour").glob("*.ipynb"):
        assert json.loads((folder / "tour" / notebook.name).read_text())["cells"]
        assert f'href="{notebook.name}"' in (folder / "tour" / f"{notebook.stem}.html").read_text()


def test_a_link_has_a_title_and_no_file_name(site):
    for page in site[0].glob("*.html"):
        assert not re.search(r">[a-z-]+\.md</a>", page.read_text()), page.name


# The reference


def test_every_command_and_option_is_in_the_reference(site):
    text = site[1].pages["docs/commands.md"].text
    for command in ("train", "ask", "score", "look", "serve", "export", "demo", "bench", "prepare"):
        assert f"\n## regard {command}\n" in text
    for option in ("--resume", "--num-beams N", "--view NAME", "--api-key KEY", "--no-repeat-ngram-size N"):
        assert f"| `{option}` |" in text
    assert "|  |\n" not in text


def test_every_setting_has_a_meaning(site):
    text = site[1].pages["docs/settings.md"].text
    for title, config in configs():
        assert f"\n## {title}\n" in text
        for row in rows(config):
            assert row in text
            assert not row.endswith("|  |"), f"{title}: {row}"
    for name in recipe.names():
        assert f"| `{name}` |" in text


# Commands


@cache
def documented():
    """Every command of every document: the document, the line, its words."""
    return [
        (path.relative_to(ROOT), line, words)
        for path in DOCUMENTS
        for line in [*fenced(path.read_text()), *inline(path.read_text())]
        for words in split_commands(line)
        if words[0] in ("regard", "make", "python") and len(words) > 1
    ]


@cache
def settings():
    """All SECTION.NAME that a recipe may have, of any model and task."""
    known = {"model.kind", "model.preset", "task.name"}
    for title, config in configs():
        known |= {f"{re.split(r'[ ,]', title)[0]}.{field.name}" for field in fields(config)}
    return known


def complaint(words):
    """What is wrong with a command, or None."""
    program, *rest = words
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return None if {word for word in rest if "=" not in word} <= targets else "no such target"
    if program == "python":
        if rest[0] == "-m":
            return None if (ROOT / rest[1]).is_dir() or find_spec(rest[1]) else "no such module"
        return "no such script" if "/" in rest[0] and not (ROOT / rest[0]).is_file() else None
    if "COMMAND" in rest:
        return None
    if len(rest) == 1:  # no more than a command's name, in a sentence
        rest = [*rest, "--help"]
    try:
        options = build_parser().parse_args(rest)
        if options.command == "train" and options.recipe and not options.recipe.endswith(".toml"):
            changes, sections = recipe.assignments(options.set), recipe.read(options.recipe)
            find_sections(sections, changes)
            recipe.change(sections, changes)
            return ", ".join(sorted(set(changes) - settings())) or None
    except UserError as error:
        return str(error)
    except SystemExit:  # it has printed its help
        return None
    return None


def test_every_command_is_one(capsys):
    wrong = [f"{path}: {line}: {why}" for path, line, words in documented() if (why := complaint(words))]
    assert not wrong, "\n".join(["commands that do not work:", *wrong])
    counts = Counter(str(path) for path, *_ in documented())
    assert counts["README.md"] > 15
    assert sum(counts.values()) > 150


def test_a_wrong_command_would_be_noticed(capsys):
    assert split_commands("X=1 regard ask a < b > c; make test  # d") == [
        ["regard", "ask", "a"],
        ["make", "test"],
    ]
    wrong = ["regard trian chat", "regard train chatt", "regard train chat --set model.dimm=2", "make tests"]
    for line in (*wrong, "python bench/none.py", "python -m nothing_here"):
        assert complaint(split_commands(line)[0]), line


# The first page, and the list of all that is covered


def test_the_first_page_is_short_and_complete():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 80
    assert re.search(r"^make demo .*\nmake test ", text, re.MULTILINE)
    for name in recipe.names():
        assert f"| `regard train {name}" in text, name
    for path in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{path.name})" in text, path.name


def test_the_subject_is_covered():
    table = [line for line in (ROOT / "docs/subject.md").read_text().splitlines() if line.startswith("| ")]
    items = [line.split(" | ") for line in table if not line.startswith("| item ")]
    assert len(items) == 156
    for item in items:
        assert re.search(r"\]\(|`(regard|make|python|--set) ", item[-1]), item


def test_the_moving_picture_is_the_demos_attention():
    text = animate.PICTURE.read_text()
    assert len(text) < 20_000
    assert "<script" not in text
    assert "prefers-reduced-motion" in text
    words = re.findall(r'<text x="\d+" y="\d+">([^<]+)</text>', text)
    assert words == ["hi", "how", "are", "you", "&lt;/s&gt;", "I", "am", "fine", ".", "&lt;/s&gt;"]
    weights = [float(value) for value in re.findall(r'<line .*?opacity="([\d.]+)"', text)]
    for row in range(5):
        assert sum(weights[5 * row : 5 * row + 5]) == pytest.approx(1, abs=0.03)


def test_the_moving_picture_has_the_weights_that_it_is_given():
    drawn = animate.draw([[0.25, 0.75], [1.0, 0.0]], ["<a>", "b"], ["x", "y"])
    lines = ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}line")
    assert [line.get("opacity") for line in lines] == ["0.25", "0.75", "1.00", "0.00"]
    assert "y 0.75" in drawn


# In a browser


@pytest.fixture(scope="module")
def tabs(browser):
    """A tab for each colour scheme, with the errors that it reports."""
    opened = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
        page.errors = []
        page.on("console", lambda message, page=page: page.errors.append(message.text))
        page.on("pageerror", lambda error, page=page: page.errors.append(str(error)))
        page.on("requestfailed", lambda request, page=page: page.errors.append(request.url))
        opened[scheme] = page
    yield opened
    for page in opened.values():
        page.close()


@pytest.mark.parametrize(
    ("address", "scheme"), slow_after(4, [(page, scheme) for scheme, pages in SCHEMES for page in pages])
)
def test_a_page_can_be_read_by_everybody(site, tabs, address, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = tabs[scheme]
    page.goto((site[0] / address).as_uri())
    # axe would request the style again, which a browser does not allow for files; what is right takes longest
    options = {"preload": False, "resultTypes": ["violations"]}
    if scheme == "dark":  # only colours differ
        options["runOnly"] = ["color-contrast"]
    wrong = axe.Axe().run(page, "main" if scheme == "dark" else None, options).response["violations"]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in wrong] == []
    assert page.errors == []


def test_no_page_is_wider_than_a_phone(site, tabs):
    folder, built = site
    page, wide = tabs["light"], []
    page.set_viewport_size({"width": 390, "height": 800})
    for one in built.pages.values():
        page.goto((folder / one.address).as_uri())
        if (width := page.evaluate("document.documentElement.scrollWidth")) > 390:
            wide.append((one.address, width))
    assert wide == []
    assert page.errors == []
