"""Read documents from files, folders, tables, standard input and the Hugging Face hub."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from regard.data.archives import file_size, is_file, is_folder
from regard.data.cells import is_number, obvious_texts
from regard.data.columns import NUMBERS, Field, Layout, match_columns, normalize, table_records
from regard.data.files import (
    COMPRESSED,
    CONVERTED,
    content_suffix,
    decode_utf8,
    display_name,
    empty_file,
    list_files,
    normalize_newlines,
    read_lines,
)
from regard.data.markup import read_page, read_subtitles
from regard.data.memory import is_memory
from regard.data.nested import Column
from regard.data.reading import (
    LEFT_OUT,
    Source,
    current_reading,
    read_together,
    reading_version,
    record_note,
    record_source,
)
from regard.data.splitting import is_about
from regard.data.tables import SUFFIXES, Row, Table, is_table, read_jsonl_table, read_table
from regard.data.warc import read_warc
from regard.errors import UserError

T = TypeVar("T")
Chunk = tuple[bool, str]  # whether a document starts here, and text of it
PLAIN = {".txt", ".text", ".md"}
EARLIER = {".parquet", ".arrow", ".feather", ".xlsx", ".jsonl"}  # tables that versions before 4 know
CHUNK = 2**20  # bytes of a plain file that are read at once; whole lines, so it may be more


def guess_text(names: list[str], rows: list[Row], known: dict[str, int]) -> dict[str, int]:
    """Take the column that is obviously the text, or the only one besides numbers of rows."""
    columns = {
        index: [cells[index] for _, cells in rows]
        for index, name in enumerate(names)
        if normalize(name) not in NUMBERS
    }
    texts = {
        index: values
        for index, values in columns.items()
        if all(isinstance(value, str | None) for value in values)
        and not all(map(is_number, map(str, values)))
    }
    obvious = obvious_texts(names, texts, ("text", *LAYOUT["text"].synonyms))
    obvious = obvious or (list(texts) if len(columns) == 1 else [])
    return {"text": obvious[0]} if rows and len(obvious) == 1 else {}


LAYOUT = Layout(
    (Field("text", ("content", "document", "body", "article", "story"), "exact"),),
    "text",
    guess_text,
    skips_empty=True,
    row="put a text with commas in quotes, or name the file .txt to read it as it is",
)
STRIPPED = replace(LAYOUT, fields=(replace(LAYOUT["text"], kind="text"),))  # in versions before 4


# Files


def text_suffixes() -> Set[str]:
    """Return the suffixes of texts in a folder."""
    if reading_version() < 3:
        return {*PLAIN, ".jsonl"}
    texts = {*PLAIN, *CONVERTED, ".markdown", ".rst", ".jsonl"}
    return texts if reading_version() < 4 else texts | SUFFIXES


def list_documents(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths, with each folder and .zip replaced by the texts and tables in it."""
    for path in map(str, paths):
        files = list_texts(path) if is_folder(path) else [path]
        if "text" in current_reading().columns and not any(map(is_text_table, files)):
            record_note(f"{display_name(path)}: no table, so --text is not used for it")
        yield from files


def list_texts(folder: str) -> list[str]:
    """Return the texts and tables in a folder; beside texts, only tables of which the column is known."""
    files = choose_texts(list_files(folder, text_suffixes(), "text"))
    tables = [file for file in files if content_suffix(file) in SUFFIXES]
    if reading_version() < 4 or len(tables) in (0, len(files)):
        return files
    errors: dict[str, UserError] = {}
    for file in tables:
        try:
            find_text(read_table(file), Source(file))
        except UserError as error:
            errors[file] = error
    if errors:
        first = next(iter(errors.values()))
        record_note(f"{folder}{LEFT_OUT}{len(errors):,} of {len(tables):,} tables beside the texts: {first}")
    return [file for file in files if file not in errors]


def choose_texts(files: Sequence[str]) -> list[str]:
    """Return the files that are texts by their suffix; among tables alone, none that only describes them."""
    files = [file for file in files if content_suffix(file) in text_suffixes()]
    tables = [file for file in files if content_suffix(file) in SUFFIXES]
    plain = {*files} - {*tables}
    if reading_version() < 4 or not tables or not plain or not all(map(is_about, plain)):
        return files
    record_note(f"{', '.join(sorted(plain)[:3])}{LEFT_OUT}as no data, but about the tables beside it")
    return tables


# Reading


def read_documents(paths: Sequence[str]) -> Iterator[str]:
    """Yield the documents in files, folders, standard input ("-") and datasets on the hub ("hf:...").

    A file is one document; a table has one in each row and a .warc in each record, and blank documents are
    skipped.
    """
    texts: list[str] = []
    for starts, text in read_chunks(paths):
        if starts and texts:
            yield "".join(texts)
            texts = []
        texts.append(text)
    if texts:
        yield "".join(texts)


def read_chunks(paths: Sequence[str]) -> Iterator[Chunk]:
    """Yield the same documents chunk by chunk, so that a file of any size takes little memory."""
    for path in map(str, paths):
        files = list(list_documents([path]))
        empty: list[str] = []
        for file in files:
            is_empty = True
            source = None if is_text_table(file) else record_source(display_name(file), "text")
            for starts, text in read_file_chunks(file):
                is_empty = is_empty and (not text or text.isspace())
                if starts and source is not None:
                    source.add({"text": text})
                yield starts, text
            if is_empty and (file == path or not _is_converted(file) or len(empty) + 1 == len(files)):
                raise empty_file(file)
            if is_empty and source is not None:
                source.leave_out(file, "no text beside its markup")
                empty.append(file)


def _is_converted(file: str) -> bool:
    return content_suffix(file) in CONVERTED and reading_version() > 2


def is_text_table(file: str) -> bool:
    """Whether a file has a document in each row; before version 4, tables that are text did if their column
    was chosen. Standard input is one text, but for JSON lines or if a column is chosen."""
    if file.startswith("hf:") or is_memory(file) or content_suffix(file) in EARLIER:
        return True
    is_chosen = "text" in current_reading().columns
    return is_table(file) and (is_chosen or (reading_version() > 3 and file != "-"))


def read_file_chunks(file: str) -> Iterator[Chunk]:
    """Yield the documents of one file chunk by chunk."""
    if is_text_table(file):
        yield from _rows(read_table(file))
    elif _is_converted(file):
        for text in READERS[content_suffix(file)](file):
            if text and not text.isspace():
                yield True, normalize_newlines(text)
    else:
        lines = read_lines(file)
        first = next(lines, b"")
        lines = chain([first], lines)
        if file == "-" and first.startswith(b'{"') and reading_version() > 3:
            yield from _rows(read_jsonl_table(file, lines))
            return
        for number, text in enumerate(_plain(file, lines)):
            yield number == 0, normalize_newlines(text)


def _rows(table: Table) -> Iterator[Chunk]:
    by_key = table.path.startswith("hf:") or content_suffix(table.path) == ".jsonl"
    is_exact = reading_version() > 3 or (by_key and not current_reading().columns)
    for _, record in table_records(table, LAYOUT if is_exact else STRIPPED):
        yield True, normalize_newlines(record["text"])


def find_text(table: Table, source: Source) -> Column:
    """Return the column with the texts, and record it; before version 4, always the one named so."""
    with read_together(columns=current_reading().config.columns if reading_version() > 3 else None):
        return match_columns(table, LAYOUT, source)["text"]


def _plain(path: str, lines: Iterable[bytes]) -> Iterator[str]:
    content = bytearray()
    first = 1  # the number of its first line
    for number, line in enumerate(lines, 1):
        content += line
        if len(content) >= CHUNK:
            yield decode_utf8(content, path, first)
            content.clear()
            first = number + 1
    yield decode_utf8(content, path, first)


def _page(path: str) -> Iterator[str]:
    yield read_page(path)


def _subtitles(path: str) -> Iterator[str]:
    yield read_subtitles(path)


READERS: dict[str, Callable[[str], Iterator[str]]] = {
    ".html": _page,
    ".htm": _page,
    ".xhtml": _page,
    ".srt": _subtitles,
    ".vtt": _subtitles,
    ".warc": read_warc,
    ".wet": read_warc,
}


class Reiterable(Generic[T]):
    """Calls a function for a new iterator each time it is iterated over."""

    def __init__(self, start: Callable[[], Iterator[T]]) -> None:
        self.start = start

    def __iter__(self) -> Iterator[T]:
        return self.start()


def reiterable_chunks(paths: Sequence[str]) -> Iterable[Chunk]:
    """Return the documents, to be read any number of times; those of pipes are held in memory."""
    paths = [str(path) for path in paths]
    pipes = [p for p in paths if not (p.startswith("hf:") or is_memory(p) or is_file(p) or is_folder(p))]
    cached = {path: list(read_chunks([path])) for path in pipes}
    return Reiterable(lambda: chain.from_iterable(cached.get(path) or read_chunks([path]) for path in paths))


def text_size(paths: Sequence[str]) -> int | None:
    """Return the size of plain text files and folders in bytes; None if that would take reading them."""
    total = 0
    for file in list_documents(paths):
        is_plain = is_file(file) and Path(file.lower()).suffix not in COMPRESSED
        if not is_plain or is_text_table(file) or _is_converted(file):
            return None
        total += file_size(file)
    return total
