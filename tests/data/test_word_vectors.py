"""Files of word vectors: GloVe, word2vec as text and binary, compressed, damaged and hostile."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from helpers.errors import user_error
from regard.data import word_vectors
from regard.data.word_vectors import is_vectors_file, read_vectors

WORDS = ["the", "Käse", ",", "new_york", "don't", "<unk>", "日本"]
DIM = 5


def table() -> np.ndarray:
    return np.random.default_rng(7).normal(size=(len(WORDS), DIM)).astype(np.float32)


def as_text(matrix: np.ndarray, header: bool) -> bytes:
    lines = [" ".join([word, *map(repr, row.tolist())]) for word, row in zip(WORDS, matrix, strict=True)]
    first = [f"{len(WORDS)} {DIM}"] if header else []
    return ("\n".join(first + lines) + "\n").encode()


def as_binary(matrix: np.ndarray, newline: bytes) -> bytes:
    """As word2vec.c writes it, with a newline after each word, or as gensim does, without."""
    rows = [w.encode() + b" " + struct.pack(f"<{DIM}f", *row) for w, row in zip(WORDS, matrix, strict=True)]
    return f"{len(WORDS)} {DIM}\n".encode() + b"".join(row + newline for row in rows)


FORMATS = {
    "glove.txt": lambda m: as_text(m, header=False),
    "word2vec.txt": lambda m: as_text(m, header=True),
    "crlf.vec": lambda m: as_text(m, header=True).replace(b"\n", b" \r\n"),  # word2vec.c ends with a space
    "tabs.txt": lambda m: as_text(m, header=False).replace(b" ", b"\t"),
    "google.bin": lambda m: as_binary(m, b"\n"),
    "gensim.bin": lambda m: as_binary(m, b""),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_formats(tmp_path: Path, name: str, compressed: bool) -> None:
    path, content = tmp_path / (name + ".gz" * compressed), FORMATS[name](table())
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert is_vectors_file(path.name)
    words, matrix = read_vectors(str(path))
    assert words == WORDS
    assert np.array_equal(matrix[:-1], table())
    assert matrix.shape == (len(WORDS) + 1, DIM)
    assert not matrix[-1].any()


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_vectors, "AT_ONCE", 2 * DIM)  # two words at a time
    for name, content in FORMATS.items():
        (tmp_path / name).write_bytes(content(table()))
        words, matrix = read_vectors(str(tmp_path / name))
        assert words == WORDS
        assert np.array_equal(matrix[:-1], table())


def test_odd_words_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GloVe's largest file has words with spaces inside; some files have a word twice, or half a letter."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"one 1 2\n. . . 3 4\none 5 6\nK\xe4se 7 8e-1\n")
    words, matrix = read_vectors(str(path))
    assert words == ["one", "K\ufffdse"]
    assert matrix.tolist() == [[1, 2], [7, np.float32(0.8)], [0, 0]]
    notes = capsys.readouterr().err
    assert "left out 2 words" in notes
    assert "1 words are not UTF-8" in notes


TOO_WIDE = b"a" + b" 1" * (word_vectors.MAX_DIM + 1)
DAMAGED = {
    "short.txt": (b"a 1 2\nb 1\n", ["short.txt:2", "1 numbers", "2 elsewhere"]),
    "letters.txt": (b"a 1 2\nb 1 x2\n", ["letters.txt:2", "'x2'", "not a number"]),
    "nan.txt": (b"2 2\na 1 nan\nb 1 2\n", ["nan.txt:2", "nan"]),
    "large.txt": (b"a 1 2\nb 1 1e39\n", ["large.txt:2", "1e39"]),
    "text.txt": (b"\nThe quick brown fox\n", ["text.txt:2", "'quick'", "not a number"]),
    "word.txt": (b"word\n", ["word.txt:1", "0 numbers"]),
    "wide.txt": (TOO_WIDE, ["wide.txt:1", f"{word_vectors.MAX_DIM:,}"]),
    "header.txt": (b"5 2\na 1 2\n", ["header.txt", "1 words", "says 5"]),
    "more.txt": (b"1 2\na 1 2\nb 1 2\n", ["more.txt", "2 words", "says 1"]),
    "hostile.txt": (b"999999999999 999999999999\n", ["hostile.txt:1", "999999999999"]),
    "none.txt": (b"0 5\n", ["none.txt:1", "0 words"]),
    "zero.txt": (b"a 1\0 2\n", ["zero.txt:1", "zero byte"]),
    "empty.txt": (b"", ["empty.txt", "empty"]),
    "text.bin": (b"a 1 2\nb 3 4\n", ["text.bin", "400000 300", ".txt"]),
    "pickle.bin": (b"\x80\x02}q\x00.", ["pickle.bin", "binary"]),
    "hostile.bin": (b"999999999999 16384\na 1234", ["hostile.bin", "0 words", "999,999,999,999"]),
    "word.bin": (b"3 1\n" + 5000 * b"a", ["word.bin", "word 1", "bytes"]),
    "cut.bin": (b"2 1\na 1234\nb 12", ["cut.bin", "1 words", "says 2"]),
    "more.bin": (b"1 1\na 1234\nb 1234", ["more.bin", "2 words", "says 1"]),
    "nan.bin": (b"2 1\na 1234\nb \0\0\xc0\x7f", ["nan.bin", "word 2", "finite"]),
    "cut.txt.gz": (gzip.compress(b"a 1 2\n")[:-5], ["cut.txt.gz", "damaged"]),
    "bomb.bin.gz": (gzip.compress(b"99999 9999\n" + bytes(10**6)), ["bomb.bin.gz", "word 1", "bytes"]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    content, facts = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    user_error(lambda: read_vectors(str(tmp_path / name)), *facts)


def test_one_array_in_memory(tmp_path: Path) -> None:
    """Neither a list of numbers nor a second array: little more than what is returned."""
    N, D = 6000, 101
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        file.write(b"%d %d\n" % (N, D))
        for n in range(N):
            file.write(b"word%d " % n + bytes(4 * D))
    tracemalloc.start()
    _, matrix = read_vectors(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    array = matrix.nbytes
    blocks = 2 * 4 * word_vectors.AT_ONCE
    assert peak < 1.3 * array + 1.5 * blocks + 200 * N
