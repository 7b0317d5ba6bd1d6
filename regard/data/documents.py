"""Read documents from files, folders, standard input and the Hugging Face hub."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from regard.data.archives import file_size, is_file, is_folder
from regard.data.columns import Field, Layout, read_records
from regard.data.files import (
    COMPRESSED,
    CONVERTED,
    check_surrogates,
    content_suffix,
    decode_utf8,
    display_name,
    empty_file,
    expand_folders,
    normalize_newlines,
    read_hub_columns,
    read_jsonl,
    read_lines,
)
from regard.data.markup import read_page, read_subtitles
from regard.data.memory import is_memory
from regard.data.reading import current_reading, reading_version, record_note, record_source
from regard.data.tables import is_table
from regard.data.warc import read_warc
from regard.errors import UserError

T = TypeVar("T")
Chunk = tuple[bool, str]  # whether a document starts here, and text of it
BINARY = {".parquet", ".arrow", ".feather", ".xlsx"}
LAYOUT = Layout((Field("text", ("content", "document", "body", "article", "story")),), "text")
CHUNK = 2**20  # bytes of a plain file that are read at once; whole lines, so it may be more


def read_documents(paths: Sequence[str]) -> Iterator[str]:
    """Yield the documents in files, folders, standard input ("-") and datasets on the hub ("hf:...").

    A file is one document; a .jsonl has one on each line, a table in each row and a .warc in each record, and
    blank documents are skipped.
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
        files = list(expand_folders([path]))
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
    """Whether a file has a document in each row; tables that are text do if their column is chosen."""
    return (
        is_memory(file)
        or content_suffix(file) in BINARY
        or ("text" in current_reading().columns and is_table(file))
    )


def read_file_chunks(file: str) -> Iterator[Chunk]:
    """Yield the documents of one file chunk by chunk."""
    if is_text_table(file):
        for _, record in read_records(file, LAYOUT):
            yield True, record["text"]
        return
    if file.startswith("hf:") or content_suffix(file) == ".jsonl" or _is_converted(file):
        read = _hub if file.startswith("hf:") else READERS[content_suffix(file)]
        for text in read(file):
            if text and not text.isspace():
                yield True, normalize_newlines(text)
    else:
        if content_suffix(file) in (".csv", ".tsv"):
            name = display_name(file)
            record_note(
                f"{name}: read as it is, with its commas or tabs; --text NAME takes the texts of a column"
            )
        for number, text in enumerate(_plain(file)):
            yield number == 0, normalize_newlines(text)


def _plain(path: str) -> Iterator[str]:
    content = bytearray()
    first = 1  # the number of its first line
    for number, line in enumerate(read_lines(path), 1):
        content += line
        if len(content) >= CHUNK:
            yield decode_utf8(content, path, first)
            content.clear()
            first = number + 1
    yield decode_utf8(content, path, first)


def _jsonl(path: str) -> Iterator[str]:
    for where, row in read_jsonl(path):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UserError(f'{where}: no string under "text"; write each line as {{"text": "..."}}')
        yield check_surrogates(row["text"], where)


def _hub(path: str) -> Iterator[str]:
    for (text,) in read_hub_columns(path, ["text"]):
        yield text


def _page(path: str) -> Iterator[str]:
    yield read_page(path)


def _subtitles(path: str) -> Iterator[str]:
    yield read_subtitles(path)


READERS: dict[str, Callable[[str], Iterator[str]]] = {
    ".jsonl": _jsonl,
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
    for file in expand_folders(paths):
        is_plain = is_file(file) and Path(file.lower()).suffix not in {".jsonl", *COMPRESSED}
        if not is_plain or is_text_table(file) or _is_converted(file):
            return None
        total += file_size(file)
    return total
