"""What a trace holds, and its file."""

import hashlib
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from regard.checkpoint import read_tensors, write_tensors
from regard.errors import Mistake
from regard.recipe import nearest

FORMAT = "regard-trace"


class Trace:
    """Every intermediate of a run by name, and what was read: the table of names stands in regard/trace.

    tokens, ids: by side. `source` is what an encoder reads, `target` what its decoder does, `written` what
    that should say at each of its places; `text` is read by a model that has no such sides, a picture's
    patches too; `label` are the classes that logits are of.
    difference: the largest between what heads give here and what they do on the fast path, which stores no
    weights, for the same queries, keys and values.
    about: the kind of the model, its task; a picture's `grid` of rows and columns; of a step, its number and
    the `beam` of candidates.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        tokens: dict[str, list[str]],
        ids: dict[str, list[int]],
        difference: float,
        about: dict[str, Any],
    ):
        self.tensors, self.tokens, self.ids = tensors, tokens, ids
        self.difference, self.about = difference, about
        self.model: Any = None  # what it is a trace of, and of what input; not in its file
        self.given: Any = None

    @property
    def names(self) -> list[str]:
        """In the order of computing."""
        return list(self.tensors)

    @property
    def attentions(self) -> list[str]:
        """The parts that look: each has weights."""
        return [name.removesuffix(".weights") for name in self.tensors if name.endswith(".weights")]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise KeyError(f"{name} is not in this trace; {nearest(name, self.tensors)}")
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        sides = ", ".join(f"{len(some)} {side}" for side, some in self.tokens.items())
        return f"Trace({len(self)} tensors, {sides}, difference={self.difference:.1e})"

    def sides(self, attention: str) -> tuple[list[str], list[str]]:
        """The tokens that look and those that are looked at, T and S of an attention's weights."""
        T, S = self[f"{attention}.weights"].shape[1:]
        rows, columns = sides(attention)
        return self.tokens[rows][-T:], self.tokens[columns][-S:]

    def picture(self, name: str, head: int | None = None) -> Any:
        """The `look` picture of an attention: its mean over the heads, or one head."""
        return import_module("regard.look.traced").picture(self, name, head)  # drawing lives above

    def _repr_html_(self) -> str | None:
        """The page, in a notebook; of a trace that was read from a file, nothing but its name."""
        shown = import_module("regard.look.page").shown(self)
        return None if shown is None else shown._repr_html_()

    def save(self, path: str | Path) -> None:
        """One safetensors file with everything in it, whole or not at all."""
        told = {"tokens": self.tokens, "ids": self.ids, "about": self.about, "names": self.names}
        text = json.dumps(told | {"difference": self.difference})
        sha = hashlib.sha256(text.encode()).hexdigest()
        write_tensors(Path(path), self.tensors, {FORMAT: text, f"{FORMAT}-sha256": sha})

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        tensors = read_tensors(path := Path(path))
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
        if FORMAT not in told:
            raise Mistake(f"{path}: no trace; regard look MODEL INPUT --save {path.name} makes one")
        if hashlib.sha256(told[FORMAT].encode()).hexdigest() != told.get(f"{FORMAT}-sha256"):
            raise Mistake(f"{path}: damaged, its metadata does not match its SHA-256; make it again")
        found = json.loads(told[FORMAT])
        names = found.pop("names", ())
        if set(names) != set(tensors) or set(found) != {"tokens", "ids", "about", "difference"}:
            raise Mistake(f"{path}: its tensors are not those that it tells of; make it again")
        return cls({name: tensors[name] for name in names}, **found)


def sides(attention: str) -> tuple[str, str]:
    """Who looks at whom: keys of a trace's tokens."""
    parts = attention.split(".")
    if parts[0] == "encoder":
        return "source", "source"
    if {"cross", "look"} & set(parts):
        return "target", "source"
    return ("target", "target") if parts[0] == "decoder" else ("text", "text")
