"""Parse the cells of tables: texts, labels, scores, lists of words; and quote them in messages."""

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

from regard.data.files import check_surrogates, normalize_newlines
from regard.data.memory import encode_if_image
from regard.errors import UserError

MOST_CLASSES, LONGEST_CLASS = 50, 40  # of a column that is recognised as labels without their name

Kind = Literal["text", "exact", "label", "score", "words", "texts", "file", "any"]
EMPTY: dict[Kind, Any] = {"text": "", "words": [], "texts": []}  # cells of fields that may be empty


def parse_cell(where: str, name: str, kind: Kind, value: Any) -> Any:
    """Return the value of a cell; None if it is empty."""
    if kind == "text":
        return parse_text(where, name, value)
    if isinstance(value, float) and value != value:
        value = None
    match kind:
        case "file":
            return parse_file(where, name, value)
        case "any":
            return None if isinstance(value, str) and not value.strip() else value
        case "exact":  # positions in it are known
            return value if parse_text(where, name, value) else None
        case "score":
            return None if value is None else parse_score(where, value)
        case "words":
            return parse_words(where, name, value)
        case "texts":
            several = value if isinstance(value, list) else [value]
            texts = [parse_text(where, name, each) for each in several]
            return [text for text in texts if text] or None
        case "label":
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, int):
                value = str(value).lower()  # 1, or JSON's true
    return parse_text(where, name, value)


def parse_text(where: str, name: str, value: Any) -> str | None:
    if isinstance(value, str):
        if not value.isascii():
            check_surrogates(value, where)
        return (normalize_newlines(value) if "\r" in value else value).strip() or None
    if value is None or value != value:  # NaN: pandas' empty cell
        return None
    raise UserError(f'{where}: no string under "{name}", but {quote_name(repr(value))}; give one')


def parse_file(where: str, name: str, value: Any) -> str | bytes | None:
    """Return the path of a file, or its bytes: also of an object {"bytes", "path"}, as the package datasets
    writes them, and of a Pillow image."""
    if isinstance(value, dict) and ("bytes" in value or "path" in value):
        value = value.get("bytes") or value.get("path")
    value = encode_if_image(value)
    return value or None if isinstance(value, bytes) else parse_text(where, name, value)


def parse_score(where: str, value: Any) -> float | None:
    if isinstance(value, str) and not value.strip():
        return None
    try:
        score = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        score = float("nan")
    if not isfinite(score):
        raise UserError(f"{where}: the score {quote_name(str(value))} is not a number; write it like 3.5")
    return score


def parse_words(where: str, name: str, value: Any) -> list[str] | None:
    """Return a list of texts, also if it is written as JSON or Python writes it, or with spaces between."""
    if isinstance(value, str) and value.lstrip().startswith("[") and value.rstrip().endswith("]"):
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(value)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    if isinstance(value, str):
        value = value.split()
    if not value:
        return None
    if not isinstance(value, list) or any(isinstance(each, list | dict | None) for each in value):
        raise UserError(f'{where}: no list of words under "{name}", but {quote_name(repr(value))}; give one')
    return [check_surrogates(str(each), where) for each in value]


# Kinds of columns


def is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def is_class_column(values: Sequence[Any]) -> bool:
    """Return whether values look like names of classes: short, few and repeated."""
    texts = [
        str(value).strip() for value in values if value is not None and not isinstance(value, list | dict)
    ]
    distinct = set(texts) - {""}
    return (
        2 <= len(distinct) <= min(MOST_CLASSES, len(texts) // 2)
        and max(map(len, distinct)) <= LONGEST_CLASS
        and not any(is_number(text) and not text.lstrip("+-").isdecimal() for text in distinct)
    )


def is_prose_column(values: Sequence[Any]) -> bool:
    """Return whether most values are texts of several words."""
    return sum(isinstance(value, str) and len(value.split()) > 2 for value in values) > len(values) / 2


def obvious_texts(
    names: Sequence[str], columns: Mapping[int, Sequence[Any]], words: Collection[str]
) -> list[int]:
    """Return which columns are texts by the last word of their names; if none is, by having several words."""
    texts = [index for index, values in columns.items() if all(isinstance(v, str | None) for v in values)]
    named = [index for index in texts if last_word(names[index]) in words]
    return named or [index for index in texts if is_prose_column(columns[index])]


def last_word(name: str) -> str:
    """Return the last word of a column's name: Review Text -> text"""
    return re.split(r"[\W_]+", name.strip().lower())[-1]


# Messages


def quote_name(name: str) -> str:
    """Quote a name for an error message, shortened, since it can be any text."""
    name = " ".join(name.split())
    return f'"{name[:40]}…"' if len(name) > 40 else f'"{name}"'


def quote_names(names: Sequence[str]) -> str:
    return ", ".join([quote_name(name) for name in names[:20]] + ["…"] * (len(names) > 20))


def count_columns(row: Sequence[Any]) -> str:
    return f"{len(row)} column{'s' * (len(row) != 1)}"
