"""Documents from files, folders, standard input and the hub; whatever is wrong with them is named."""

import contextlib
import gzip
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from regard.errors import Mistake
from regard.text import one_line

T = TypeVar("T")

LONGEST_LINE = 10_000_000  # bytes
SUFFIXES = {".txt", ".text", ".md", ".jsonl"}
COMPRESSED = {".gz", ".xz", ".zst"}


class _Zst(io.RawIOBase):
    """The content of a .zst file. The library's own reader takes one that was cut short for a whole one."""

    def __init__(self, file: IO[bytes]) -> None:
        import zstandard

        self.file, self.library, self.ready = file, zstandard, b""
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            chunk = self.file.read(2**12)  # small, because it may hold a thousand times as much
            if not chunk:
                if self.frame is not None:
                    raise EOFError("it ends too early")
                return 0
            while chunk:  # there may be several frames in it
                self.frame = self.frame or self.library.ZstdDecompressor().decompressobj()
                try:
                    self.ready += self.frame.decompress(chunk)
                except self.library.ZstdError as error:
                    raise EOFError(one_line(error)) from None
                chunk = self.frame.unused_data
                if self.frame.eof:
                    self.frame = None
        taken, self.ready = self.ready[: len(buffer)], self.ready[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed by its suffix; "-" is standard input."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        match Path(path).suffix.lower():
            case ".gz":
                yield io.BufferedReader(gzip.GzipFile(fileobj=file))  # whose own readline is slower
            case ".xz":
                yield io.BufferedReader(lzma.LZMAFile(file))  # noqa: SIM115 - nothing to close but `file`
            case ".zst":
                yield io.BufferedReader(_Zst(file))
            case _:
                yield file


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed; whatever goes wrong on the way is named."""
    name = shown(path)
    try:
        with _opened(path) as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise Mistake(f"{name}: damaged compressed file ({one_line(error)}); get it again") from None
    except ImportError:
        raise Mistake(f"{name}: reading .zst needs one more package: pip install zstandard") from None
    except FileNotFoundError:
        raise missing(path) from None
    except OSError as error:
        raise Mistake(f"{name}: cannot be read ({why(error)}); check its permissions") from None


def lines(path: str) -> Iterator[bytes]:
    """The lines of a file, newlines included; whatever is wrong with its bytes is noticed on the way."""
    name = shown(path)
    with opened(path) as file:
        number = 0
        # One byte more than allowed, for the newline; an endless line is never held.
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                raise Mistake(f"{name}:{number}: a line of over {LONGEST_LINE:,} bytes; break it up")
            if b"\0" in line:
                raise Mistake(
                    f"{name}:{number}: a zero byte, so this is not a text file; "
                    "UTF-16 becomes readable with: iconv -f utf-16 -t utf-8"
                )
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def decoded(data: bytes | bytearray, path: str, first_line: int = 1) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise Mistake(
            f"{shown(path)}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "if the file is Latin-1, convert it with: iconv -f latin1 -t utf-8"
        ) from None


def _plain(path: str) -> Iterator[str]:
    whole = bytearray()
    for line in lines(path):
        whole += line
    yield decoded(whole, path)


def json_rows(path: str) -> Iterator[tuple[str, Any]]:
    """What stands on each line of a .jsonl, after where that is."""
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        where = f"{shown(path)}:{number}"
        json_text = decoded(line, path, number)
        try:
            row = json.loads(json_text)
        except (ValueError, RecursionError) as error:
            raise Mistake(f"{where}: not JSON ({one_line(error)}); a .jsonl has one object a line") from None
        yield where, row


def unbroken(text: str, where: str) -> str:
    """The text, unless it holds half a character, as JSON can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Mistake(f"{where}: half a surrogate pair (\\ud800 to \\udfff); remove it") from None
    return text


def _jsonl(path: str) -> Iterator[str]:
    for where, row in json_rows(path):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise Mistake(f'{where}: no string under "text"; a line looks like {{"text": "..."}}')
        yield unbroken(row["text"], where)


def hub_rows(path: str, columns: Sequence[str]) -> Iterator[list[str]]:
    """These columns of hf:NAME, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, and :SPLIT after it for another split
    than train."""
    try:
        import datasets
    except ImportError:
        raise Mistake(f"{path}: needs the datasets package: pip install 'regard[datasets]'") from None
    name, _, split = path.removeprefix("hf:").partition(":")
    owner_and_name, config = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:]) or None
    try:
        rows = datasets.load_dataset(owner_and_name, config, split=split or "train")
        there = rows.column_names
    except Exception as error:  # from the network, the hub or the package: all of them are about this name
        why = one_line(error)
        raise Mistake(f"{path}: cannot be loaded ({why}); the form is hf:OWNER/NAME/CONFIG:SPLIT") from None
    for name in columns:
        if name not in there:
            raise Mistake(f'{path}: no column "{name}", but {", ".join(there)}; write the texts to a .jsonl')
    for row in rows:
        yield [row[column] or "" for column in columns]


def _hub(path: str) -> Iterator[str]:
    for (text,) in hub_rows(path, ["text"]):
        yield text


def shown(path: str) -> str:
    return "standard input" if path == "-" else path


def missing(path: str) -> Mistake:
    return Mistake(f"{path}: no such file or folder; check the path")


def empty(path: str) -> Mistake:
    return Mistake(f"{shown(path)}: empty, there is no text in it; remove it or give another")


def why(error: OSError) -> str:
    return error.strerror or one_line(error)


def in_folder(folder: str, suffixes: Set[str] = SUFFIXES, what: str = "text") -> list[str]:
    """Every file of this kind below a folder, in the order of their names; what is hidden stays so."""

    def fail(error: OSError) -> None:
        raise Mistake(f"{error.filename}: cannot be read ({why(error)}); check its permissions")

    found = []
    for place, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        seen = [name for name in files if not name.startswith(".") and holds(name) in suffixes]
        found += [os.path.join(place, name) for name in seen]
    if not found:
        raise Mistake(f"{folder}: no {what} in this folder; it needs files in {' '.join(sorted(suffixes))}")
    return sorted(found)


def holds(path: str) -> str:
    """The suffix that tells what a file holds, below the one that tells how it is compressed."""
    bare = Path(path.lower())
    return Path(bare.stem).suffix if bare.suffix in COMPRESSED else bare.suffix


def documents(paths: Sequence[str]) -> Iterator[str]:
    """The texts of files, folders, standard input ("-") and the hub ("hf:..."), a document at a time.

    A file is one document, a .jsonl has one on each line (those without any text are passed over).
    """
    for path in map(str, paths):
        for file in in_folder(path) if os.path.isdir(path) else [path]:
            read = _hub if file.startswith("hf:") else _jsonl if holds(file) == ".jsonl" else _plain
            some = False
            for text in read(file):
                if text and not text.isspace():
                    some = True
                    yield text
            if not some:
                raise empty(file)


class Again(Generic[T]):
    """What a function iterates over, from its beginning each time that it is asked for."""

    def __init__(self, start: Callable[[], Iterator[T]]) -> None:
        self.start = start

    def __iter__(self) -> Iterator[T]:
        return self.start()


def documents_again(paths: Sequence[str]) -> Iterable[str]:
    """The documents, as often as they are asked for; what can be read only once, such as a pipe, is held."""
    paths = [str(path) for path in paths]
    once = [p for p in paths if not (p.startswith("hf:") or os.path.isfile(p) or os.path.isdir(p))]
    held = {path: list(documents([path])) for path in once}
    return Again(lambda: chain.from_iterable(held.get(path) or documents([path]) for path in paths))


def size(paths: Sequence[str]) -> int | None:
    """The bytes of text in these files and folders, where that takes no reading: they are plain text."""
    total = 0
    for path in map(str, paths):
        for file in in_folder(path) if os.path.isdir(path) else [path]:
            if not os.path.isfile(file) or Path(file.lower()).suffix in {".jsonl", *COMPRESSED}:
                return None
            total += os.path.getsize(file)
    return total
