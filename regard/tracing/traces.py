"""A trace and its file."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.draw.picture import Picture
from regard.errors import UserError, suggest
from regard.files.atomic import as_private_as, is_missing
from regard.files.tensors import read_tensors, write_tensors
from regard.files.untrusted import parse_json
from regard.tracing.names import attention_sides
from regard.tracing.picture import Patches, draw_attention

FORMAT = "regard-trace"


class Trace:
    """Every intermediate tensor of a run by name, and its input; regard/tracing/__init__.py lists the names.

    tokens, ids: by side. An encoder reads the `source`, its decoder the `target`, and `written` are the
    tokens to predict at each position. Models without these sides read a `text`, which may be the
    patches of an image. `label` are the classes of the logits.
    difference: the largest difference of any attention's heads from the fused kernel, which stores no
    weights, for the same queries, keys and values.
    about: the kind of the model and its task; the `grid` of an image, rows and columns; and of a step, its
    number and the candidates of the `beam`.
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
        self.model: Any = None  # the traced model and its input, which are not saved
        self.input: Any = None

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order of computation."""
        return list(self.tensors)

    @property
    def attentions(self) -> list[str]:
        """The names of the attentions, without `.weights`."""
        return [name.removesuffix(".weights") for name in self.tensors if name.endswith(".weights")]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise KeyError(f"{name} is not in this trace; {suggest(name, self.tensors)}")
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(tokens)} {side}" for side, tokens in self.tokens.items())
        return f"Trace({len(self)} tensors, {counts}, difference={self.difference:.1e})"

    def sides(self, attention: str) -> tuple[list[str], list[str]]:
        """The tokens of an attention's queries and of its keys."""
        T, S = self[f"{attention}.weights"].shape[1:]
        queries, keys = attention_sides(attention)
        return self.tokens[queries][-T:], self.tokens[keys][-S:]

    def picture(self, name: str, head: int | None = None) -> Picture:
        """Draw an attention: one head, or the mean of all."""
        name = name.removesuffix(".weights")
        if name not in self.attentions:
            raise UserError(f"{name} is not an attention of this trace; {suggest(name, self.attentions)}")
        over_image = "grid" in self.about and attention_sides(name)[1] != "target"
        patches = Patches(self["pixels"], self.about["grid"]) if over_image else None
        return draw_attention(name, self[f"{name}.weights"], *self.sides(name), head, patches)

    def _repr_html_(self) -> str | None:
        """The page, in a notebook; None for a trace read from a file, which has no model."""
        from regard.viewer.session import trace_session  # above this floor, but a notebook calls the trace

        session = trace_session(self)
        return None if session is None else session._repr_html_()

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, atomically.

        An existing file is replaced only if it is a trace: weights of a model have the same suffix.
        """
        if not is_missing(path := Path(path)):
            check_replaceable(path)
        about = {"tokens": self.tokens, "ids": self.ids, "about": self.about, "names": self.names}
        text = json.dumps(about | {"difference": self.difference})
        sha = hashlib.sha256(text.encode()).hexdigest()
        with as_private_as([] if self.model is None else self.model.weight_files):
            write_tensors(path, self.tensors, {FORMAT: text, f"{FORMAT}-sha256": sha})

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        tensors = read_tensors(path := Path(path))
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        if FORMAT not in metadata:
            raise UserError(f"{path}: not a trace; regard look MODEL INPUT --save {path.name} makes one")
        if hashlib.sha256(metadata[FORMAT].encode()).hexdigest() != metadata.get(f"{FORMAT}-sha256"):
            raise UserError(f"{path}: damaged, its metadata does not match its SHA-256; make it again")
        try:
            fields = parse_json(metadata[FORMAT])
            names = list(fields.pop("names"))
            known = set(names) == set(tensors) and set(fields) == {"tokens", "ids", "about", "difference"}
        except (ValueError, TypeError, KeyError, AttributeError):
            known = False
        if not known:
            raise UserError(f"{path}: its tensors are not those that its metadata lists; make it again")
        return cls({name: tensors[name] for name in names}, **fields)


def check_replaceable(path: Path) -> None:
    """Raise UserError if a file is not a trace."""
    try:
        with safe_open(path, framework="pt") as file:
            is_trace = FORMAT in (file.metadata() or {})
    except (OSError, SafetensorError):
        is_trace = False
    if not is_trace:
        raise UserError(f"{path} exists and is not a trace; choose another name, or delete it")
