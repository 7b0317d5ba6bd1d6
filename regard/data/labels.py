"""Read texts, or pairs of texts, that have a class or a score each."""

import csv
import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar

from regard.data.files import (
    check_surrogates,
    content_suffix,
    decode_utf8,
    display_name,
    empty_file,
    expand_folders,
    load_hub_dataset,
    missing_file,
    normalize_newlines,
    read_jsonl,
    read_lines,
    read_tsv,
)
from regard.data.splitting import first_held_out, number_groups
from regard.errors import UserError, first_line

T = TypeVar("T")
Row = tuple[str, list[Any]]  # its location, and its cells

SUFFIXES = {".tsv", ".csv", ".jsonl"}
COLUMNS = ["text", "other", "label", "score"]
EXPECTED = "text, then other if the label is about two texts, and label or score"
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass
class LabelledTexts:
    """Texts, or pairs of texts, each with its class or its score."""

    texts: list[str]
    second_texts: list[str] | None  # the second text of each, if they are pairs
    labels: list[str] | None  # either these
    scores: list[float] | None  # or these
    where: list[str] = field(default_factory=list, repr=False, compare=False)  # file:line of each

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def kind(self) -> str:
        return "score" if self.labels is None else "class"

    @property
    def columns(self) -> list[str]:
        """The names of the columns that there are."""
        columns = (self.texts, self.second_texts, self.labels, self.scores)
        return [name for name, column in zip(COLUMNS, columns, strict=True) if column is not None]

    def rows(self, numbers: Sequence[int]) -> "LabelledTexts":
        """Return these rows."""

        def select(column: list[T] | None) -> list[T] | None:
            return None if column is None else [column[number] for number in numbers]

        texts, where = select(self.texts) or [], select(self.where or None) or []
        return LabelledTexts(
            texts, select(self.second_texts), select(self.labels), select(self.scores), where
        )

    def describe(self) -> str:
        return f"{len(self):,} {self.kind if self.kind == 'score' else 'label'}{'s' * (len(self) != 1)}"


# Reading


def read_labels(paths: Sequence[str]) -> LabelledTexts:
    """Read .tsv, .csv and .jsonl files, folders of them, standard input ("-", as .tsv) and datasets on the
    hub ("hf:...").

    All have the same columns, in any order: text, perhaps other, and label or score; others are ignored.
    """
    cells: dict[str, list[Any]] = {}
    where: list[str] = []
    first_file = ""
    for file in list(expand_folders(paths, SUFFIXES)):
        rows = table_rows(file)
        header_row = next(rows, None)
        if header_row is None:
            raise empty_file(file)
        location, header = header_row
        names = _check_header(location, header)
        first_file = first_file or file
        cells = cells or {name: [] for name in names}
        if names != list(cells):
            raise UserError(
                f"{display_name(file)}: columns {' '.join(names)}, but {display_name(first_file)} has "
                f"{' '.join(cells)}; give files with the same columns"
            )
        columns = [(name, header.index(name), cells[name]) for name in names]
        count = len(where)
        for location, row in rows:
            if len(row) != len(header):
                raise UserError(
                    f"{location}: {count_columns(row)}, but the header has {len(header)}; give one for each"
                )
            for name, index, column in columns:
                column.append(_parse_cell(location, name, row[index]))
            where.append(location)
        if len(where) == count:
            raise UserError(f"{display_name(file)}: a header, but no row below it; add rows")
    if not cells:
        raise UserError(f"no file of labelled texts; give a .tsv, .csv or .jsonl with {EXPECTED}")
    return LabelledTexts(cells["text"], cells.get("other"), cells.get("label"), cells.get("score"), where)


def table_rows(file: str) -> Iterator[Row]:
    """Yield the header of a file, then its rows."""
    if file.startswith("hf:"):
        return _hub(file)
    suffix = ".tsv" if file == "-" else content_suffix(file)
    if suffix not in SUFFIXES:
        if not os.path.exists(file):
            raise missing_file(file)
        raise UserError(f"{file}: not a .tsv, .csv or .jsonl; convert it to one of them, or rename it")
    if suffix == ".jsonl":
        return _jsonl(file)
    return _without_blanks(_csv(file) if suffix == ".csv" else read_tsv(file))


def _without_blanks(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows that are not blank, the first of them, which is the header, with its cells stripped."""
    is_header = True
    for where, cells in rows:
        if len(cells) > 1 or "".join(cells).strip():
            yield where, [cell.strip() for cell in cells] if is_header else cells
            is_header = False


def _csv(path: str) -> Iterator[Row]:
    lines = (decode_utf8(line, path, number) for number, line in enumerate(read_lines(path), 1))
    rows = csv.reader(lines, strict=True)
    while True:
        where = f"{display_name(path)}:{rows.line_num + 1}"  # where the row begins; it may have more lines
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


def _jsonl(path: str) -> Iterator[Row]:
    header: list[str] | None = None
    for where, row in read_jsonl(path):
        if not isinstance(row, dict):
            raise UserError(f'{where}: not an object; write each line as {{"text": "...", "label": "..."}}')
        if header is None:
            header = _check_header(where, list(row))
            yield where, header
        names = [name for name in COLUMNS if name in row]
        if names != header:
            raise UserError(
                f"{where}: it has {' '.join(names) or 'no text'}, but the first line has {' '.join(header)}; "
                "give every line the same keys"
            )
        yield where, [row[name] for name in header]


def _hub(path: str) -> Iterator[Row]:
    dataset, header = load_hub_dataset(path)
    yield path, header
    names = getattr((getattr(dataset, "features", None) or {}).get("label"), "names", None)  # of a ClassLabel
    for number, row in enumerate(dataset, 1):
        where = f"{path} row {number}"
        if names and isinstance(row.get("label"), int):
            if not 0 <= row["label"] < len(names):
                raise UserError(f"{where}: the label {row['label']} has no name; choose a split with labels")
            row = {**row, "label": names[row["label"]]}
        yield where, [row[name] for name in header]


# Checks


def _check_header(where: str, header: Sequence[str]) -> list[str]:
    """Return the columns of a header that are used, in the order of COLUMNS."""
    names = [name for name in COLUMNS if name in header]
    columns = f"{where}: the columns are named {quote_names(header)}"
    if "text" not in names or not {"label", "score"} & set(names):
        raise UserError(f"{columns}; needed are {EXPECTED}")
    if {"label", "score"} <= set(names):
        raise UserError(f"{columns}; rename label or score, whichever is not to be learned")
    for name in names:
        if list(header).count(name) > 1:
            raise UserError(f"{columns}; {name} may be there only once")
    return names


def _parse_cell(where: str, name: str, value: Any) -> str | float:
    if name == "score":
        return _parse_score(where, value)
    if name == "label" and isinstance(value, int):
        value = str(value).lower()  # 1, or JSON's true
    if not isinstance(value, str):
        raise UserError(f'{where}: no string under "{name}", but {quote_name(repr(value))}; give one')
    value = normalize_newlines(check_surrogates(value, where)).strip()
    if not value:
        raise UserError(f"{where}: an empty {name}; fill it in or remove the row")
    return value


def _parse_score(where: str, value: Any) -> float:
    try:
        score = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        score = float("nan")
    if not isfinite(score):
        raise UserError(f"{where}: the score {quote_name(str(value))} is not a number; write it like 3.5")
    return score


def quote_name(name: str) -> str:
    """Quote a name for an error message, shortened because anything may be in its place."""
    name = " ".join(name.split())
    return f'"{name[:40]}…"' if len(name) > 40 else f'"{name}"'


def quote_names(names: Sequence[str]) -> str:
    return ", ".join([quote_name(name) for name in names[:20]] + ["…"] * (len(names) > 20))


def count_columns(row: Sequence[Any]) -> str:
    return f"{len(row)} column{'s' * (len(row) != 1)}"


# Classes


def class_names(labels: Iterable[str]) -> list[str]:
    """Return the names of all classes, sorted: numbers by value, then words."""
    names = sorted(set(labels), key=_sort_key)
    if len(names) < 2:
        only = f"only the class {quote_name(names[0])}" if names else "no class"
        raise UserError(f"{only} in the labels; give texts of two or more classes")
    return names


def _sort_key(name: str) -> tuple[bool, float, str]:
    number = NUMBER.fullmatch(name)
    return (not number, float(name) if number else 0.0, name)


def class_ids(table: LabelledTexts, names: Sequence[str]) -> list[int]:
    """Return the index of every row's label in the names of the classes."""
    assert table.labels is not None, "scores have no classes"
    ids = {name: index for index, name in enumerate(names)}
    for row, label in enumerate(table.labels):
        if label not in ids:
            where = f"{table.where[row]}: " if table.where else ""
            raise UserError(
                f"{where}the label {quote_name(label)} is not one of the classes {quote_names(names)}; "
                "correct it or remove the row"
            )
    return [ids[label] for label in table.labels]


# Splitting


def split_labels(
    table: LabelledTexts, valid: LabelledTexts | None, holdout: float
) -> tuple[LabelledTexts, LabelledTexts]:
    """Return rows for training and for validation: `valid`, if given, else as `split_by_class` does.

    Scores count as one class.
    """
    if valid is not None:
        if valid.columns != table.columns:
            raise UserError(
                f"the validation data have the columns {' '.join(valid.columns)}, but the training data "
                f"{' '.join(table.columns)}; give both the same columns"
            )
        return table, valid
    sources = list(zip(table.texts, table.second_texts or table.texts, strict=True))
    train, held_out = split_by_class(table.labels or [""] * len(table), holdout, sources)
    return table.rows(train), table.rows(held_out)


def split_by_class(
    labels: Sequence[str], holdout: float, sources: Sequence[Hashable]
) -> tuple[list[int], list[int]]:
    """Return the numbers of rows for training and for validation: every tenth source of each class, for a
    holdout of 0.1. If no class has so many, the last of each that has two or more.

    Rows with one source stay together; their class is that of the first.
    """
    groups = number_groups(sources).tolist()
    groups_of_class: dict[str, dict[int, None]] = defaultdict(dict)
    class_of_group: dict[int, str] = {}
    for group, label in zip(groups, labels, strict=True):
        groups_of_class[class_of_group.setdefault(group, label)].setdefault(group)
    held_out: set[int] = set()
    if holdout > 0:
        every, of_class = max(2, round(1 / holdout)), [list(each) for each in groups_of_class.values()]
        held_out.update(group for each in of_class for group in each[first_held_out(every) :: every])
        held_out = held_out or {each[-1] for each in of_class if len(each) > 1}
    sides: tuple[list[int], list[int]] = [], []
    for row, group in enumerate(groups):
        sides[group in held_out].append(row)
    return sides
