"""Read untrusted configuration files, with a size limit; write Regard's own."""

import json
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files.regular import regular_stat

MAX_BYTES = 2**23  # of a configuration file


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the text of a regular file of at most `limit` bytes."""
    if regular_stat(path).st_size > limit:
        raise UserError(f"{path}: more than {limit >> 20} MiB; this is not a configuration file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: not UTF-8 text ({e})") from None


def read_json(path: Path, kind: type = dict, limit: int = MAX_BYTES) -> Any:
    """Return the JSON object (or list, by `kind`) in a file. Raise UserError if a key is repeated."""
    try:
        content = parse_json(read_text(path, limit), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise UserError(f"{path.parent}: not a model folder, it has no {path.name}") from None
    except UserError:
        raise
    except (OSError, ValueError) as e:
        raise UserError(f"{path}: not readable as JSON: {e}") from None
    if not isinstance(content, kind):
        raise UserError(f"{path}: should hold one JSON {'object' if kind is dict else 'list'}")
    return content


def parse_json(text: str | bytes, **options: Any) -> Any:
    """The value of a text in JSON. Raise only ValueError if it is damaged."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key appears twice")
    return mapping


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
