"""The request for an export, and functions that all export formats share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.convert.huggingface.files import TARGET_TOKENIZER, TOKENIZER
from regard.convert.huggingface.tokenizer_json import add_template, special_token_ids
from regard.convert.model_card import CardFacts
from regard.describe.export import ExportedModel
from regard.errors import UserError, first_line


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A trained model with all facts that an export needs."""

    model: ExportedModel
    task: dict[str, Any]  # the recipe's section, with all settings
    generation: dict[str, Any]  # the default options of `ask`
    tokenizer: str | None  # the text of a tokenizer.json
    target_tokenizer: str | None = None  # the target's own, if it has one
    begin: int | None = None  # the token that starts a target
    end: int | None = None  # the token that ends a text or a target
    ends: Sequence[int] = ()  # all tokens that end a text
    first: Sequence[int] = ()  # the tokens before every text
    source_end: int | None = None  # the token that ends a source
    samples: Sequence[Sequence[int]] = ()  # encoded texts, to check the export with
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # by role, for the chat template
    adapter: Path | None = None  # the folder with the adapter that is part of the model
    card: CardFacts = field(default_factory=CardFacts)
    dtype: str = "auto"  # of the weights, if the format has several

    @property
    def generates(self) -> bool:
        """Whether the task writes text, token by token."""
        return "max_new_tokens" in self.generation


def import_extra(extra: str, package: str | None = None) -> Any:
    """Import a package that one of Regard's extras installs."""
    try:
        return import_module(package or extra)
    except ImportError:
        raise UserError(f'--to {extra} needs more packages: pip install "regard[{extra}]"') from None


def load_by(engine: Callable[..., Any], path: Path, *args: Any, **options: Any) -> Any:
    """Load what was written by the engine of another program, to check it."""
    try:
        return engine(str(path), *args, **options)
    except (
        Exception
    ) as error:  # engines have kinds of errors of their own, also for a file that can't be read
        name = engine.__module__.partition(".")[0]
        raise UserError(f"{path}: {name} can't load it ({first_line(error)}); nothing was kept") from None


def write_tokenizers(folder: Path, request: ExportRequest) -> None:
    """Write the tokenizers, which put the same special tokens around texts as the task does."""
    assert request.tokenizer is not None
    names = {id: name for name, id in special_token_ids(request.tokenizer).items()}
    encodes = not request.generates
    first, last = (name if encodes and name in names.values() else None for name in ("[CLS]", "[SEP]"))
    end = request.end if encodes else None if request.begin is None else request.source_end
    last = last or (None if end is None else names.get(end))
    (folder / TOKENIZER).write_text(add_template(request.tokenizer, first, last) + "\n", encoding="utf-8")
    if request.target_tokenizer is not None:
        (folder / TARGET_TOKENIZER).write_text(request.target_tokenizer + "\n", encoding="utf-8")
