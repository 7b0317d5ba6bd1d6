"""A folder's chat template, and the special tokens that it may name."""

from pathlib import Path
from typing import Any

from ..errors import Mistake
from ..files import read_text
from .files import read_json

JINJA, TOKENS = "chat_template.jinja", "tokenizer_config.json"


def read_chat(folder: Path) -> tuple[str | None, dict[str, str], Path]:
    """The template's text, if there is one; the tokens by their roles; and the file that has it."""
    told: dict[str, Any] = read_json(folder / TOKENS) if (folder / TOKENS).exists() else {}
    named = {role: token for role, token in told.items() if role.endswith("_token")}
    named = {role: t.get("content") if isinstance(t, dict) else t for role, t in named.items()}
    specials = {role: token for role, token in named.items() if isinstance(token, str)}
    if (folder / JINJA).exists():
        return read_text(folder / JINJA), specials, folder / JINJA
    found = told.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {some.get("name"): some.get("template") for some in found if isinstance(some, dict)}
        found = found.get("default")
    if not isinstance(found, str | None):
        raise Mistake(f"{folder / TOKENS}: chat_template should be a text; remove it to do without")
    return found, specials, folder / TOKENS
