"""Read tables: rows of cells in columns, from text files, and from datasets on the hub.

A new format is a function from a path to a `Table`, and its line in READERS.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from regard.data.archives import path_exists
from regard.data.binary_tables import read_arrow, read_excel
from regard.data.cells import quote_names
from regard.data.files import (
    CONVERT,
    content_suffix,
    decode_utf8,
    display_name,
    empty_file,
    load_hub_dataset,
    missing_file,
    open_text,
    read_jsonl,
    read_lines,
    read_tsv,
)
from regard.data.json_shapes import coco_captions, has_list, has_row_keys, is_grid, is_wrapper, json_columns
from regard.data.memory import find_table, is_memory
from regard.data.reading import reading_version, record_note
from regard.data.tmx import read_units
from regard.errors import UserError, first_line

Row = tuple[str, list[Any]]  # where it is, for messages, and its cells

SAMPLE = 200  # rows from which columns are guessed
DELIMITERS = ",;|\t"  # of .csv files


@dataclass
class Table:
    """Rows of cells; all have the length of the first one."""

    path: str
    header: list[str] | None  # the names of the columns; None: the first row may have them
    rows: Iterator[Row]
    where: str  # of the header
    late: dict[str, str] = field(
        default_factory=dict
    )  # columns that only occur after the sample, and their locations

    def sample(self) -> list[Row]:
        """Return the first rows, which remain to be read."""
        first = list(islice(self.rows, SAMPLE))
        self.rows = chain(first, self.rows)
        return first

    def take_header(self) -> None:
        """Take the first row for the names of the columns."""
        self.where, cells = next(self.rows)
        self.header = [str(cell).strip() for cell in cells]


def is_table(path: str) -> bool:
    """Return whether a name of a file, of standard input or of a dataset stands for a table."""
    return path == "-" or path.startswith("hf:") or is_memory(path) or content_suffix(path) in READERS


def read_table(path: str) -> Table:
    """Open a table by its suffix; standard input ("-") by its first lines. Raise UserError if it is empty."""
    if path.startswith("hf:"):
        return _read_hub(path)
    if is_memory(path):
        header, cells = find_table(path)
        return Table(path, header, ((f"row {n}", row) for n, row in enumerate(cells, 1)), "the data")
    suffix = content_suffix(path)
    if path != "-" and suffix not in READERS:
        if not path_exists(path):
            raise missing_file(path)
        advice = CONVERT.get(suffix, "")
        raise UserError(f"{path}: not a table{advice}; give {' '.join(READERS)}, or rename it")
    table = _read_standard_input(path) if path == "-" else READERS[suffix](path)
    if not table.sample() and not table.header:
        raise empty_file(path)
    return table


# Text


def _read_standard_input(path: str) -> Table:
    """Read cells between tabs, JSON lines, or CSV, depending on the first lines."""
    lines = read_lines(path)
    first = list(islice(lines, SAMPLE))
    beginning = next((line for line in first if line.strip()), b"")
    everything = chain(first, lines)
    if b"\t" not in beginning:
        if beginning.lstrip().startswith(b"{"):
            return read_jsonl_table(path, everything)
        texts = [line.decode(errors="replace") for line in first]
        delimiter = choose_delimiter(texts)
        widths = _widths(texts, delimiter)
        usual = max(widths, key=widths.count, default=1)
        if usual > 1 and widths.count(usual) * 2 > len(widths):
            record_note(f"standard input is read as .csv, with {delimiter!r} between cells")
            return _read_csv(path, everything)
    return _read_tsv(path, everything)


def _read_tsv(path: str, lines: Iterable[bytes] | None = None) -> Table:
    return Table(path, None, _without_blanks(read_tsv(path, lines)), f"{display_name(path)}:1")


NAMED_DELIMITER = re.compile(r"\ufeff?sep=(.)\s*", re.IGNORECASE)  # a first line for Excel


def _read_csv(path: str, lines: Iterable[bytes] | None = None) -> Table:
    numbered = enumerate(read_lines(path) if lines is None else lines, 1)
    texts = (decode_utf8(line, path, number) for number, line in numbered)
    first = list(islice(texts, SAMPLE))
    delimiter = choose_delimiter(first)
    if first and NAMED_DELIMITER.fullmatch(first[0]):
        first[0] = "\n"  # lines keep their numbers
    rows = _parse_csv(path, chain(first, texts), delimiter)
    return Table(path, None, _without_blanks(rows), f"{display_name(path)}:1")


def _parse_csv(path: str, lines: Iterable[str], delimiter: str) -> Iterator[Row]:
    rows = csv.reader(lines, strict=True, delimiter=delimiter)
    while True:
        where = f"{display_name(path)}:{rows.line_num + 1}"  # the first line of the row
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(
                f"{where}: not CSV ({first_line(error)}); put a text with commas, quotes or newlines in "
                'quotes, and double the quotes in it: "so ""to"" say"'
            ) from None
        yield where, cells


def choose_delimiter(lines: Sequence[str]) -> str:
    """Return the separator of CSV: the one that the first line names, or the one with which all rows have the
    same number of cells; a comma, if that is not unique."""
    if lines and (named := NAMED_DELIMITER.fullmatch(lines[0])):
        return named[1]
    lines = [line for line in lines if line.strip()]
    widths = {delimiter: _widths(lines, delimiter) for delimiter in DELIMITERS}
    even = [delimiter for delimiter, each in widths.items() if len(set(each)) == 1 and each[0] > 1]
    first = [delimiter for delimiter in DELIMITERS if max(_widths(lines[:1], delimiter), default=1) > 1]
    return next(iter([d for d in even if d in first] or first), ",")


def _widths(lines: Sequence[str], delimiter: str) -> list[int]:
    """Return the number of cells of each row; the last one may be incomplete."""
    try:
        rows = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []
    return rows[:-1] if len(rows) > 1 else rows


def _without_blanks(rows: Iterable[Row]) -> Iterator[Row]:
    return ((where, cells) for where, cells in rows if len(cells) > 1 or "".join(cells).strip())


def read_jsonl_table(path: str, lines: Iterable[bytes] | None = None) -> Table:
    """Return the table of a file with an object on each line; `lines` are already read."""
    return _objects(path, read_jsonl(path, lines))


def _objects(path: str, objects: Iterator[tuple[str, Any]]) -> Table:
    """Return the table of objects, whose keys are the columns; a missing one is an empty cell."""
    first = list(islice(objects, SAMPLE))
    for where, value in first:
        _check_object(where, value)
    header = list(dict.fromkeys(key for _, value in first for key in value))
    late: dict[str, str] = {}

    def rows() -> Iterator[Row]:
        for where, value in chain(first, objects):
            _check_object(where, value)
            if len(value) > len(header) or any(key not in header for key in value):
                for key in value:
                    if key not in header:
                        late.setdefault(key, where)
            yield where, [value.get(key) for key in header]

    return Table(path, header, rows(), first[0][0] if first else path, late)


def _check_object(where: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise UserError(f'{where}: not an object; write each as {{"text": "...", "label": "..."}}')


def _read_json(path: str) -> Table:
    with open_text(path) as file:
        text = decode_utf8(file.read(), path).removeprefix("\ufeff")
    if not text.strip():
        raise empty_file(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if str(error).startswith("Extra data"):  # one object on each line, as some write it
            return read_jsonl_table(path)
        raise UserError(
            f"{display_name(path)}: not JSON ({first_line(error)}); write a list of objects"
        ) from None
    return table_of_json(path, value)


def table_of_json(path: str, value: Any) -> Table:
    """Return the table in a JSON value: a list of objects or of lists, or an object of columns; also under a
    key such as "data", with or without the names of the columns beside it."""
    name = display_name(path)

    def number(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        return ((f"{name} row {n}", row) for n, row in enumerate(rows, 1))

    if isinstance(value, dict) and isinstance(value.get("annotations"), list) and "images" in value:
        return Table(path, ["image", "caption"], number(coco_captions(name, value)), name)
    header = None
    while isinstance(value, dict):
        if not is_wrapper(value):
            if is_grid(value) and has_row_keys(value):
                value = list(value.values())
                break
            if (columns := json_columns(value)) is not None:
                return Table(path, list(value), number(map(list, zip(*columns, strict=True))), name)
        lists = [key for key, inner in value.items() if isinstance(inner, list) and inner]
        lists = lists or [key for key, inner in value.items() if has_list(inner)]
        key = "data" if "data" in lists else lists[0] if len(lists) == 1 else None
        if key is None:
            several = f", but several, {quote_names(lists)}: give each a file" if lists else ""
            raise UserError(
                f'{name}: no list of rows{several}; write [{{"text": "..."}}, ...] or {{"data": [...]}}, '
                'or columns: {"text": [...], "label": [...]}'
            )
        if isinstance(value.get("columns"), list):
            header = [str(column) for column in value["columns"]]
        value = value[key]
    if not isinstance(value, list):
        raise UserError(f'{name}: no list of rows; write it as [{{"text": "...", "label": "..."}}, ...]')
    if not value:
        raise empty_file(path)
    if isinstance(value[0], list):
        for where, row in number(value):
            if not isinstance(row, list):
                raise UserError(f"{where}: not a list, as the rows before are; give all rows one form")
        return Table(path, header, number(value), name)
    return _objects(path, number(value))


# The hub


def _read_hub(path: str) -> Table:
    return hub_table(path, *load_hub_dataset(path))


def hub_table(path: str, dataset: Any, header: list[str]) -> Table:
    """Return the table of a dataset on the hub, with the names of these columns."""
    features = getattr(dataset, "features", None) or {}
    names = {name: class_names_of(features.get(name)) for name in header}
    rows = ((f"{path} row {n}", [row.get(name) for name in header]) for n, row in enumerate(dataset, 1))
    return Table(path, header, name_classes(rows, [names[name] for name in header]), path)


def class_names_of(feature: Any) -> list[str] | None:
    """Return the names of the classes that the numbers in a column of the package datasets stand for."""
    while feature is not None:
        names = feature.get("names") if isinstance(feature, dict) else getattr(feature, "names", None)
        if names:
            return list(names)
        inner = feature.get("feature") if isinstance(feature, dict) else getattr(feature, "feature", None)
        feature = inner
    return None


def name_classes(rows: Iterable[Row], names: Sequence[list[str] | None]) -> Iterator[Row]:
    """Yield the rows with names for numbers of classes, in cells or in lists."""

    def name(where: str, value: Any, known: list[str]) -> Any:
        if isinstance(value, list):
            return [name(where, each, known) for each in value]
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if not 0 <= value < len(known):
            raise UserError(f"{where}: the label {value} has no name; choose a split with labels")
        return known[value]

    for where, cells in rows:
        yield (
            where,
            [
                cell if known is None else name(where, cell, known)
                for cell, known in zip(cells, names, strict=True)
            ],
        )


# Parquet, Arrow, Excel


def _read_arrow(path: str) -> Table:
    header, features, rows = read_arrow(path)
    return Table(
        path, header, name_classes(rows, [class_names_of(features.get(name)) for name in header]), path
    )


def _read_excel(path: str) -> Table:
    """Rows may be shorter than the first one: empty cells at their ends are not written."""
    rows = read_excel(path)
    first = next(rows, None)
    if first is None:
        raise empty_file(path)
    width = max((n for n, cell in enumerate(first[1], 1) if cell), default=0)

    def even() -> Iterator[Row]:
        for where, cells in chain([first], rows):
            filled = max((n for n, cell in enumerate(cells, 1) if cell), default=0)
            yield where, (cells + [""] * width)[: max(width, filled)]

    return Table(path, None, even(), path)


def _read_tmx(path: str) -> Table:
    """A column for each language of the first units."""
    units = read_units(path)
    first = list(islice(units, SAMPLE))
    languages = list(dict.fromkeys(language for _, unit in first for language in unit))
    rows = ((where, [unit.get(name) for name in languages]) for where, unit in chain(first, units))
    return Table(path, languages, rows, first[0][0] if first else path)


READERS: dict[str, Callable[[str], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": read_jsonl_table,
    ".json": _read_json,
    ".parquet": _read_arrow,
    ".arrow": _read_arrow,
    ".feather": _read_arrow,
    ".xlsx": _read_excel,
    ".tmx": _read_tmx,
}
SUFFIXES = frozenset(READERS)


def folder_suffixes(earlier: Set[str]) -> Set[str]:
    """Return the suffixes of the files that are read in a folder; version 2 reads only `earlier` ones."""
    return earlier | SUFFIXES if reading_version() > 2 else earlier
