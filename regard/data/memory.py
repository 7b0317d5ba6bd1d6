"""Data of a Python program as tables: lists, dictionaries, data frames and iterators, each with a name."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError

PREFIX = "memory:"  # of the names, which end with a SHA-256 of the data

INPUTS = ("text", "source", "question", "sentence", "image", "audio")  # columns of inputs to a model

Columns = list[str]
Cells = list[Any]

_tables: dict[str, tuple[Columns, list[Cells]]] = {}  # as long as this process runs


def is_memory(path: str) -> bool:
    return path.startswith(PREFIX) and not path.startswith(f"{PREFIX}//")  # a store of fsspec


def name_data(value: Any) -> str:
    """Return the path of data: a path as it is, and the name of anything else, which `find_table` finds.

    A list of texts is a column "text"; one of dictionaries has their keys for columns, and one of tuples or
    lists has columns without names. A dictionary has a list for each column, and a data frame has its own.
    """
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    header, rows = _to_table(value)
    if not rows:
        raise UserError("the data have no rows; give at least one")
    sha = hashlib.sha256(f"({header!r}, [".encode("utf-8", "surrogatepass"))
    for number, row in enumerate(rows):  # one by one: they may be images
        sha.update(f"{', ' * (number > 0)}{row!r}".encode("utf-8", "surrogatepass"))
    sha.update(b"])")
    name = f"{PREFIX}{sha.hexdigest()}"
    _tables[name] = header, rows
    return name


def name_several(values: Any) -> list[str]:
    """Return the paths of data to evaluate on: one path or several of them, or rows of one table."""
    if isinstance(values, list | tuple) and all(isinstance(value, str | os.PathLike) for value in values):
        return [os.fspath(value) for value in values]
    return [name_data(values)]


def list_inputs(value: Any) -> Any:
    """Return the texts or images of a data frame, which has one column or a column with such a name;
    return anything else unchanged."""
    if not is_frame(value):
        return value
    header, rows = _to_table(value)
    name = header[0] if len(header) == 1 else next((name for name in INPUTS if name in header), None)
    if name is None:
        raise UserError(f"the data frame has the columns {', '.join(header)}; give one of them: frame[NAME]")
    return [row[header.index(name)] for row in rows]


def find_table(name: str) -> tuple[Columns, list[Cells]]:
    """Return the columns and rows of data that this program has named."""
    if name not in _tables:
        raise UserError(f"{name[:20]}…: data of a Python program that has ended; give the same data again")
    return _tables[name]


def is_frame(value: Any) -> bool:
    """Return whether this is a data frame of polars or pandas."""
    return hasattr(value, "to_dicts") or (hasattr(value, "columns") and hasattr(value, "to_dict"))


def _to_table(value: Any) -> tuple[Columns, list[Cells]]:
    if is_frame(value):
        value = value.to_dicts() if hasattr(value, "to_dicts") else value.to_dict("records")
    if isinstance(value, Mapping):
        columns = [[_plain(cell) for cell in column] for column in value.values()]
        if len(set(map(len, columns))) > 1:
            raise UserError("the columns of a dictionary differ in length; give each as many values")
        return [str(name) for name in value], [list(cells) for cells in zip(*columns, strict=True)]
    if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable):
        raise UserError(f"data can't be of type {type(value).__name__}; give a path, a list or a data frame")
    rows = list(value)
    if all(isinstance(row, str) for row in rows):
        return ["text"], [[row] for row in rows]
    if all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(key for row in rows for key in row))
        return [str(name) for name in names], [[_plain(row.get(name)) for name in names] for row in rows]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list | tuple) or len(row) != len(rows[0]):
            raise UserError(
                f"row {number:,} of the data is {str(row)[:40]!r}; give texts alone, dictionaries alone, or "
                "tuples of one length"
            )
    return [str(n) for n in range(1, len(rows[0]) + 1)], [[_plain(cell) for cell in row] for row in rows]


def _plain(cell: Any) -> Any:
    """Return a cell as a file would have it: paths as texts, numbers of numpy as Python's, Pillow's images as
    bytes."""
    if isinstance(cell, Path):
        return str(cell)
    return cell.item() if hasattr(cell, "item") and hasattr(cell, "dtype") else encode_if_image(cell)


def is_pillow_image(value: Any) -> bool:
    return any(base.__module__ == "PIL.Image" for base in type(value).__mro__)


def encode_if_image(value: Any) -> Any:
    """Return the bytes of a file for a Pillow image, and anything else unchanged."""
    if not is_pillow_image(value):
        return value
    from regard.vision.decoding import encode_image  # imports Pillow

    return encode_image(value)
