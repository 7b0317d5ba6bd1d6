"""Guided tours of the page from the user: a TOML file with an address and a sentence for each step.

title = "What a mask does"

[[steps]]
address = "view=look&depth=head"
words = "Tokens that come later are grey: they cannot be looked at."
"""

import tomllib
from pathlib import Path
from typing import TypedDict
from urllib.parse import parse_qs

from regard.errors import UserError

MAX_STEPS = 100


class Tour(TypedDict):
    title: str
    steps: list[tuple[str, str]]  # the address and the words of each


def read_tour(path: str | Path) -> Tour:
    """The tour in a file."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; write a tour with a title and [[steps]]") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from None
    title, steps = content.get("title", Path(path).stem), content.get("steps")
    if not isinstance(title, str) or not isinstance(steps, list) or not 0 < len(steps) <= MAX_STEPS:
        raise UserError(f"{path}: a tour has a title and 1 to {MAX_STEPS} [[steps]]")
    return {"title": title, "steps": [read_step(path, n, step) for n, step in enumerate(steps, 1)]}


def read_step(path: str | Path, number: int, step: object) -> tuple[str, str]:
    if not isinstance(step, dict) or not all(isinstance(step.get(key), str) for key in ("address", "words")):
        raise UserError(f"{path}: step {number}: give an address and words, both in quotes")
    address = str(step["address"]).rpartition("#")[2]  # a whole link is also accepted
    if "view" not in parse_qs(address):
        raise UserError(f"{path}: step {number}: its address names no view; copy what follows # on the page")
    return address, step["words"]
