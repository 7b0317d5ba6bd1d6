"""Read files of word vectors: GloVe's text, and the text and the binary format of word2vec.

GloVe has a line per word: the word and its numbers. In word2vec's formats, a first line has the number of
words and their width; in the binary one, a word ends with a space, and its float32 numbers follow.

Shapes: N words, D width.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np

from regard.data.files import content_suffix, empty_file, open_file, read_lines
from regard.draw.terminal import progress
from regard.errors import UserError

BINARY = ".bin"
SUFFIXES = {".txt", ".vec", BINARY}
HEADER = re.compile(rb"(\d{1,12})[ \t](\d{1,12})\s*")
MAX_DIM = 16_384
MAX_WORD = 1000  # bytes
MAX_NUMBER = float(np.finfo(np.float32).max)
AT_ONCE = 2**18  # numbers that are parsed together

Block = tuple[list[bytes], np.ndarray]  # words, and their vectors (n, D)


def is_vectors_file(path: str) -> bool:
    """Return whether a file has a suffix of word vectors: .txt, .vec or .bin, plain or compressed."""
    return content_suffix(path) in SUFFIXES


def read_vectors(path: str) -> tuple[list[str], np.ndarray]:
    """Read the words of a file, in order, and their vectors (N + 1, D); the last row is 0, for other words.

    Words that are repeated or contain spaces are left out.
    """
    binary = content_suffix(path) == BINARY
    with progress(f"reading {path}") as advance:
        blocks = read_binary(path) if binary else read_text(path)
        try:
            return collect(path, blocks, advance)
        except MemoryError:
            raise UserError(
                f"{path}: more vectors than fit into memory; give a file of fewer words"
            ) from None


def collect(
    path: str, blocks: Iterator[Block], advance: Callable[[int], None]
) -> tuple[list[str], np.ndarray]:
    words: dict[str, None] = {}
    matrix, damaged, total = np.zeros((0, 0), np.float32), 0, 0
    for encoded, block in blocks:
        fresh = []
        for row, word in enumerate(encoded):
            text = word.decode(errors="replace")
            damaged += "\ufffd" in text
            if text and text not in words and len(text.split()) == 1:
                words[text] = None
                fresh.append(row)
        size, total = len(words), total + len(encoded)
        if size >= len(matrix):  # grows in place: the system moves pages without a copy
            matrix.resize((size + size // 4 + 1, block.shape[1]), refcheck=False)
        matrix[size - len(fresh) : size] = block[fresh]
        advance(len(encoded))
    if not words:
        raise empty_file(path)
    matrix.resize((len(words) + 1, matrix.shape[1]), refcheck=False)
    matrix[-1] = 0
    if total > len(words):
        note = f"left out {total - len(words):,} words that come twice or with spaces inside"
        print(f"{path}: {note}", file=sys.stderr)
    if damaged:
        print(f"{path}: {damaged:,} words are not UTF-8; \ufffd stands for what is not", file=sys.stderr)
    return list(words), matrix


def check_header(path: str, line: bytes) -> tuple[int, int] | None:
    """Return the numbers of words and of columns in a first line; None if it contains something else."""
    match = HEADER.fullmatch(line)
    if match is None:
        return None
    count, D = int(match[1]), int(match[2])
    if not count or not 1 <= D <= MAX_DIM:
        raise UserError(f"{path}:1: {count} words of {D} numbers; give at least one, of 1 to {MAX_DIM:,}")
    return count, D


def check_count(path: str, count: int, expected: int | None) -> None:
    if expected is not None and count != expected:
        raise UserError(f"{path}: {count:,} words, but its first line says {expected:,}; get it again")


# Text


def read_text(path: str) -> Iterator[Block]:
    """Read the vectors of a text file, with or without word2vec's first line."""
    expected, D, count = None, 0, 0
    pending: list[tuple[int, bytes]] = []
    for number, line in enumerate(read_lines(path), 1):
        if number == 1 and (header := check_header(path, line)):
            expected, D = header
            continue
        if not (line := line.strip()):
            continue
        if not D:
            D = len(line.split()) - 1
            if not 1 <= D <= MAX_DIM:
                raise UserError(
                    f"{path}:{number}: a word with {D:,} numbers; give a word and its numbers on each line, "
                    f"{MAX_DIM:,} at most"
                )
        pending.append((number, line))
        count += 1
        if len(pending) * D >= AT_ONCE:
            yield parse_lines(path, pending, D)
            pending = []
    check_count(path, count, expected)
    if pending:
        yield parse_lines(path, pending, D)


def parse_lines(path: str, lines: list[tuple[int, bytes]], D: int) -> Block:
    """Parse many lines together if all are plain; otherwise one by one, to find the wrong one."""
    words, _, numbers = zip(*(line.partition(b" ") for _, line in lines), strict=True)
    if all(text.count(b" ") == D - 1 for text in numbers):
        with warnings.catch_warnings(), np.errstate(over="ignore"):
            warnings.simplefilter("error", DeprecationWarning)  # raised for text that is not a number
            try:
                block = np.fromstring(b" ".join(numbers), np.float32, sep=" ")
            except (DeprecationWarning, ValueError):
                block = np.zeros(0, np.float32)
        if len(block) == len(lines) * D and np.isfinite(block).all():
            return list(words), block.reshape(-1, D)
    parsed = [parse_line(f"{path}:{number}", line, D) for number, line in lines]
    return [word for word, _ in parsed], np.array([row for _, row in parsed], np.float32)


def parse_line(where: str, line: bytes, D: int) -> tuple[bytes, list[float]]:
    """Parse a word, which may contain spaces, and its numbers."""
    fields = line.split()
    if len(fields) <= D:
        raise UserError(f"{where}: {len(fields) - 1} numbers after the word, but {D} elsewhere; correct it")
    row = []
    for text in fields[-D:]:
        try:
            row.append(float(text))
        except ValueError:
            shown = text[:40].decode(errors="replace")
            raise UserError(f"{where}: {shown!r} is not a number; correct the line") from None
        if not abs(row[-1]) <= MAX_NUMBER:
            raise UserError(f"{where}: {text[:40].decode()} is too large or not finite; correct the line")
    return b" ".join(fields[:-D]), row


# Binary


def read_binary(path: str) -> Iterator[Block]:
    with open_file(path) as file:
        first = file.readline(64)
        header = check_header(path, first)
        if header is None:
            raise UserError(
                f"{path}: not word2vec's binary format, which starts with a line such as 400000 300; "
                "a text file needs the suffix .txt, and of fastText, give the .vec"
            )
        expected, D = header
        count = 0
        while count < expected:
            words: list[bytes] = []
            rows: list[bytes] = []
            for _ in range(min(expected - count, max(1, AT_ONCE // D))):
                words.append(read_word(file, f"{path}: word {count + len(words) + 1:,}"))
                rows.append(file.read(4 * D))
            if len(rows[-1]) < 4 * D:
                check_count(path, count + sum(len(row) == 4 * D for row in rows), expected)
            block = np.frombuffer(b"".join(rows), "<f4").reshape(-1, D)
            if not (finite := np.isfinite(block).all(1)).all():
                row = int(finite.argmin())
                raise UserError(
                    f"{path}: word {count + row + 1:,} has a number that is not finite; get the file again"
                )
            count += len(words)
            yield words, block.astype(np.float32, copy=False)
        check_count(path, count + bool(file.read(64).strip()), expected)


def read_word(file: IO[bytes], where: str) -> bytes:
    """Read the bytes up to the next space, without the newline that some programs write between words."""
    word = bytearray()
    while (byte := file.read(1)) not in (b" ", b""):
        word += byte
        if len(word) > MAX_WORD:
            raise UserError(f"{where} is longer than {MAX_WORD} bytes; this is not word2vec's binary format")
    return bytes(word).lstrip(b"\n")
