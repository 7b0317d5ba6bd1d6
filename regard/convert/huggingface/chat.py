"""Read a folder's chat template, and the special tokens that it may use."""

from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files.untrusted import read_json, read_text

JINJA, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"


def read_chat_template(folder: Path) -> tuple[str | None, dict[str, str], Path]:
    """Return the template, if there is one, the special tokens by role, and the template's file."""
    path = folder / TOKENIZER_CONFIG
    config: dict[str, Any] = read_json(path) if path.exists() else {}
    tokens = {role: token for role, token in config.items() if role.endswith("_token")}
    tokens = {role: t.get("content") if isinstance(t, dict) else t for role, t in tokens.items()}
    special_tokens = {role: token for role, token in tokens.items() if isinstance(token, str)}
    if (folder / JINJA).exists():
        return read_text(folder / JINJA), special_tokens, folder / JINJA
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = by_name.get("default")
    if not isinstance(template, str | None):
        raise UserError(f"{path}: chat_template should be a string; remove it to do without")
    return template, special_tokens, path
