"""Other encodings and line ends: what Excel, PowerShell and old Macs write is read as it is meant."""

import gzip
import io
from pathlib import Path

import pytest

from helpers.errors import user_error
from helpers.formats import READ
from regard.data.documents import read_documents
from regard.data.reading import ReadConfig, read_together

ROWS = {
    "classify": ("a.csv", "text,label\ncafé one,a\ncafé two,b\n"),
    "translate": ("a.tsv", "the café\tdas Café\nwe\twir\n"),
    "tag": ("a.conll", "Ada B-PER\nsees O\ncafés O\n\nIn O\nRome B-LOC\n"),
    "span": ("a.json", '[{"question": "Where?", "context": "In a café.", "answer": "café"}]'),
    "embed": ("a.csv", "anchor,positive,negative\ncafé,bar,dog\nx,y,z\n"),
    "write": ("a.txt", "Un café.\nDeux cafés.\n"),
}


def read(recipe: str, path: Path, **more: str) -> object:
    with read_together(**more):
        return list(read_documents([str(path)])) if recipe == "write" else READ[recipe](str(path))


@pytest.mark.parametrize("recipe", ROWS)
def test_every_recipe_reads_them(tmp_path: Path, recipe: str) -> None:
    name, text = ROWS[recipe]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    rows = read(recipe, path)
    for encoding in ("utf-16", "utf-8-sig"):  # with byte order marks
        path.write_text(text, encoding=encoding)
        assert read(recipe, path) == rows
    path.write_text(text, encoding="utf-8", newline="\r")
    assert read(recipe, path) == rows
    for encoding in ("cp1252", "utf-16-be"):
        path.write_text(text, encoding=encoding, newline="\r\n")
        assert read(recipe, path, encoding=encoding) == rows


def test_compressed_and_long(tmp_path: Path) -> None:
    text = "".join(f"{n} cafés\n" for n in range(20_000))  # of more than one block
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(text.encode("utf-16")))
    assert read("write", path) == [text]


def test_a_carriage_return_in_a_cell_ends_no_row(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"one\rtwo\tb\nc\td\n")
    assert len(read("translate", path)) == 2  # type: ignore[arg-type]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("a\tb\n".encode("utf-16"))))
    with read_together():
        assert READ["translate"]("-") == [{"source": "a", "target": "b"}]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\na,b\n".encode("utf-16")[:-1])  # half a character
    user_error(lambda: read("classify", path), f"{path}: not utf-16", "near line 2", "--encoding")
    path.write_bytes("text,label\ncafé,b\n".encode("latin1"))
    user_error(lambda: read("classify", path), f"{path}:2: byte 0xe9", "--encoding cp1252")
    with pytest.raises(ValueError, match="latin1"):
        ReadConfig(encoding="latin-99")
    with pytest.raises(ValueError, match="hex"):  # an encoding, but not of text
        ReadConfig(encoding="hex")
