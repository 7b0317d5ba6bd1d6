"""Regenerate the pages of the tour: `python docs/tour/make.py [FOLDER]`. A test compares them.

A page is Markdown. Its Python blocks are run from top to bottom, each page in a namespace of its own.
The text between one of these marks and <!-- end --> is generated:

    <!-- run ... -->                       the output of this Python code, which can use the page's names
    <!-- code FILE NAME [NAME.NAME] -->    functions, classes and constants, quoted from the source
    <!-- links -->  <!-- index -->         links between the pages

Pages set their own seeds. Models that are trained on them are small and in double precision, so that
rounding differences between machines do not change the printed digits.
"""

import ast
import contextlib
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.viewer import Picture, draw

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDED = 45  # lines of code; longer ones are folded
PART = re.compile(
    r"^```python\n(?P<shown>.*?)^```$|(?P<mark><!-- (?P<kind>run|code|links|index)\b(?P<arguments>.*?)-->\n)"
    r"(?P<old>.*?)<!-- end -->",
    re.DOTALL | re.MULTILINE,
)


def make(folder: Path) -> None:
    """Write every page and picture to a folder."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for path in [*pages(), HERE / "README.md"]:
        (folder / path.name).write_text(page(path, folder / "pictures"))


def pages() -> list[Path]:
    return sorted(HERE.glob("[0-9]*.md"))


def page(path: Path, pictures: Path) -> str:
    """Return a page with all of its generated parts."""
    names: dict[str, Any] = {"table": table, "save": lambda *args: save(pictures, *args)}

    def part(match: re.Match[str]) -> str:
        if match["shown"] is not None:
            exec(compile(match["shown"], path.name, "exec"), names)
            return match[0]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if match["kind"] == "run":
                exec(compile(match["arguments"].strip("\n "), path.name, "exec"), names)
            else:
                print({"code": code, "links": links, "index": index}[match["kind"]](path, match["arguments"]))
        return f"{match['mark']}{printed.getvalue().strip()}\n<!-- end -->"

    before = torch.get_default_dtype()
    try:
        return PART.sub(part, path.read_text())
    finally:
        torch.set_default_dtype(before)


# Functions for the code of pages


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], digits: int = 2) -> None:
    """Print a table; floats have this number of digits."""

    def cell(x: Any) -> str:
        x = x.item() if isinstance(x, torch.Tensor) else x
        return (
            f"{x:.{digits}f}".replace("-0." + "0" * digits, "0." + "0" * digits)
            if isinstance(x, float)
            else str(x)
        )

    for row in [columns, ["---"] * len(columns), *rows]:
        print("|", " | ".join(map(cell, row)).replace("<", "&lt;"), "|")


def save(folder: Path, view: Any, name: str, alt: str, width: int | None = None) -> None:
    """Save a picture or view, and print the Markdown that shows it."""
    (view if isinstance(view, Picture) else draw(view)).save(folder / f"{name}.svg")
    shown = f'<img src="pictures/{name}.svg" alt="{alt}" width="{width}">'
    print(shown if width else f"![{alt}](pictures/{name}.svg)")


# Generated parts


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
    lines = text.splitlines()[first - 1 : node.end_lineno]
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


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
    return f"{before}[all pages](README.md){after}"


def index(path: Path, arguments: str) -> str:
    rows = [f"{n}. [{title(each)}]({each.name}): {lead(each)}" for n, each in enumerate(pages(), 1)]
    return "\n".join(rows)


def title(path: Path) -> str:
    return path.read_text().split("\n", 1)[0].removeprefix("# ")


def lead(path: Path) -> str:
    """Return the first paragraph of a page as one line."""
    return path.read_text().split("\n\n")[1].replace("\n", " ").strip("*")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
