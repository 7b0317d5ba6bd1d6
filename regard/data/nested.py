"""Columns of tables, and of the objects in their cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEPTH = 2  # of objects in objects whose keys are columns


@dataclass(frozen=True)
class Column:
    """A column of a table, or of the values under a key of its objects, or of objects in these."""

    index: int
    name: str
    keys: tuple[str, ...] = ()
    has_objects: bool = False  # objects, whose keys are columns

    @property
    def key(self) -> str | None:
        return self.keys[-1] if self.keys else None

    def value(self, cells: Sequence[Any]) -> Any:
        cell = cells[self.index]
        for key in self.keys:
            cell = cell.get(key) if isinstance(cell, dict) else None
        return cell


def nested_columns(index: int, name: str, values: Sequence[Any], keys: tuple[str, ...] = ()) -> list[Column]:
    """Return the column of these values, and those of the keys of its objects, up to DEPTH levels."""
    objects = [value for value in values if isinstance(value, dict)] if len(keys) < DEPTH else []
    inner = dict.fromkeys(key for value in objects for key in value)
    column = Column(index, name, keys, has_objects=bool(inner))
    return [
        column,
        *(
            each
            for key in inner
            for each in nested_columns(
                index, f"{name}.{key}", [value.get(key) for value in objects], (*keys, key)
            )
        ),
    ]
