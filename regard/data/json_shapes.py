"""The shapes that tables have in JSON: objects of rows, of columns, around others, and COCO's captions."""

from collections.abc import Iterator
from typing import Any

from regard.errors import UserError


def coco_captions(name: str, value: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the file and the caption of each annotation, as the captions of COCO are written."""
    try:
        files = {image["id"]: image["file_name"] for image in value["images"]}
    except (TypeError, KeyError):
        raise UserError(
            f'{name}: an image without "id" or "file_name"; give captions as COCO has them'
        ) from None
    for number, annotation in enumerate(value["annotations"], 1):
        where = f"{name} annotation {number}"
        match annotation:
            case {"image_id": int() | str() as image, "caption": str(caption)}:
                if image not in files:
                    raise UserError(f"{where}: no image has the id {image}; add it to images, or remove this")
                yield [files[image], caption]
            case _:
                raise UserError(f'{where}: no "image_id" and "caption"; give COCO\'s captions, not its boxes')


def is_wrapper(value: dict[str, Any]) -> bool:
    """Return whether this is an object around an object with a list of rows."""
    inner = next(iter(value.values())) if len(value) == 1 else None
    lists = [each for each in inner.values() if isinstance(each, list)] if isinstance(inner, dict) else []
    return any(each and isinstance(each[0], dict | list) for each in lists)


def has_list(value: Any, depth: int = 2) -> bool:
    """Return whether this object, or an object in it, has a list that is not empty."""
    return (
        depth > 0
        and isinstance(value, dict)
        and any(
            bool(each) if isinstance(each, list) else has_list(each, depth - 1) for each in value.values()
        )
    )


def is_grid(value: dict[str, Any]) -> bool:
    """Return whether this is an object of objects with equal keys: rows or columns, as pandas writes."""
    keys = [list(inner) if isinstance(inner, dict) else None for inner in value.values()]
    return bool(keys) and bool(keys[0]) and all(each == keys[0] for each in keys)


def has_row_keys(grid: dict[str, dict[str, Any]]) -> bool:
    """Return whether the outer keys stand for rows: they are numbers, or more than the inner ones."""
    outer, inner = list(grid), list(next(iter(grid.values())))
    numbered = [all(key.isdecimal() for key in keys) for keys in (outer, inner)]
    return numbered[0] if numbered[0] != numbered[1] else len(outer) > len(inner)


def json_columns(value: dict[str, Any]) -> list[list[Any]] | None:
    """Return the columns of an object of lists of equal length, or of objects by the row's number, as pandas
    writes them; None for any other object."""
    columns = list(value.values())
    if is_grid(value) and not has_row_keys(value):
        return [list(column.values()) for column in columns]
    if not all(isinstance(column, list) for column in columns) or len(set(map(len, columns))) != 1:
        return None
    is_list_of_rows = len(columns) == 1 and columns[0] and isinstance(columns[0][0], dict)
    return None if is_list_of_rows else columns
