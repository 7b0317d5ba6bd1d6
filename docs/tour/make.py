"""Regenerate the tour, or some of its pages: `python docs/tour/make.py [NAME.md ...]`. A test compares it.

A page is Markdown. Its Python blocks are the cells of a notebook: they are run from top to bottom, each page
in a namespace of its own. What a cell prints, and the value of its last line, stand below it:

    <!-- output -->                        text, a Markdown table, or, with NAME and a description, a picture:
    <!-- output NAME [WIDTH]: a description for people who can't see the picture -->

Also generated is the text between one of these marks and <!-- end -->:

    <!-- code FILE NAME [NAME.NAME] -->    functions, classes and constants, quoted from the source
    <!-- links -->  <!-- index -->         links between the pages

Every numbered page is also written as a notebook, NN-name.ipynb, with the same cells and outputs.

Pages set their own seeds. Models that are trained on them are small and in double precision, so that
rounding differences between machines do not change the printed digits.
"""

import ast
import contextlib
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.draw.picture import Picture

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDED = 45  # lines of code; longer ones are folded
PART = re.compile(
    r"^```python\n(?P<source>.*?)^```\n(?:<!-- output(?P<caption>.*?)-->\n.*?<!-- end -->\n)?"
    r"|(?P<mark><!-- (?P<kind>code|links|index)\b(?P<arguments>.*?)-->\n).*?<!-- end -->\n",
    re.DOTALL | re.MULTILINE,
)
CAPTION = re.compile(r"(?P<name>[\w-]+)(?: (?P<width>\d+))?: (?P<alt>.+)")
INSTALL = "# Needs Regard. Once, in this folder of a checkout: %pip install -q ../.."


@dataclass
class Cell:
    """Python code with what it shows, as outputs of the notebook format."""

    source: str
    caption: str
    outputs: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Quote:
    """Text that is generated from other files, with its mark."""

    kind: str
    mark: str
    text: str


Part = str | Cell | Quote


def make(folder: Path, names: Sequence[str] = ()) -> None:
    """Write every page, or those with these names, with its notebook and pictures to a folder."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for path in [HERE / name for name in names] or sorted(HERE.glob("*.md")):
        parts = read(path)
        run([part for part in parts if isinstance(part, Cell)], path.name)
        (folder / path.name).write_text(page(parts, folder / "pictures"))
        if path in pages():
            text = json.dumps(notebook(parts), indent=1, ensure_ascii=False) + "\n"
            (folder / path.with_suffix(".ipynb").name).write_text(text)


def pages() -> list[Path]:
    return sorted(HERE.glob("[0-9]*.md"))


def read(path: Path) -> list[Part]:
    """Split a page into plain text, cells and quotes."""
    text, at, parts = path.read_text(), 0, list[Part]()
    for match in PART.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        if match["kind"]:
            quoted = {"code": code, "links": links, "index": index}[match["kind"]](path, match["arguments"])
            parts.append(Quote(match["kind"], match["mark"], quoted))
        else:
            parts.append(Cell(match["source"], (match["caption"] or "").strip()))
    return [*parts, text[at:]]


# Cells


def run(cells: Sequence[Cell], name: str) -> None:
    """Run cells as a notebook does: in one namespace, showing the value of the last line of each."""
    names: dict[str, Any] = {"__name__": "__main__"}
    dtype = torch.get_default_dtype()
    try:
        for n, cell in enumerate(cells, 1):
            file = f"{name}, cell {n}"
            *body, last = ast.parse(cell.source).body
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(ast.Module(body, []), file, "exec"), names)
                if not isinstance(last, ast.Expr):
                    exec(compile(ast.Module([last], []), file, "exec"), names)
                    value = None
                else:
                    value = eval(compile(ast.Expression(last.value), file, "eval"), names)
            if text := printed.getvalue():
                cell.outputs.append({"output_type": "stream", "name": "stdout", "text": lines(text)})
            if value is not None:
                cell.outputs.append(result(value))
    finally:
        torch.set_default_dtype(dtype)


def result(value: Any) -> dict[str, Any]:
    """Return the output of a cell for the value of its last line."""
    data = {"text/plain": lines(repr(value))}
    if isinstance(value, Picture):
        data["image/svg+xml"] = lines(value.svg())
    elif hasattr(value, "_repr_markdown_"):
        data["text/markdown"] = lines(value._repr_markdown_())
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


# Pages


def page(parts: Sequence[Part], pictures: Path) -> str:
    """Return a page with all of its generated parts, and write its pictures."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Quote):
            texts.append(f"{part.mark}{part.text}\n<!-- end -->\n")
        else:
            mark = f"<!-- output {part.caption} -->" if part.caption else "<!-- output -->"
            shown = "\n\n".join(markdown(output, part.caption, pictures) for output in part.outputs)
            texts.append(
                f"```python\n{part.source}```\n" + (f"{mark}\n{shown}\n<!-- end -->\n" if shown else "")
            )
    return "".join(texts)


def markdown(output: dict[str, Any], caption: str, pictures: Path) -> str:
    """Return the output of a cell as Markdown."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        if not (match := CAPTION.fullmatch(caption)):
            title = "".join(data["text/plain"])
            raise ValueError(
                f"{title}: write <!-- output NAME: description --> and <!-- end --> below its cell"
            )
        (pictures / f"{match['name']}.svg").write_text("".join(data["image/svg+xml"]))
        shown = f'<img src="pictures/{match["name"]}.svg" alt="{match["alt"]}" width="{match["width"]}">'
        return shown if match["width"] else f"![{match['alt']}](pictures/{match['name']}.svg)"
    if "text/markdown" in data:
        return "".join(data["text/markdown"])
    return "```text\n" + "".join(output.get("text") or data["text/plain"]).rstrip() + "\n```"


# Notebooks


def notebook(parts: Sequence[Part]) -> dict[str, Any]:
    """Return a page as a notebook (nbformat 4.5). Cells inside of <details>, the answers, are folded."""
    cells, text, depth = [code_cell(Cell(INSTALL, ""))], "", 0
    for part in [*parts, Cell("", "")]:  # an empty cell ends the last text
        if isinstance(part, Cell):
            depth += text.count("<details>") - text.count("</details>")
            if text := unfold(text).strip():
                cells.append({"cell_type": "markdown", "metadata": {}, "source": lines(text)})
            if part.source:
                cells.append(code_cell(part, hidden=depth > 0))
            text = ""
        else:
            text += part if isinstance(part, str) else part.text + "\n"
    for n, cell in enumerate(cells):
        cell["id"] = f"cell-{n}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def code_cell(cell: Cell, hidden: bool = False) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"jupyter": {"source_hidden": True}} if hidden else {},
        "outputs": cell.outputs,
        "source": lines(cell.source.rstrip()),
    }


def unfold(text: str) -> str:
    """Return Markdown for a notebook: a fold ends where its cell ends, and pages link to notebooks."""
    text = re.sub(r" \| \[as a notebook\]\([\w-]+\.ipynb\)", "", text)
    text = re.sub(r"\]\((\d\d-[\w-]+)\.md\b", r"](\1.ipynb", text)
    text = text.strip().removeprefix("</details>")
    return text + "\n\n</details>" if text.count("<details>") > text.count("</details>") else text


# Generated text


def code(path: Path, arguments: str) -> str:
    """Quote parts of a source file, with a link to it."""
    file, *parts = arguments.split()
    text = (ROOT / file).read_text()
    quoted = "\n\n\n".join(source(text, name.split(".")) for name in parts)
    block = f"```py\n{quoted}\n```"
    link = f"[{file}](../../{file})"
    if quoted.count("\n") < FOLDED:
        return f"{block}\nFrom {link}."
    names = ", ".join(f"<code>{name}</code>" for name in parts)
    return f"<details><summary>{names}</summary>\n\n{block}\n</details>\n\nFrom {link}."


def source(text: str, name: Sequence[str]) -> str:
    """Return the source of a function, class, constant or member."""
    body: list[Any] = ast.parse(text).body
    for part in name:
        node = next(node for node in body if part in defined_names(node))
        body = getattr(node, "body", [])
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    quoted = text.splitlines()[first - 1 : node.end_lineno]
    margin = len(quoted[0]) - len(quoted[0].lstrip())
    return "\n".join(line[margin:] for line in quoted)


def defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def links(path: Path, arguments: str) -> str:
    every = pages()
    at = every.index(path)
    before = f"← [{title(every[at - 1])}]({every[at - 1].name}) | " if at else ""
    after = f" | [{title(every[at + 1])}]({every[at + 1].name}) →" if at + 1 < len(every) else ""
    return f"{before}[all pages](README.md) | [as a notebook]({path.stem}.ipynb){after}"


def index(path: Path, arguments: str) -> str:
    rows = [f"{n}. [{title(each)}]({each.name}): {lead(each)}" for n, each in enumerate(pages(), 1)]
    return "\n".join(rows)


def title(path: Path) -> str:
    return path.read_text().split("\n", 1)[0].removeprefix("# ")


def lead(path: Path) -> str:
    """Return the first paragraph of a page as one line."""
    return path.read_text().split("\n\n")[1].replace("\n", " ").strip("*")


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests: with more, sums are rounded in another order
    make(HERE, sys.argv[1:])
