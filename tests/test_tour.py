"""The tour is up to date: regenerated pages, notebooks and pictures equal those in docs/tour."""

import base64
import importlib.util
import io
import json
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
NUMBERED = [name for name in PAGES if name[0].isdigit()]
NOTEBOOKS = [name.replace(".md", ".ipynb") for name in NUMBERED]
PICTURES = sorted(path.name for path in (TOUR / "pictures").iterdir())
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
LARGEST = 60_000  # bytes of a picture
ADDRESS = (  # of a paper
    r"https://(arxiv\.org/abs/\d{4}\.\d{4,5}|doi\.org/10\.\d+/\S+|aclanthology\.org/\S+|cdn\.openai\.com/\S+\.pdf)$"
)
OUTDATED = "is not as the code has it by now; run `python docs/tour/make.py`, and read what has changed"


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make", TOUR / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tour(make, tmp_path_factory):
    """A folder with the tour as it is made now. Every cell is run once, for its page and its notebook."""
    folder = tmp_path_factory.mktemp("tour")
    make.make(folder)
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
    assert len(old) == len(new), f"{name} {OUTDATED}"
    for n, (a, b) in enumerate(zip(old, new, strict=True), 1):
        assert same(a, b), f"{name}:{n} {OUTDATED}"


def read_notebook(path):
    """The lines of a notebook without its pictures, and these."""
    notebook, pictures = json.loads(path.read_text()), []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if svg := output.get("data", {}).pop("image/svg+xml", None):
                pictures.append("".join(svg))
    return json.dumps(notebook, indent=1, ensure_ascii=False).splitlines(), pictures


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_as_it_is_made(tour, name):
    old, new = (read_notebook(folder / name)[0] for folder in (TOUR, tour))
    assert len(old) == len(new), f"{name} {OUTDATED}"
    for n, (a, b) in enumerate(zip(old, new, strict=True), 1):
        assert same(a, b), f"{name}, line {n} without pictures: {OUTDATED}"


@pytest.mark.parametrize("name", NUMBERED)
def test_a_notebook_has_the_cells_and_pictures_of_its_page(name):
    page, path = (TOUR / name).read_text(), TOUR / name.replace(".md", ".ipynb")
    install, *cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert "pip install" in "".join(install["source"])
    blocks = re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    assert ["".join(cell["source"]) for cell in cells] == blocks
    shown = re.findall(r"pictures/([\w-]+\.svg)", page)
    assert read_notebook(path)[1] == [(TOUR / "pictures" / picture).read_text() for picture in shown]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_valid(name):
    """What the schema of nbformat 4.5 asks of the kinds of cells and outputs that are used."""
    notebook = json.loads((TOUR / name).read_text())
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert {"name", "display_name"} <= notebook["metadata"]["kernelspec"].keys()
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    for cell in notebook["cells"]:
        more = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | more
        assert cell["cell_type"] in ("code", "markdown")
        assert all(isinstance(line, str) for line in cell["source"])
        assert cell["source"]
        assert cell.get("execution_count") is None
        folds = [len(re.findall(tag, "".join(cell["source"]))) for tag in ("<details>", "</details>")]
        assert folds[0] == folds[1]
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                assert output.keys() == {"output_type", "name", "text"}
            else:
                assert output.keys() == {"output_type", "data", "metadata", "execution_count"}
                assert output["output_type"] == "execute_result"
                assert output["data"].keys() <= {"text/plain", "text/markdown", "image/svg+xml"}


SMALL = """# A page

*About nothing.*

```python
x = 2
print("x is", x)
x + 1
```

1. What is 3 · x?

<details><summary>Answer</summary>

```python
assert 3 * x == 6
```
</details>
"""


def make_page(make, folder, text):
    (folder / "01-page.md").write_text(text)
    parts = make.read(folder / "01-page.md")
    make.run([part for part in parts if isinstance(part, make.Cell)], "page")
    return make.page(parts, folder), make.notebook(parts)


def test_a_cell_shows_what_it_prints_and_its_last_value(make, tmp_path):
    page, notebook = make_page(make, tmp_path, SMALL)
    shown = "<!-- output -->\n```text\nx is 2\n```\n\n```text\n3\n```\n<!-- end -->\n"
    assert page == SMALL.replace("x + 1\n```\n", "x + 1\n```\n" + shown)
    assert make_page(make, tmp_path, page)[0] == page  # and once more, the same
    _, text, cell, question, answer = notebook["cells"]
    assert [output["output_type"] for output in cell["outputs"]] == ["stream", "execute_result"]
    assert "".join(question["source"]).endswith(
        "</details>"
    )  # a fold can't reach over the cell of the answer
    assert answer["metadata"]["jupyter"]["source_hidden"]
    assert "output" not in "".join(text["source"])


def test_a_cell_has_only_the_names_of_its_page(make, tmp_path):
    with pytest.raises(NameError, match="torch"):
        make_page(make, tmp_path, "# A page\n```python\ntorch.ones(1)\n```\n")
    with pytest.raises(AssertionError):
        make_page(make, tmp_path, SMALL.replace("== 6", "== 7"))


def test_a_single_page_can_be_made(make, tmp_path):
    make.make(tmp_path, ["12-softmax.md"])
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"12-softmax.md", "12-softmax.ipynb", "softmax.svg"}


def test_a_picture_needs_a_name_and_a_description(make, tmp_path):
    cell = """```python
import numpy as np
from regard.draw.heat import Matrix
from regard.draw.picture import draw

draw(Matrix("weights", np.eye(2), ["a", "b"], ["a", "b"]))
```
"""
    with pytest.raises(ValueError, match="weights"):
        make_page(make, tmp_path, cell)
    page, _ = make_page(make, tmp_path, cell + "<!-- output eye: a diagonal -->\n<!-- end -->\n")
    assert "![a diagonal](pictures/eye.svg)" in page
    assert (tmp_path / "eye.svg").read_text().startswith("<svg")


def test_no_code_is_hidden():
    for page in PAGES:
        marks = set(re.findall(r"<!-- *(\w+)", (TOUR / page).read_text()))
        assert marks <= {"output", "code", "links", "index", "end"}, page


def parts(path):
    """(kind, words, numbers, pixels) of everything in a picture."""
    for e in ET.fromstring(path.read_text()).iter():
        numbers, pixels = [], None
        for key, value in sorted(e.attrib.items()):
            if value.startswith("data:image/png;base64,"):
                data = base64.b64decode(value.partition(",")[2])
                pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.int16)
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
    assert [part[0] for part in old] == [part[0] for part in new], f"{name} {OUTDATED}"
    for (_, words, numbers, pixels), (_, new_words, new_numbers, new_pixels) in zip(old, new, strict=True):
        assert same(words or "", new_words or ""), f"{name} {OUTDATED}"
        np.testing.assert_allclose(numbers, new_numbers, atol=1, err_msg=f"{name} {OUTDATED}")
        if pixels is not None:
            assert pixels.shape == new_pixels.shape
            assert np.abs(pixels - new_pixels).mean() < 3, f"{name} {OUTDATED}"


def test_nothing_is_made_that_is_not_there(tour):
    assert sorted(path.name for path in tour.glob("*.md")) == PAGES
    assert sorted(path.name for path in tour.glob("*.ipynb")) == NOTEBOOKS
    assert sorted(path.name for path in TOUR.glob("*.ipynb")) == NOTEBOOKS
    assert sorted(path.name for path in (tour / "pictures").iterdir()) == PICTURES
    shown = {n for page in PAGES for n in re.findall(r"pictures/([\w-]+\.svg)", (TOUR / page).read_text())}
    assert shown == set(PICTURES)


def test_links_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", (TOUR / page).read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert re.match(ADDRESS, link) or (TOUR / link).exists(), f"{page}: {link}"


def test_results_of_experiments_are_quoted_as_they_are():
    """A page's rows with means and deviations are those of docs/experiments.md."""
    rows = (TOUR.parent / "experiments.md").read_text().splitlines()
    quoted = {line for page in NUMBERED for line in (TOUR / page).read_text().splitlines() if " ± " in line}
    assert quoted
    assert quoted <= set(rows), "run: python -m experiments NAME --document, and quote its table again"


def test_equations_survive_markdown():
    for page in NUMBERED:
        equations = re.findall(r"\$\$(.+?)\$\$", (TOUR / page).read_text())
        assert equations, page
        for equation in equations:  # where a backslash before a sign is lost, or a tag is seen
            assert not re.search(r"\\[^a-zA-Z ]|<", equation), f"{page}: {equation}"


@pytest.mark.parametrize("name", NUMBERED)
def test_a_page_has_exercises_with_checked_answers_and_papers(name):
    text = (TOUR / name).read_text()
    exercises = text.partition("\n## Exercises\n")[2].partition("\n## ")[0]
    questions = re.findall(r"^\d\. .+", exercises, re.MULTILINE)
    answers = re.findall(r"<details><summary>Answer</summary>\n\n(.*?)\n</details>", exercises, re.DOTALL)
    assert len(questions) == len(answers) >= 2
    assert all(re.search(r"^```python\n.*^ *assert ", answer, re.DOTALL | re.MULTILINE) for answer in answers)
    assert re.search(r"^- .+, .+, \d{4}", text.partition("\n## Papers\n")[2], re.MULTILINE)


def test_the_glossary_leads_to_pages_that_use_the_term():
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| \[(.+?)\]\((.+?)\) \|$", (TOUR / "glossary.md").read_text(), re.MULTILINE
    )
    terms = [term.strip("[]").lower() for term, *_ in rows]
    assert len(set(terms)) == len(terms) > 50
    assert terms == sorted(terms)
    for term, _, title, link in rows:
        text = (TOUR / link).read_text()
        assert text.startswith(f"# {title}\n"), link
        assert term.lower() in text.lower(), f"{link} does not use {term!r}"


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
        if (name, *words[:2]) == ("python", "-m", "regard.data.synthetic"):
            continue
        assert name == "regard", f"{page}: {line}"
        options = build_parser().parse_args(words)
        if words[0] == "train":
            assert options.recipe in recipe.names(), f"{page}: {line}"
            recipe.change(recipe.read(options.recipe), recipe.assignments(options.set))
        if getattr(options, "view", None):
            assert options.view in known, f"{page}: {line}"
        tried.add(page)
    assert tried >= set(NUMBERED)


def test_a_drifted_page_would_be_noticed():
    assert same("| a | 0.25 | 7 |", "| a | 0.26 | 7 |")
    assert not same("| a | 0.25 | 7 |", "| a | 0.27 | 7 |")
    assert not same("| a | 0.25 | 7 |", "| a | 0.25 | 8 |")
    assert not same("| a | 0.25 |", "| b | 0.25 |")
