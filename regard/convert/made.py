"""What goes into a folder, whatever its layout, and what all layouts share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import Mistake
from .files import TOKENIZER
from .tokens import framed, numbered

TARGET_TOKENIZER = "target_tokenizer.json"


@dataclass(frozen=True)
class Made:
    """What goes into a folder."""

    module: nn.Module
    task: dict[str, Any]  # the section of a recipe, all settings
    generation: dict[str, Any]  # the usual options of `ask`
    tokenizer: str | None  # a tokenizer.json
    begin: int | None = None  # before what is written in view of a source
    end: int | None = None  # after what is written
    ends: Sequence[int] = ()  # where any of several ends a text
    target_tokenizer: str | None = None  # where what is written has a vocabulary of its own
    source_end: int | None = None  # after what is read, in view of which something is written
    texts: Sequence[Sequence[int]] = ()  # to try the folder with
    template: str | None = None  # of one that talks
    specials: Mapping[str, str] = field(default_factory=dict)  # tokens by their roles, for the template


def extra(name: str, package: str | None = None) -> Any:
    """A package that one of our extras brings."""
    try:
        return import_module(package or name)
    except ImportError:
        raise Mistake(f'--to {name} needs more packages: pip install "regard[{name}]"') from None


def write_tokenizers(folder: Path, made: Made, reads: bool) -> None:
    """What splits texts, with the tokens that stand around them, as the model has learnt them."""
    assert made.tokenizer is not None
    ids = {id: name for name, id in numbered(made.tokenizer).items()}
    first, last = (name if reads and name in ids.values() else None for name in ("[CLS]", "[SEP]"))
    end = made.end if reads else None if made.begin is None else made.source_end
    last = last or (None if end is None else ids.get(end))
    (folder / TOKENIZER).write_text(framed(made.tokenizer, first, last) + "\n", encoding="utf-8")
    if made.target_tokenizer is not None:
        (folder / TARGET_TOKENIZER).write_text(made.target_tokenizer + "\n", encoding="utf-8")
