"""Every question of docs/tour/questions.md links to a section of the tour that has the answer."""

import ast
import re
from pathlib import Path

import pytest

TOUR = Path(__file__).parent.parent / "docs" / "tour"
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ROW = re.compile(
    r"^\| (?P<question>.+\?) \| \[.+\]\((?P<page>[\w-]+\.md)#(?P<anchor>\S+)\) \| (?P<words>.+) \|$"
)


def rows():
    lines = (TOUR / "questions.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [(line, ROW.match(line)) for line in table]


def slug(heading):
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections(text):
    """The text below each heading, up to the next one, by the heading's anchor. Code has no headings."""
    text = re.sub(
        r"^```\w*\n.*?^```$",
        lambda m: re.sub("^#", " #", m[0], flags=re.MULTILINE),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    parts = HEADING.split(text)[1:]
    return dict(zip(map(slug, parts[::2]), parts[1::2], strict=True))


def test_there_are_at_least_twenty_questions():
    assert all(match for _, match in rows()), [line for line, match in rows() if not match]
    questions = [match["question"] for _, match in rows()]
    assert len(set(questions)) == len(questions) >= 20


def test_every_page_answers_one():
    pages = {path.name for path in TOUR.glob("[0-9]*.md")}
    assert {match["page"] for _, match in rows()} == pages


@pytest.mark.parametrize("match", [match for _, match in rows()], ids=lambda match: match["question"])
def test_a_section_has_the_answer(match):
    by_anchor = sections((TOUR / match["page"]).read_text())
    assert match["anchor"] in by_anchor, f"{match['page']} has {', '.join(by_anchor)}"
    text = re.sub(r"\s+", " ", by_anchor[match["anchor"]].replace("*", ""))
    for words in match["words"].split("; "):
        assert words in text, f"{match['page']}#{match['anchor']} has no {words!r}"


def test_the_gpt_from_an_empty_file_needs_only_torch():
    """make.py runs it first on its page, so it runs on its own; the page compares it with regard.GPT."""
    text = (TOUR / "23-gpt-from-nothing.md").read_text()
    source = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    assert len(source.splitlines()) <= 100
    nodes = list(ast.walk(ast.parse(source)))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in imported} == {"torch"}
    assert "largest difference below 1e-10: True" in text
