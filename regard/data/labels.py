"""Texts with something known about them: a class or a score, a tag for every word, or an answer in them."""

import csv
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar

from regard.errors import Mistake
from regard.text import one_line

from .reading import decoded, empty, holds, in_folder, json_rows, lines, missing, shown, unbroken

T = TypeVar("T")
Tagged = tuple[list[str], list[str]]  # the words of a sentence, and the tag of each
Row = tuple[str, list[Any]]  # where it stands, and its cells

SUFFIXES = {".tsv", ".csv", ".jsonl"}
TAGGED = {".conll", ".tsv", ".txt"}  # to look for in a folder
COLUMNS = ["text", "other", "label", "score"]
EXPECTED = "text, other too if it is about two texts, and label or score"
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
BLANK = re.compile(r"[ \t]+")


@dataclass
class Labels:
    """Texts, or pairs of them, each with its class or its score."""

    texts: list[str]
    others: list[str] | None  # the second text of each, where they are pairs
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
        """As a header names them."""
        given = (self.texts, self.others, self.labels, self.scores)
        return [name for name, column in zip(COLUMNS, given, strict=True) if column is not None]

    def rows(self, numbers: Sequence[int]) -> "Labels":
        """Only these."""

        def of(column: list[T] | None) -> list[T] | None:
            return None if column is None else [column[number] for number in numbers]

        texts, where = of(self.texts) or [], of(self.where or None) or []
        return Labels(texts, of(self.others), of(self.labels), of(self.scores), where)

    def describe(self) -> str:
        return f"{len(self):,} {self.kind if self.kind == 'score' else 'label'}{'s' * (len(self) != 1)}"


# Reading


def labelled(paths: Sequence[str]) -> Labels:
    """The rows of .tsv, .csv and .jsonl files, of folders of them, of standard input ("-", as .tsv) and of
    the hub ("hf:...").

    All have the same columns, in any order: text, perhaps other, and label or score; more are passed over.
    """
    cells: dict[str, list[Any]] = {}
    where: list[str] = []
    first = ""
    for file in _files(paths, SUFFIXES):
        rows = _reader(file)(file)
        named = next(rows, None)
        if named is None:
            raise empty(file)
        place, header = named
        taken = _columns(place, header)
        first = first or file
        cells = cells or {name: [] for name in taken}
        if taken != list(cells):
            raise Mistake(
                f"{shown(file)}: {' '.join(taken)}, but {shown(first)} has {' '.join(cells)}; "
                "give files with the same columns"
            )
        columns = [(name, header.index(name), cells[name]) for name in taken]
        before = len(where)
        for place, row in rows:
            if len(row) != len(header):
                raise Mistake(f"{place}: {_count(row)}, but the header has {len(header)}; give one for each")
            for name, index, column in columns:
                column.append(_cell(place, name, row[index]))
            where.append(place)
        if len(where) == before:
            raise Mistake(f"{shown(file)}: a header, but no row below it; add some or give another file")
    if not cells:
        raise Mistake(f"no file of labelled texts: give a .tsv, .csv or .jsonl with {EXPECTED}")
    return Labels(cells["text"], cells.get("other"), cells.get("label"), cells.get("score"), where)


def _files(paths: Sequence[str], suffixes: Set[str]) -> list[str]:
    folded = [in_folder(path, suffixes) if os.path.isdir(path) else [path] for path in map(str, paths)]
    return [file for files in folded for file in files]


def _reader(file: str) -> Callable[[str], Iterator[Row]]:
    if file.startswith("hf:"):
        return _hub
    readers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}
    if file != "-" and holds(file) not in readers:
        if not os.path.exists(file):
            raise missing(file)
        raise Mistake(f"{file}: labelled texts are in .tsv, .csv or .jsonl; give it one of these names")
    return _tsv if file == "-" else readers[holds(file)]


def _columns(where: str, header: Sequence[str]) -> list[str]:
    """Those of a header's that are used, in our order."""
    taken = [name for name in COLUMNS if name in header]
    there = _listed(header)
    if "text" not in taken or not {"label", "score"} & set(taken):
        raise Mistake(f"{where}: the columns are named {there}; needed are {EXPECTED}")
    if {"label", "score"} <= set(taken):
        raise Mistake(
            f"{where}: the columns are named {there}; rename label or score, whichever is not to be learnt"
        )
    for name in taken:
        if list(header).count(name) > 1:
            raise Mistake(f"{where}: the columns are named {there}; {name} may be there only once")
    return taken


def _clipped(name: str) -> str:
    """What stands where a name should be may be anything."""
    name = " ".join(name.split())
    return f'"{name[:40]}…"' if len(name) > 40 else f'"{name}"'


def _listed(names: Sequence[str]) -> str:
    return ", ".join([_clipped(name) for name in names[:20]] + ["…"] * (len(names) > 20))


def _count(row: Sequence[Any]) -> str:
    return f"{len(row)} column{'s' * (len(row) != 1)}"


def _cell(where: str, name: str, value: Any) -> str | float:
    if name == "score":
        return _score(where, value)
    if name == "label" and isinstance(value, int):
        value = str(value).lower()  # 1, or JSON's true
    if not isinstance(value, str):
        raise Mistake(f'{where}: no string under "{name}", but {_clipped(repr(value))}; give one')
    value = unbroken(value, where).strip()
    if not value:
        raise Mistake(f"{where}: an empty {name}; fill it in or remove the row")
    return value


def _score(where: str, value: Any) -> float:
    try:
        score = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        score = float("nan")
    if not isfinite(score):
        raise Mistake(f"{where}: the score {_clipped(str(value))} is not a number; write it like 3.5")
    return score


def _tsv(path: str) -> Iterator[Row]:
    header: list[str] | None = None
    for number, line in enumerate(lines(path), 1):
        cells = decoded(line, path, number).rstrip("\r\n").split("\t")
        if header is None:
            cells = [cell.strip() for cell in cells]
        if len(cells) > 1 or cells[0].strip():
            header = header or cells
            yield f"{shown(path)}:{number}", cells


def _csv(path: str) -> Iterator[Row]:
    rows = csv.reader((decoded(line, path, n) for n, line in enumerate(lines(path), 1)), strict=True)
    header: list[str] | None = None
    while True:
        where = f"{shown(path)}:{rows.line_num + 1}"  # where the row begins; it may have more lines
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise Mistake(
                f"{where}: not CSV ({one_line(error)}); a text with commas, quotes or newlines stands in "
                'quotes, with each of its own doubled: "so ""to"" say"'
            ) from None
        if header is None:
            cells = [cell.strip() for cell in cells]
        if len(cells) > 1 or "".join(cells).strip():
            header = header or cells
            yield where, cells


def _jsonl(path: str) -> Iterator[Row]:
    header: list[str] | None = None
    for where, row in json_rows(path):
        if not isinstance(row, dict):
            raise Mistake(f'{where}: no object; a line looks like {{"text": "...", "label": "..."}}')
        if header is None:
            header = _columns(where, list(row))
            yield where, header
        there = [name for name in COLUMNS if name in row]
        if there != header:
            raise Mistake(
                f"{where}: it has {' '.join(there) or 'no text'}, but the first line has {' '.join(header)}; "
                "give every line the same"
            )
        yield where, [row[name] for name in header]


def _hub(path: str) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise Mistake(f"{path}: needs the datasets package: pip install 'regard[datasets]'") from None
    name, _, split = path.removeprefix("hf:").partition(":")
    owner_and_name, config = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:]) or None
    try:
        rows = datasets.load_dataset(owner_and_name, config, split=split or "train")
        header = list(rows.column_names)
    except Exception as error:  # from the network, the hub or the package: all of them are about this name
        why = one_line(error)
        raise Mistake(f"{path}: cannot be loaded ({why}); the form is hf:OWNER/NAME/CONFIG:SPLIT") from None
    yield path, header
    names = getattr((getattr(rows, "features", None) or {}).get("label"), "names", None)  # of a ClassLabel
    for number, row in enumerate(rows, 1):
        where = f"{path} row {number}"
        if names and isinstance(row.get("label"), int):
            if not 0 <= row["label"] < len(names):
                raise Mistake(f"{where}: the label {row['label']} has no name; choose a split with labels")
            row = {**row, "label": names[row["label"]]}
        yield where, [row[name] for name in header]


# Classes


def classes(labels: Iterable[str]) -> list[str]:
    """The names of all classes in their order: numbers by their size, then words."""
    names = sorted(set(labels), key=_in_order)
    if len(names) < 2:
        only = f"only the class {_clipped(names[0])}" if names else "no class"
        raise Mistake(f"{only} in the labels; to tell classes apart takes texts of two or more")
    return names


def _in_order(name: str) -> tuple[bool, float, str]:
    number = NUMBER.fullmatch(name)
    return (not number, float(name) if number else 0.0, name)


def numbered(table: Labels, names: Sequence[str]) -> list[int]:
    """The place among the classes' names of every row's label."""
    assert table.labels is not None, "scores have no classes"
    place = {name: index for index, name in enumerate(names)}
    for row, label in enumerate(table.labels):
        if label not in place:
            where = f"{table.where[row]}: " if table.where else ""
            raise Mistake(
                f"{where}the label {_clipped(label)} is not one of those to learn: {_listed(names)}"
            )
    return [place[label] for label in table.labels]


def split_labels(table: Labels, valid: Labels | None, holdout: float) -> tuple[Labels, Labels]:
    """Rows to learn from and to measure on: `valid`, if given; or every tenth of each class, for a holdout of
    0.1. Scores are one class. If no class has so many rows, the last of each that has two or more."""
    if valid is not None:
        if valid.columns != table.columns:
            raise Mistake(
                f"the validation data have {' '.join(valid.columns)}, but the training data "
                f"{' '.join(table.columns)}; give both the same columns"
            )
        return table, valid
    train, held = split_rows(table.labels or [""] * len(table), holdout)
    return table.rows(train), table.rows(held)


def split_rows(labels: Sequence[str], holdout: float) -> tuple[list[int], list[int]]:
    """The numbers of rows to learn from and to measure on."""
    of_class = defaultdict(list)
    for row, label in enumerate(labels):
        of_class[label].append(row)
    held: set[int] = set()
    if holdout > 0:
        every = max(2, round(1 / holdout))
        held.update(row for rows in of_class.values() for row in rows[every - 1 :: every])
        held = held or {rows[-1] for rows in of_class.values() if len(rows) > 1}
    return [row for row in range(len(labels)) if row not in held], sorted(held)


# Tags


def tagged(paths: Sequence[str]) -> list[Tagged]:
    """The sentences of files in CoNLL's columns: a word first and its tag last on every line, with a blank
    line after each sentence; lines of -DOCSTART- are passed over."""
    return [sentence for file in _files(paths, TAGGED) for sentence in _conll(file)]


def _conll(path: str) -> list[Tagged]:
    found: list[Tagged] = [([], [])]
    columns = 0
    for number, line in enumerate(lines(path), 1):
        cells = BLANK.split(decoded(line, path, number).strip(" \t\r\n"))
        if not cells[0] or cells[0].startswith("-DOCSTART-"):
            if found[-1][0]:
                found.append(([], []))
            continue
        where = f"{shown(path)}:{number}"
        if len(cells) < 2:
            raise Mistake(f"{where}: 1 column; a line is a word, spaces or a tab, and its tag")
        columns = columns or len(cells)
        if len(cells) != columns:  # a blank inside a word would make its first part the word
            raise Mistake(f"{where}: {_count(cells)}, but {columns} before; give every word the same")
        found[-1][0].append(cells[0])
        found[-1][1].append(cells[-1])
    found = [sentence for sentence in found if sentence[0]]
    if not found:
        raise Mistake(f"{shown(path)}: no sentence in it; a line is a word, spaces or a tab, and its tag")
    return found


# Answers


@dataclass(frozen=True)
class Span:
    """A question, and its answer: context[start : start + len(answer)]."""

    question: str
    context: str
    answer: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.answer)


def spans(paths: Sequence[str]) -> list[Span]:
    """Questions about a context that holds the answer, from .jsonl files, folders and standard input ("-");
    without a start, in characters, it is where the answer first stands."""
    return [span for file in _files(paths, {".jsonl"}) for span in _spans(file)]


def _spans(path: str) -> list[Span]:
    if path != "-" and holds(path) != ".jsonl":
        if not os.path.exists(path):
            raise missing(path)
        raise Mistake(f"{path}: answers are in a .jsonl with question, context and answer; give one")
    found = []
    for where, row in json_rows(path):
        match row:
            case {"question": str(question), "context": str(context), "answer": str(answer)}:
                pass
            case _:
                raise Mistake(
                    f'{where}: no answer; a line looks like {{"question": "...", "context": "...", '
                    '"answer": "...", "start": 0}, where start may be left out'
                )
        for name, text in (("question", question), ("context", context), ("answer", answer)):
            if not unbroken(text, where).strip():
                raise Mistake(f"{where}: an empty {name}; fill it in or remove the line")
        start = row.get("start")
        if start is None:
            start = context.find(answer)
            if start < 0:
                raise Mistake(
                    f"{where}: the answer {_clipped(answer)} is not in the context, letter by letter"
                )
        elif isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise Mistake(f"{where}: start {_clipped(str(start))} is no place; it counts characters from 0")
        elif context[start : start + len(answer)] != answer:
            there = _clipped(context[start : start + len(answer)])
            raise Mistake(
                f"{where}: at start {start} of the context is {there}, not the answer {_clipped(answer)}; "
                "leave start out to have it found"
            )
        found.append(Span(question, context, answer, start))
    if not found:
        raise empty(path)
    return found
