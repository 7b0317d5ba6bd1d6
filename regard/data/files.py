"""Find and read text files, plain or compressed, with errors that name the file and the line."""

import contextlib
import gzip
import io
import json
import lzma
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import IO, Any

from regard.data.archives import is_folder, list_archive, open_member, read_archive, split_path
from regard.data.memory import is_memory
from regard.data.reading import (
    LEFT_OUT,
    current_reading,
    reading_stream,
    reading_version,
    record_file,
    record_note,
)
from regard.data.recoding import recode
from regard.errors import UserError, first_line, os_reason
from regard.files.regular import regular_stat

MAX_LINE = 10_000_000  # bytes
MAX_EXPANSION = 100  # times the size of a compressed file: text expands about 4 times, rarely 20
SMALL = 2**28  # bytes that any compressed file may expand to
PIPE_WAIT = 60.0  # seconds for the first byte of a pipe
CONVERTED = {".html", ".htm", ".xhtml", ".srt", ".vtt", ".warc", ".wet"}  # from version 3 on
SAVED = {"dataset_info.json", "dataset_dict.json"}  # what save_to_disk writes beside the rows
USUAL_IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tiff", ".webp"}  # of all formats that Pillow reads
COMPRESSED = {".gz", ".xz", ".zst"}
CONVERT = (
    dict.fromkeys((".heic", ".heif"), " (convert to .png, or: pip install pillow-heif)")
    | {".svg": " (convert to .png)"}
    | dict.fromkeys((".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".wma"), " (convert to .wav)")
    | dict.fromkeys((".zip",), " (give it by itself)")
    | dict.fromkeys((".xls", ".ods", ".numbers"), " (save it as .xlsx or .csv)")
    | dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".rtf", ".html", ".epub"), " (convert to .txt)")
)  # common files of other kinds, and what to do with them
# Paths


def list_files(folder: str, suffixes: Set[str], what: str) -> list[str]:
    """Return all files below a folder or in a .zip that have one of these suffixes, sorted, without hidden
    ones."""
    paths, left_out = [], Counter[str]()
    place = split_path(folder)
    if place is not None:
        check_unpacked(place[0])
    visible = list(_walk(folder) if place is None else list_archive(folder))
    saved = {os.path.dirname(path) for path in visible if os.path.basename(path) in SAVED}
    for path in visible:
        if os.path.dirname(path) in saved and os.path.basename(path) in {*SAVED, "state.json"}:
            continue
        if content_suffix(path) in suffixes:
            _check_regular(path)
            paths.append(path)
        else:
            left_out[content_suffix(path)] += 1
    kinds = ", ".join(
        f"{count:,} {suffix or 'without a suffix'}{CONVERT.get(suffix, '')}"
        for suffix, count in left_out.most_common()
    )
    if not paths:
        there = f" (only {kinds})" if kinds else ""
        raise UserError(
            f"{folder}: no {what} in this folder{there}; add files with the suffix "
            f"{' '.join(sorted(suffixes & USUAL_IMAGES or suffixes))}"
        )
    if kinds:
        record_note(
            f"{folder}{LEFT_OUT}{left_out.total():,} of {left_out.total() + len(paths):,} files, which are "
            f"no {what} by their suffix: {kinds}"
        )
    return sorted(paths)


def _unreadable(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be read ({os_reason(error)}); check its permissions") from None


def _check_regular(path: str) -> None:
    if split_path(path) is None:
        try:
            regular_stat(path)
        except OSError as error:
            _unreadable(error)


def _walk(folder: str) -> Iterator[str]:
    """Yield all visible files below a folder."""
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (name for name in files if not name.startswith(".")):
            yield os.path.join(root, name)


def expand_folders(paths: Iterable[str], suffixes: Set[str]) -> Iterator[str]:
    """Yield the paths, with each folder and .zip replaced by the tables in it."""
    for path in map(str, paths):
        yield from list_files(path, suffixes, "table") if is_folder(path) else [path]


def content_suffix(path: str) -> str:
    """Return the suffix that names the format, before the one that names the compression: a.TSV.gz -> .tsv"""
    name = Path(path.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSED else name.suffix


def display_name(path: str) -> str:
    return "standard input" if path == "-" else "data in memory" if is_memory(path) else path


def missing_file(path: str) -> UserError:
    return UserError(f"{path or repr(path)}: no such file or folder; check the path")


def empty_file(path: str) -> UserError:
    return UserError(f"{display_name(path)}: empty, it has no text; remove it or give another file")


# Bytes


class _ZstdReader(io.RawIOBase):
    """The content of a .zst file. Unlike zstandard's own reader, it notices that a file was cut short."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.ready, self.at = file, b"", 0  # `at`: how much of `ready` has been used
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard  # imported for such files only

        while self.at == len(self.ready):
            self.ready, self.at = b"", 0
            chunk = self.file.read(2**11)  # small, because it may expand thirty-thousandfold
            if not chunk:
                if self.frame is not None:
                    raise EOFError("it ends too early")
                return 0
            while chunk:  # a chunk may hold several frames
                self.frame = self.frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    self.ready += self.frame.decompress(chunk)
                except zstandard.ZstdError as error:
                    raise EOFError(first_line(error)) from None
                chunk = self.frame.unused_data
                if self.frame.eof:
                    self.frame = None
        data = self.ready[self.at : self.at + len(buffer)]
        self.at += len(data)
        buffer[: len(data)] = data
        return len(data)


def expansion_limit(size: int) -> int | None:
    """Return how many bytes a compressed file of this size may expand to; None for a pipe: any number."""
    limit = current_reading().config.max_bytes
    return max(SMALL, MAX_EXPANSION * size) if limit is None and size else limit


def check_expansion(path: str, count: int, limit: int | None) -> None:
    """Raise UserError if a file has expanded to more bytes than it may."""
    if limit is not None and count > limit:
        raise UserError(
            f"{path}: expands to more than {limit:,} bytes; if that is right, "
            f"raise the limit with --set data.max_bytes=N, or decompress the file"
        )


def check_unpacked(archive: str) -> None:
    """Raise UserError if the files in a .zip have too many bytes together."""
    check_expansion(archive, read_archive(archive).unpacked, expansion_limit(os.path.getsize(archive)))


class _LimitedReader(io.RawIOBase):
    """The output of a decompressor, up to a limit: a small file may expand to fill any memory or disk."""

    def __init__(self, file: Any, path: str, size: int) -> None:
        self.file, self.path, self.count = file, path, 0
        self.limit = expansion_limit(size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.file.readinto(buffer)
        self.count += count
        check_expansion(self.path, self.count, self.limit)
        return count


def _open_pipe(path: str) -> IO[bytes]:
    """Open a named pipe; raise UserError if nothing is written to it, since opening it would block."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")  # noqa: SIM115 - the caller closes it
    deadline = time.monotonic() + PIPE_WAIT
    while not file.peek(1):
        if time.monotonic() > deadline:
            file.close()
            raise UserError(
                f"{path}: a pipe, to which nothing was written for {PIPE_WAIT:g} seconds; give a file, "
                "or - for standard input"
            )
        time.sleep(0.02)
    os.set_blocking(file.fileno(), True)
    return file


def _open(path: str) -> tuple[IO[bytes], int]:
    """Open a file of the disk or in a .zip; return its size, too, 0 for a pipe."""
    if (place := split_path(path)) is not None:
        check_unpacked(place[0])
        record_file(path)
        return open_member(path)
    if Path(path).is_fifo():
        return _open_pipe(path), 0
    size = regular_stat(path).st_size
    record_file(path)
    return open(path, "rb"), size


@contextlib.contextmanager
def _open_decompressed(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    file, size = _open(path)
    with file:
        decompressed: io.RawIOBase | gzip.GzipFile | lzma.LZMAFile
        match Path(path).suffix.lower():
            case ".gz":
                decompressed = gzip.GzipFile(fileobj=file)
            case ".xz":
                decompressed = lzma.LZMAFile(file)  # noqa: SIM115 - only `file` needs closing
            case ".zst":
                decompressed = _ZstdReader(file)
            case _:
                yield file
                return
        limited = _LimitedReader(decompressed, path, size)
        yield io.BufferedReader(limited, 2**16)  # faster than GzipFile's own readline


@contextlib.contextmanager
def open_file(path: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed according to its suffix; "-" is standard input."""
    name = display_name(path)
    try:
        with _open_decompressed(path) as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{name}: damaged compressed file ({first_line(error)}); get it again") from None
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({os_reason(error)}); check its permissions") from None


# Text


@contextlib.contextmanager
def open_text(path: str) -> Iterator[IO[bytes]]:
    """Open a file as `open_file` does; its text is recoded to UTF-8 if necessary."""
    suffix = content_suffix(path)
    if suffix in CONVERT and suffix not in {*CONVERTED, ".svg"}:
        raise UserError(f"{path}: a {suffix} file is not text{CONVERT[suffix]}")
    with open_file(path) as file:
        is_recoded = reading_version() > 1
        yield recode(file, display_name(path), current_reading().config.encoding) if is_recoded else file


def read_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file, newlines included; raise UserError at a line that cannot be text."""
    name = display_name(path)
    with open_text(path) as file:
        number = 0
        # One byte more than allowed, for the newline; an endless line is never held in memory.
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                raise UserError(f"{name}:{number}: the line has over {MAX_LINE:,} bytes; break it up")
            if b"\0" in line:
                raise UserError(
                    f"{name}:{number}: a zero byte, so this is not a text file; "
                    "if it is UTF-16, add --encoding utf-16, or convert it with: iconv -f utf-16 -t utf-8"
                )
            if line.endswith(b"\r\n") and reading_version() > 1:
                line = line[:-2] + b"\n"
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def decode_utf8(data: bytes | bytearray, path: str, number: int = 1) -> str:
    """Decode bytes of a file; `number` is that of their first line."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        raise UserError(
            f"{display_name(path)}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "if it is of Windows in western Europe, as Excel's are, add --encoding cp1252, or convert it: "
            "iconv -f cp1252 -t utf-8"
        ) from None


def normalize_newlines(text: str) -> str:
    """Return the text with the line ends of Unix, not of Windows or old Macs."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text and reading_version() > 1 else text


def check_surrogates(text: str, where: str) -> str:
    """Return the text; raise UserError if it has an unpaired surrogate, which JSON allows."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: half a surrogate pair (\\ud800 to \\udfff); remove it") from None
    return text


# Rows


def read_tsv(path: str, lines: Iterable[bytes] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the location (file:line) and the cells of every line, blank ones included.

    `lines` are those of the file, if they are already read.
    """
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        cells = decode_utf8(line, path, number).rstrip("\r\n").split("\t")
        yield f"{display_name(path)}:{number}", cells


def read_jsonl(path: str, lines: Iterable[bytes] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the location (file:line) and the value of every line that is not blank; `lines` as above."""
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        if not line.strip():
            continue
        where = f"{display_name(path)}:{number}"
        json_text = decode_utf8(line, path, number)
        try:
            value = json.loads(json_text)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{where}: not JSON ({first_line(error)}); write one JSON object on each line"
            ) from None
        yield where, value


def load_hub_dataset(path: str, stream: bool | None = None) -> tuple[Any, list[str]]:
    """Load hf:NAME, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, each with an optional :SPLIT (else train).

    Return the dataset and the names of its columns. With `stream` (None: as in data.stream), it is not
    copied to the disk.
    """
    try:
        import datasets
    except ImportError:
        raise UserError(f"{path}: needs the datasets package: pip install 'regard[datasets]'") from None
    name, _, split = path.removeprefix("hf:").partition(":")
    owner_and_name, config = "/".join(name.split("/")[:2]), "/".join(name.split("/")[2:]) or None
    try:
        how = {"streaming": True} if (reading_stream() if stream is None else stream) else {}
        dataset = datasets.load_dataset(owner_and_name, config, split=split or "train", **how)
        return dataset, list(dataset.column_names or next(iter(dataset)))
    except Exception as error:  # the network, the hub and the package raise all kinds of errors
        raise UserError(
            f"{path}: cannot be loaded ({first_line(error)}); write it as hf:OWNER/NAME/CONFIG:SPLIT"
        ) from None
