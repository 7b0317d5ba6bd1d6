"""The tour's pages, made anew: `python docs/tour/make.py [FOLDER]`. The tests make them, too, and compare.

A page is Markdown. Its Python is run from top to bottom, block by block, each page on its own. What stands
before <!-- end --> is written here, and comes from what stands before it:

    <!-- run ... -->                       what this Python prints; it sees the names of the page's blocks
    <!-- code FILE NAME [NAME.NAME] -->    functions, classes and constants as they are in the source
    <!-- links -->  <!-- index -->         the way through the pages

Pages sow their own seeds. Models that are trained on them are small and in double precision, so that what
one machine rounds in another way than the next does not grow into other digits.
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
FOLDED = 45  # lines of code; more have to be opened
PART = re.compile(
    r"^```python\n(?P<shown>.*?)^```$|(?P<mark><!-- (?P<kind>run|code|links|index)\b(?P<told>.*?)-->\n)"
    r"(?P<old>.*?)<!-- end -->",
    re.DOTALL | re.MULTILINE,
)


def make(folder: Path) -> None:
    """Every page and picture, into a folder."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for path in [*pages(), HERE / "README.md"]:
        (folder / path.name).write_text(page(path, folder / "pictures"))


def pages() -> list[Path]:
    return sorted(HERE.glob("[0-9]*.md"))


def page(path: Path, pictures: Path) -> str:
    """A page with everything in it made anew."""
    names: dict[str, Any] = {"table": table, "save": lambda *args: save(pictures, *args)}

    def part(match: re.Match[str]) -> str:
        if match["shown"] is not None:
            exec(compile(match["shown"], path.name, "exec"), names)
            return match[0]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if match["kind"] == "run":
                exec(compile(match["told"].strip("\n "), path.name, "exec"), names)
            else:
                print({"code": code, "links": links, "index": index}[match["kind"]](path, match["told"]))
        return f"{match['mark']}{printed.getvalue().strip()}\n<!-- end -->"

    before = torch.get_default_dtype()
    try:
        return PART.sub(part, path.read_text())
    finally:
        torch.set_default_dtype(before)


# What pages use


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], digits: int = 2) -> None:
    """Prints a table; numbers that are not whole with so many digits."""

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
    """Keeps a picture, or draws a view, and prints the line that shows it."""
    (view if isinstance(view, Picture) else draw(view)).save(folder / f"{name}.svg")
    shown = f'<img src="pictures/{name}.svg" alt="{alt}" width="{width}">'
    print(shown if width else f"![{alt}](pictures/{name}.svg)")


# What the script writes


def code(path: Path, arguments: str) -> str:
    """Parts of one of our files, with a link to it."""
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
    """A function, class or constant, or what is inside it, as it is written."""
    body: list[Any] = ast.parse(text).body
    for part in name:
        node = next(node for node in body if part in called(node))
        body = getattr(node, "body", [])
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


def called(node: ast.stmt) -> list[str]:
    """The names that a statement gives."""
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
    """A page's first line below its title, in one."""
    return path.read_text().split("\n\n")[1].replace("\n", " ").strip("*")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
