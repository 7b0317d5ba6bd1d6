"""Settings of all files that are read together, and a record of what was read: files, rows, columns,
notes."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from regard.data.archives import archive_of
from regard.data.recoding import check_encoding

# How files are read and split. In version 1, Windows' line ends stay, a header is a pair, CoNLL-U is not
# known, only PNG, JPEG and WebP images are read, folders named train and val are like any others, and rows
# are held out one by one, even if they share a source. In versions 1 and 2, the first line of a .tsv of
# pairs is a header only if its names are known, web pages and subtitles are plain text, and folders are read
# without them. In versions 1 to 3, running text has tables only of binary formats, .jsonl and datasets on the
# hub only under the key "text", and cells of tables lose the blanks around them; folders of it are read
# without tables but .jsonl, and splits in several files are not known. A resumed run keeps the version that
# it began with.
VERSION = 4
EXAMPLES, LONGEST = 2, 60  # the number of examples that are shown, and their characters
LEFT_OUT = ": left out "  # in a note about files
EXAMPLE = "  example: "  # the beginning of a line with one


# Settings of reading


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """The settings in [data] for reading files, also without a recipe."""

    max_bytes: int | None = None  # bytes that a compressed file may expand to; None: 100 times its size
    version: int = VERSION  # the rules by which files are read and split; a resumed run keeps its own
    fold: int = 0  # the part of the data that is held out, counted from the last one, for train.folds
    stream: bool = False  # read texts while training, and don't copy datasets of the hub to the disk
    columns: dict[str, str] | None = None  # of tables, by field: {text = "review"}; None: by their names
    sheet: str | None = None  # the sheet of Excel files; None: the first
    encoding: str | None = None  # the encoding of texts; None: UTF-8, or UTF-16 with a byte order mark

    def __post_init__(self) -> None:
        if self.max_bytes is not None and not self.max_bytes > 0:
            raise ValueError(f"max_bytes={self.max_bytes} must be more than 0")
        if not 1 <= self.version <= VERSION:
            raise ValueError(f"version={self.version} must be from 1 to {VERSION}")
        if self.fold < 0:
            raise ValueError(f"fold={self.fold} must not be negative")
        if self.encoding is not None:
            check_encoding(self.encoding)


@dataclass
class Source:
    """The record of a file, folder or dataset that is read."""

    name: str
    unit: str = "row"  # the unit that is counted
    rows: int = 0  # that are used
    columns: dict[str, str] = field(default_factory=dict)  # of a table: which column each field is read from
    is_guess: bool = False  # the columns have other names than the fields
    left_out: dict[str, tuple[int, str]] = field(
        default_factory=dict
    )  # the number of rows by reason, and the location of the first
    examples: list[dict[str, str]] = field(default_factory=list)  # the first rows, by field

    def leave_out(self, where: str, reason: str) -> None:
        count, first = self.left_out.get(reason, (0, where))
        self.left_out[reason] = count + 1, first

    def add(self, example: Mapping[str, object]) -> None:
        """Count a row, and keep the first few."""
        self.rows += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append({name: shorten_value(value) for name, value in example.items()})


@dataclass
class Reading:
    """The settings of all files that are read together, and the files."""

    config: ReadConfig = field(default_factory=ReadConfig)
    usual_columns: Mapping[str, str] = field(default_factory=dict)  # of the run, which tables may have
    notes: dict[str, None] = field(default_factory=dict)  # notes for the user, in this order
    files: dict[str, None] = field(default_factory=dict)  # opened so far, in this order
    sources: dict[str, Source] = field(default_factory=dict)  # a record for each

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that tables must have, by field."""
        return self.config.columns or {}


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextlib.contextmanager
def read_together(
    config: ReadConfig | None = None, *, usual_columns: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Reading]:
    """Read files by this configuration with some settings changed, and record those that are opened.

    Other settings are as in the context around it.
    """
    around = current_reading()
    reading = Reading(
        replace(config or around.config, **settings),
        around.usual_columns if usual_columns is None else usual_columns,
    )
    token = _reading.set(reading)
    try:
        yield reading
    finally:
        _reading.reset(token)


def current_reading() -> Reading:
    """Return the current settings; without `read_together`, the defaults, for which nothing is recorded."""
    return _reading.get() or Reading()


def record_reading(reading: Reading) -> None:
    """Record the sources of an inner context."""
    around = current_reading()
    around.notes |= reading.notes
    around.files |= reading.files
    around.sources |= reading.sources


def record_source(name: str, unit: str = "row") -> Source:
    """Begin and return a new record of a file, folder or dataset."""
    source = current_reading().sources[name] = Source(name, unit)
    return source


def record_file(path: str) -> None:
    """Record that a file is opened; called by everything that reads data."""
    current_reading().files.setdefault(archive_of(path))


def record_note(note: str) -> None:
    """Record a note on the data for the user."""
    current_reading().notes.setdefault(note)


def reading_version() -> int:
    """Return the version of the rules by which files are read, see VERSION."""
    return current_reading().config.version


def reading_fold() -> int:
    """Return the part of the data that is held out, counted from the last one."""
    return current_reading().config.fold


def reading_stream() -> bool:
    """Return whether data.stream is set."""
    return current_reading().config.stream


# What was understood


def describe_sources(
    sources: Iterable[Source], split: str, is_part: bool = False, notes: Iterable[str] = ()
) -> list[str]:
    """Describe the data in three lines, notes and two examples, which are shown before training.

    `is_part`: only a part of the data was read.
    """
    more = [f"  note: {note}" for note in notes]
    read = [source for source in sources if source.rows or source.left_out]
    if not read:
        return [f"data: {split}", *more] if split else more
    rows = sum(source.rows for source in read)
    name = read[0].name if len(read) == 1 else f"{len(read):,} files, {read[0].name} first"
    tables = [source for source in read if source.columns]
    columns = (
        ", ".join(f"{field} = {column}" for field, column in tables[0].columns.items()) if tables else ""
    )
    guess = ""
    if any(source.is_guess for source in tables):
        guess = f" (choose others with {' '.join(f'--{field}' for field in tables[0].columns)})"
    left_out = count_left_out(read)
    has_note = any(LEFT_OUT in note for note in more)
    reasons = [f"{count:,} with {reason}, {where} first" for reason, (count, where) in left_out.items()]
    units = {source.unit for source in read}
    size = f"{'more than ' * is_part}{rows:,} {units.pop() if len(units) == 1 else 'row'}{'s' * (rows != 1)}"
    return [
        f"data: {name}: {size}{': ' * bool(columns)}{columns}{guess}",
        f"  left out: {'; '.join(reasons) or ('nothing' if not has_note else 'see the note')}",
        *([f"  split: {split}"] if split else []),
        *more,
        *(f"{EXAMPLE}{' | '.join(f'{k}: {v}' for k, v in example.items())}" for example in read[0].examples),
    ]


def count_left_out(sources: Iterable[Source]) -> dict[str, tuple[int, str]]:
    """Return the rows by reason, and where the first is."""
    left_out: dict[str, tuple[int, str]] = {}
    for source in sources:
        for reason, (count, where) in source.left_out.items():
            before, first = left_out.get(reason, (0, where))
            left_out[reason] = before + count, first
    return left_out


def describe_guesses(reading: Reading) -> list[str]:
    """Describe what was read by guess or left out, and notes; nothing, if all was as it was asked for."""
    guessed = [source for source in reading.sources.values() if source.is_guess or source.left_out]
    return [*describe_sources(guessed, ""), *reading.notes]


def shorten_value(value: object) -> str:
    """Return the beginning of a value, on one line; of bytes, their number."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, dict) and "text" in value:
        value = value["text"]  # an answer without its place
    if isinstance(value, list) and len(value) == 1:
        return shorten_value(value[0])
    text = (
        " ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else str(value)
    )
    text = " ".join(text[: 4 * LONGEST].split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
