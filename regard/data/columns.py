"""Decide which columns of a table hold the fields of a recipe's rows, and read these.

A column is chosen by the user, or has the name of the field or a synonym, or is obvious from the first rows.
Otherwise an error lists the columns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from regard.data.cells import (
    EMPTY,
    Kind,
    count_columns,
    is_class_column,
    is_number,
    parse_cell,
    quote_name,
    quote_names,
)
from regard.data.files import content_suffix, display_name
from regard.data.headers import record_header
from regard.data.nested import Column, nested_columns
from regard.data.reading import Source, current_reading, reading_version, record_source
from regard.data.tables import Row, Table, read_table
from regard.errors import UserError

FEW = 20  # one of this many rows may have an empty cell and is left out; with more, the file is wrong
LONGER = {"words"}  # columns whose option is --words-column: `score` has another --words
NAME = re.compile(r"[^\W\d][\w .:/()#-]{0,39}")  # what may be the name of a column
IDENTIFIER = re.compile(r"[A-Za-z]+[0-9]*(_[A-Za-z0-9]+)+")  # not a word of a text: sentence_en
FIRST = re.compile(r"[:! ]1$")  # where the first row of a file is
NUMBERS = {"", "id", "idx", "index", "row", "number", "unnamed: 0"}  # columns that count rows


@dataclass(frozen=True)
class Field:
    """One of the values that each row of a recipe's data has."""

    name: str  # also of its option: --text
    synonyms: Sequence[str] = ()  # other names of its column, in lower case
    kind: Kind = (
        "text"  # text; label: text or number; words: a list, or separated by spaces; texts: one or a list;
        # file: a path, or the bytes
    )
    required: bool = True
    group: str = ""  # exactly one field of a group is needed
    may_be_empty: bool = False  # in some rows


def option(name: str) -> str:
    """The option that chooses a column, as messages name it."""
    return f"--{name}{'-column' if name in LONGER else ''} NAME"


Guess = Callable[[list[str], list[Row], dict[str, int]], dict[str, int]]


@dataclass(frozen=True)
class Layout:
    """The fields of a recipe's rows, and how to find them without their names."""

    fields: Sequence[Field]
    expected: str  # the needed columns, for messages
    guess: Guess = (
        lambda names, rows, known: {}
    )  # columns of other fields: from all names, rows, and known columns
    in_order: bool = False  # a table without names has the columns of the first fields, in their order
    clean: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: (
        record
    )  # before empty cells are counted
    skips_empty: bool = False  # rows with an empty cell are left out, however many they are
    row: str = "give one for each"  # what to do about a row with too many cells, or too few
    is_header: Callable[[list[str]], bool] | None = (
        None  # decides whether the first cells are names, if names are optional
    )

    def __getitem__(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)

    @property
    def options(self) -> str:
        """The options that choose its columns."""
        return " ".join(f"--{field.name}" for field in self.fields)


Record = tuple[str, dict[str, Any]]  # where it is, and its fields


# Reading


def read_records(path: str, layout: Layout) -> Iterator[Record]:
    """Yield the location of each row of a table, and its fields; required ones are not empty.

    Rows with an empty cell are left out and counted; if they are more than one in twenty, an error is raised,
    unless the layout skips them.
    """
    yield from table_records(read_table(path), layout)


def table_records(table: Table, layout: Layout) -> Iterator[Record]:
    source = record_source(display_name(table.path))
    columns = match_columns(table, layout, source)
    width = "the header" if table.header else "the first row"
    count = len(table.header or ()) or len(table.sample()[0][1])
    rows, parts = 0, [(name, layout[name].kind, column) for name, column in columns.items()]
    for where, cells in table.rows:
        rows += 1
        if len(cells) != count:
            raise UserError(f"{where}: {count_columns(cells)}, but {width} has {count}; {layout.row}")
        values = {
            name: parse_cell(where, name, kind, cells[c.index] if c.key is None else c.value(cells))
            for name, kind, c in parts
        }
        record = layout.clean(values)
        if None in record.values():
            empty = [name for name, value in record.items() if value is None]
            if not all(layout[name].may_be_empty for name in empty):
                name = next(name for name in empty if not layout[name].may_be_empty)
                source.leave_out(where, f"an empty {name}")
                continue
            record |= {name: EMPTY.get(layout[name].kind) for name in empty}
        source.add(record)
        yield where, record
    finish_source(table, layout, source, rows, columns)


def finish_source(
    table: Table, layout: Layout, source: Source, rows: int, columns: Mapping[str, Column]
) -> None:
    """Raise UserError if there was nothing to read, or too much was left out."""
    name = display_name(table.path)
    if not rows:
        raise UserError(f"{name}: a header, but no row below it; add rows")
    missing = sum(count for count, _ in source.left_out.values())
    if missing * FEW > rows and not layout.skips_empty:
        reason, (_, where) = next(iter(source.left_out.items()))
        more = f" ({missing:,} of {rows:,} rows have such cells)" if missing > 1 else ""
        raise UserError(f"{where}: {reason}{more}; fill it in or remove the row")
    for field in layout.fields:
        if field.name in table.late and field.name not in columns:
            raise UserError(
                f"{table.late[field.name]}: it has {field.name}, which the rows before do not have; "
                "give every row the same keys"
            )


# Which column is which


def match_columns(table: Table, layout: Layout, source: Source) -> dict[str, Column]:
    """Return the column of each field that the table has, and record them; decide if it has a header."""
    reading = current_reading()
    names = {field.name for field in layout.fields}
    if unknown := [name for name in reading.columns if name not in names]:
        raise UserError(f"--{unknown[0]}: not a column of such data; they have {layout.options}")
    chosen = dict(reading.columns)
    rows = table.sample()
    if table.header is None and rows and has_header(rows, layout, {**reading.usual_columns, **chosen}):
        table.take_header()
        rows = rows[1:]
        if layout.in_order and content_suffix(table.path) in (".tsv", ""):  # which may have none
            record_header(table.where, table.header or [], "row")
    columns = list_columns(table, rows)
    matched = {name: choose_column(table, columns, name, wanted) for name, wanted in chosen.items()}
    for name, wanted in reading.usual_columns.items():
        if name in names and name not in matched and (column := find_column(columns, wanted)) is not None:
            matched[name] = column
    matched = match_names(table, columns, layout, matched)
    if missing_fields(layout, matched):
        matched, source.is_guess = guess_columns(table, columns, rows, layout, matched)
    if missing := missing_fields(layout, matched):
        cells = [str(cell) for cell in (rows[0][1] if rows else ())]
        listed = (
            f"the columns are named {quote_names([column.name for column in columns])}"
            if table.header
            else f"{count_columns(columns)} without names that are known, {quote_names(cells)} first"
        )
        raise UserError(
            f"{table.where}: {listed}; needed are {layout.expected}; choose them with "
            f"{' '.join(map(option, missing))}, or by number"
        )
    matched = {field.name: matched[field.name] for field in layout.fields if field.name in matched}
    check_once(table, layout, matched)
    source.columns = {name: column.name for name, column in matched.items()}
    source.is_guess |= any(
        column.name.lower() != name and name not in chosen for name, column in matched.items() if table.header
    )
    return matched


def check_once(table: Table, layout: Layout, matched: Mapping[str, Column]) -> None:
    """Check that a label is not also the text; two texts may be the same column."""
    kinds = {field.name: field.kind for field in layout.fields}
    for one, other in combinations(matched, 2):
        if matched[one] == matched[other] and kinds[one] != kinds[other]:
            name = quote_name(matched[one].name)
            raise UserError(f"{table.where}: --{one} and --{other} are both {name}; choose another column")


def guess_columns(
    table: Table, columns: list[Column], rows: list[Row], layout: Layout, matched: dict[str, Column]
) -> tuple[dict[str, Column], bool]:
    """Add the columns that are obvious, and return whether any is a guess: in files without names, the order
    of columns is not a guess."""
    known = {name: column.index for name, column in matched.items() if column.key is None}
    guesses = layout.guess([column.name for column in columns], expand_rows(columns, rows), known)
    if guesses:
        return matched | {name: columns[index] for name, index in guesses.items()}, True
    missing = missing_fields(layout, matched)
    if layout.in_order and not matched and len(columns) == len(missing):
        return dict(zip(missing, columns, strict=True)), table.header is not None
    return matched, False


def missing_fields(layout: Layout, matched: Mapping[str, Column]) -> list[str]:
    """Return the names of needed fields that are missing; the first one of a group."""
    groups = {layout[name].group for name in matched}
    missing: dict[str, str] = {}
    for field in layout.fields:
        needed = field.group not in groups if field.group else field.required and field.name not in matched
        if needed:
            missing.setdefault(field.group or field.name, field.name)
    return list(missing.values())


def match_names(
    table: Table, columns: list[Column], layout: Layout, matched: Mapping[str, Column]
) -> dict[str, Column]:
    """Return the columns that are chosen, and those that have the name of another field or a synonym."""
    result = dict(matched)
    groups = {layout[name].group for name in matched} - {""}
    if table.header is None:
        return result
    open_fields = [field for field in layout.fields if field.name not in result and field.group not in groups]
    for closeness in range(3):  # the field's name, its singular, and names that are known for it
        for field in open_fields:
            if field.name in result or (
                closeness and field.group and field.group in {layout[n].group for n in result}
            ):
                continue
            names = ({field.name}, {field.name.removesuffix("s")}, set(field.synonyms))[closeness]
            used = set(result.values())
            free = [
                c for c in columns if c not in used and (field.kind in ("any", "file") or not c.has_objects)
            ]
            fitting = [column for column in free if normalize(column.name) in names]
            fitting = fitting or [c for c in free if c.key is not None and normalize(c.key) in names]
            if len(fitting) > 1:
                raise UserError(
                    f"{table.where}: {' and '.join(quote_name(column.name) for column in fitting[:4])} may "
                    f"be the {field.name}, which may be there only once; choose with {option(field.name)}, "
                    "or by number"
                )
            if fitting:
                result[field.name] = fitting[0]
    for group in {field.group for field in open_fields if field.group}:
        both = [field.name for field in layout.fields if field.group == group and field.name in result]
        if len(both) > 1:
            raise UserError(
                f"{table.where}: the columns are named {quote_names(table.header)}; choose "
                f"{' or '.join(both)}, whichever is to be learned, with "
                f"{' or '.join(map(option, both))}"
            )
    return result


def list_columns(table: Table, rows: Sequence[Row]) -> list[Column]:
    """Return all columns of a table, and the keys of those that hold objects."""
    names = table.header or [str(number) for number in range(1, len(rows[0][1]) + 1 if rows else 1)]
    columns, nested = [], []
    for index, name in enumerate(names):
        column, *inner = nested_columns(
            index, name, [cells[index] for _, cells in rows if index < len(cells)]
        )
        columns.append(column)
        nested += inner
    return columns + nested


def expand_rows(columns: Sequence[Column], rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are complete, with a cell for each of the columns."""
    width = max((column.index for column in columns), default=-1) + 1
    return [
        (where, [column.value(cells) for column in columns]) for where, cells in rows if len(cells) == width
    ]


def choose_column(table: Table, columns: Sequence[Column], field: str, wanted: str) -> Column:
    """Return the column that the user has chosen, by its name or its number."""
    column = find_column(columns, wanted)
    if (
        column is not None
        and normalize(column.name) == normalize(wanted)
        and sum(each.name == column.name for each in columns) > 1
    ):
        raise UserError(
            f"{table.where}: several columns are named {quote_name(wanted)}; choose by number: --{field} "
            f"{column.index + 1}"
        )
    if column is None:
        raise UserError(
            f"{table.where}: no column {quote_name(wanted)} (--{field}); there are "
            + (
                quote_names([c.name for c in columns])
                if table.header
                else f"{count_columns(columns)} without names"
            )
        )
    return column


def find_column(columns: Sequence[Column], wanted: str) -> Column | None:
    """Return the column of a name, or under a key, or with a number from 1."""
    tests: list[Callable[[Column], bool]] = [
        lambda column: column.name == wanted,
        lambda column: normalize(column.name) == normalize(wanted),
        lambda column: column.key is not None and normalize(column.key) == normalize(wanted),
        lambda column: column.key is None and str(column.index + 1) == wanted.strip(),
    ]
    for test in tests:
        if (column := next(filter(test, columns), None)) is not None:
            return column
    return None


def normalize(name: str) -> str:
    return name.strip().lower()


# Headers


def has_header(rows: Sequence[Row], layout: Layout, chosen: Mapping[str, str]) -> bool:
    """Return whether the first row of a file has the names of its columns."""
    where, cells = rows[0]
    cells = [str(cell).strip() for cell in cells]
    names = [normalize(cell) for cell in cells]
    if layout.in_order and not FIRST.search(where):  # a blank line before it means that there are no names
        return False
    if layout.is_header is not None and (len(cells) == 2 or reading_version() < 3):
        if layout.is_header(cells):
            return True
        if reading_version() < 3:
            return False
    if any(normalize(wanted) in names and not wanted.isdecimal() for wanted in chosen.values()):
        return True
    known = {
        field.name: Column(0, "") for field in layout.fields if {field.name, *field.synonyms} & set(names)
    }
    if not missing_fields(layout, known) and not (layout.in_order and len(cells) == 2):
        return True
    if layout.in_order:
        is_named = layout.is_header is not None and any(map(layout.is_header, combinations_of_two(cells)))
        return is_named or all(IDENTIFIER.fullmatch(cell) for cell in cells)
    if len(set(names)) < len(names) or not all(NAME.fullmatch(name) or not name for name in names):
        return False
    return any(name == field.name for name in names for field in layout.fields) or stands_out(rows)


def combinations_of_two(cells: Sequence[str]) -> list[list[str]]:
    is_named = all(NAME.fullmatch(cell) or not cell for cell in cells)
    return [list(pair) for pair in combinations(cells, 2)] if is_named else []


def stands_out(rows: Sequence[Row]) -> bool:
    """Return whether the first row differs in kind from the rows below it, in any column."""
    names, below = rows[0][1], [cells for _, cells in rows[1:] if len(cells) == len(rows[0][1])]
    if len(below) < 2:
        return False
    for index, name in enumerate(names):
        values = [str(cells[index]).strip() for cells in below]
        if all(map(is_number, values)) and not is_number(name):
            return True
        if is_class_column(values) and name.strip() not in values:
            return True
    return False
