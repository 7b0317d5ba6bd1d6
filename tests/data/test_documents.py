"""Documents from files of every format, and the errors for invalid ones."""

import csv
import errno
import gzip
import io
import json
import os
import shutil
import sys
import types

import numpy as np
import pytest

from helpers.corpora import COMPRESS, standard_input
from helpers.errors import user_error
from helpers.formats import FORMATS
from regard.data import files
from regard.data.documents import read_documents, reiterable_chunks, text_size
from regard.data.reading import describe_sources, read_together


def read(*paths):
    return list(read_documents([str(path) for path in paths]))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_text_is_exact(tmp_path, suffix):
    """But for the line ends of Windows and old Macs, which version 1 kept, too."""
    content = "first\r\nsecond\rthird\n\n\tlast é 😀 \x0b\x1c\u2028 without newline"
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESS[suffix](content.encode()))
    assert read(tmp_path / f"a.txt{suffix}") == [content.replace("\r\n", "\n").replace("\r", "\n")]
    with read_together(version=1):
        assert read(tmp_path / f"a.txt{suffix}") == [content]
    row = json.dumps({"text": content})
    (tmp_path / f"a.jsonl{suffix}").write_bytes(COMPRESS[suffix](row.encode()))
    assert read(tmp_path / f"a.jsonl{suffix}") == read(tmp_path / f"a.txt{suffix}")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl_has_a_document_a_line(tmp_path, suffix):
    rows = [{"text": "one\ntwo"}, {"text": "drei ß", "id": 3}, {"text": " "}, {"text": "\ud83d\ude00"}]
    content = "\n\n".join(map(json.dumps, rows))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(COMPRESS[suffix](content.encode()))
    assert read(tmp_path / f"a.jsonl{suffix}") == ["one\ntwo", "drei ß", "😀"]


def test_any_other_name_is_text_and_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "README").write_bytes(b"\xef\xbb\xbfhi \xef\xbb\xbf")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "hi"}')
    assert read(tmp_path / "README", tmp_path / "a.jsonl") == ["hi \ufeff", "hi"]


def test_several_frames_of_a_zst_and_members_of_a_gz(tmp_path):
    for suffix in (".gz", ".xz", ".zst"):
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(COMPRESS[suffix](b"ab" * 9000) + COMPRESS[suffix](b"c\n"))
        assert read(path) == ["ab" * 9000 + "c\n"]


def test_a_folder_is_read_in_order_without_what_is_hidden(tmp_path):
    for name in ("b.txt", "a/z.md", "a/.hidden.txt", ".git/x.txt", "c.text", "picture.png", "d.txt.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(b"d") if name.endswith("gz") else name.encode())
    (tmp_path / "e.jsonl").write_text('{"text": "e1"}\n{"text": "e2"}\n')
    assert read(tmp_path) == ["a/z.md", "b.txt", "c.text", "d", "e1", "e2"]


def test_standard_input_is_one_document(monkeypatch):
    standard_input(monkeypatch, b"a\nb\n")
    assert read("-") == ["a\nb\n"]
    standard_input(monkeypatch, b"a\n\xff")
    user_error(lambda: read("-"), "standard input:2", "0xff")


@pytest.mark.parametrize("name", ["a.txt", "folder/", "a.jsonl.gz"])
def test_missing(tmp_path, name):
    user_error(lambda: read(f"{tmp_path}/{name}"), tmp_path / name, ": no such file")


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_empty(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    user_error(lambda: read(tmp_path / name), tmp_path / name, ": empty,")


def test_empty_in_a_folder_and_empty_folder(tmp_path):
    (tmp_path / "other.png").write_text("x")
    user_error(lambda: read(tmp_path), tmp_path, ".txt")
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b""))
    user_error(lambda: read(tmp_path), tmp_path / "b.txt.gz", ": empty,")


def test_binary(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nfine\nnot\0fine\n")
    user_error(lambda: read(tmp_path / "a.txt"), f"{tmp_path / 'a.txt'}:3:", "zero byte")
    (tmp_path / "b.txt").write_bytes("wide".encode("utf-16-le"))  # without a mark that says so
    user_error(lambda: read(tmp_path / "b.txt"), f"{tmp_path / 'b.txt'}:1:", "utf-16")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_not_utf8(tmp_path, name):
    content = b'{"text": "fine"}\r\n{"text": "\xc3\xa9 caf\xe9"}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    user_error(lambda: read(tmp_path / name), f"{tmp_path / name}:2:", "0xe9", "iconv -f cp1252 -t utf-8")


def test_longest_line(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 100)
    (tmp_path / "a.txt").write_bytes(b"x" * 100 + b"\n" + b"y" * 100)
    assert len(read(tmp_path / "a.txt")[0]) == 201
    (tmp_path / "a.txt").write_bytes(b"fine\n" + b"x" * 101)
    user_error(lambda: read(tmp_path / "a.txt"), f"{tmp_path / 'a.txt'}:2:", "100 bytes", "break")


def test_an_endless_line_is_not_read_to_its_end(monkeypatch):
    class Endless(io.RawIOBase):
        read = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.read += len(buffer)
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    endless = Endless()
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(endless)))
    user_error(lambda: read("-"), "standard input:1:", "10,000,000")
    assert endless.read < 2 * files.MAX_LINE


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_damaged(tmp_path, suffix):
    content = COMPRESS[suffix](np.random.default_rng(0).bytes(200_000).hex().encode())
    path = tmp_path / f"a.txt{suffix}"
    short, half = content[:-9], content[: len(content) // 2]
    changed = content[:100] + bytes(255 - byte for byte in content[100:2000]) + content[2000:]
    for bad in (short, half, changed, b"no such thing" * 9):
        path.write_bytes(bad)
        user_error(lambda: read(path), path, "damaged compressed file")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", "JSON"),
        ("[" * 100_000, "JSON"),
        ("1" * 5000, "JSON"),
        ("[1]", '"text"'),
        ('"text"', '"text"'),
        ('{"text": 5}', '"text"'),
        ('{"text": "\\ud800"}', "surrogate"),
    ],
)
def test_bad_jsonl(tmp_path, line, words):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n' + line)
    user_error(lambda: read(tmp_path / "a.jsonl"), f"{tmp_path / 'a.jsonl'}:3:", words)


def test_not_allowed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    user_error(lambda: read(tmp_path / "a.txt"), tmp_path / "a.txt", "Permission denied")
    monkeypatch.undo()

    def refuse_folder(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse_folder)
    user_error(lambda: read(tmp_path), tmp_path, "Permission denied")


class Rows(list):
    column_names = ("id", "text")


def test_hub(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        if name == "no/such":
            raise FileNotFoundError("Dataset not found\nmany lines")
        column = {"o/columns": "body", "o/none": "turns"}.get(name, "text")
        rows = Rows([{column: "a"}, {column: ""}, {column: None}, {column: "b"}])
        if column == "turns":
            rows = Rows([{column: ["a"]}])
        rows.column_names = ("id", column)
        return rows

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert read("hf:o/n", "hf:o/n/c:test", "hf:n:valid[:5]") == ["a", "b"] * 3
    assert asked == [("o/n", None, "train"), ("o/n", "c", "test"), ("n", None, "valid[:5]")]
    user_error(lambda: read("hf:no/such"), "hf:no/such", "Dataset not found")
    with read_together() as reading:
        assert read("hf:o/columns") == ["a", "b"]
    assert reading.sources["hf:o/columns"].columns == {"text": "body"}
    user_error(lambda: read("hf:o/none"), "hf:o/none", '"id", "turns"', "--text")
    monkeypatch.setitem(sys.modules, "datasets", None)
    user_error(lambda: read("hf:o/n"), "hf:o/n", "pip install 'regard[datasets]'")


LONG = ["One text of many words.", "\tAnother one, of more.\n", "And a third one of them."]
COLUMNS = {
    "known": {"id": [1, 2, 3], "Article": LONG},
    "obvious": {"review": LONG, "stars": [5, 4, 1]},
    "alone": {"id": [1, 2, 3], "quote": ["Ach", "\tO\n", "Oh"]},
    "inside": {"item": [{"n": 1, "body": text} for text in LONG]},
    "two": {"title": LONG, "abstract": LONG},
}


def rows_of(name):
    columns = COLUMNS[name]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (name, suffix)
        for name in COLUMNS
        for suffix in (".csv", ".tsv", ".json", ".jsonl")
        if (name, suffix) not in {("inside", ".csv"), ("inside", ".tsv")}  # cells are no objects
    ],
)
def test_the_column_of_a_table_is_found_or_asked_for(tmp_path, name, suffix):
    """As for every recipe; texts are exact."""
    path, rows = tmp_path / f"a{suffix}", rows_of(name)
    if suffix in (".csv", ".tsv"):
        quoted = [
            [str(cell) for cell in row.values()] for row in [dict(zip(rows[0], rows[0], strict=True)), *rows]
        ]
        with path.open("w", newline="") as file:
            if suffix == ".csv":
                csv.writer(file).writerows(quoted)
            else:
                file.writelines("\t".join(" ".join(c.split()) for c in row) + "\n" for row in quoted)
    else:
        path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    if name == "two":
        user_error(lambda: read(path), path, '"title", "abstract"', "--text NAME")
        with read_together(columns={"text": "2"}) as reading:
            assert len(read(path)) == (4 if suffix in (".csv", ".tsv") else 3)  # names like texts are none
        return
    column = {"known": "Article", "obvious": "review", "alone": "quote", "inside": "item.body"}[name]
    expected = [row["item"]["body"] if name == "inside" else row[column] for row in rows]
    with read_together() as reading:
        texts = read(path)
    assert texts == ([" ".join(text.split()) for text in expected] if suffix == ".tsv" else expected)
    (source,) = reading.sources.values()
    assert source.columns == {"text": column}
    assert source.is_guess
    assert "choose others with --text" in describe_sources([source], "")[0]


def test_earlier_versions_go_on_reading_what_they_read(tmp_path):
    """Tables that are text as they are, cells without the blanks around them, and folders without tables."""
    table = "id,text\n1, One text of many words.\n2,Another one.\n"
    (tmp_path / "a.csv").write_text(table)
    (tmp_path / "a.json").write_text('[{"text": " a"}]')
    (tmp_path / "a.jsonl").write_text('{"text": " a"}\n')
    (tmp_path / "b.txt").write_text("text")
    for version in (1, 2, 3):
        with read_together(version=version):
            assert read(tmp_path / "a.csv") == [table]
            assert read(tmp_path / "a.json") == ['[{"text": " a"}]']
            assert read(tmp_path) == [" a", "text"]
        with read_together(version=version, columns={"text": "text"}):
            assert read(tmp_path / "a.csv") == ["One text of many words.", "Another one."]
            assert read(tmp_path / "a.jsonl") == ["a"]
    assert read(tmp_path / "a.csv") == [" One text of many words.", "Another one."]
    assert read(tmp_path) == [" One text of many words.", "Another one.", " a", " a", "text"]


@pytest.mark.parametrize("is_zip", [False, True])
def test_folders_of_tables_are_read(tmp_path, is_zip):
    """Also as hubs have them, with a description, and as save_to_disk writes them."""
    folder, rows = tmp_path / "data", [{"label": n % 2, "text": text} for n, text in enumerate(LONG)]
    folder.mkdir()
    for name in ("csv", "parquet", "feather", "arrow stream", "xlsx", "json"):
        file, write = FORMATS[name]
        write(folder / f"{name[:2]}{file}", rows)
    (folder / "README.md").write_text("# About it")
    (folder / "dataset_info.json").write_text("{}")
    (folder / "picture.png").write_text("")
    path = folder
    if is_zip:
        path = shutil.make_archive(str(tmp_path / "data"), "zip", folder)
    with read_together() as reading:
        assert read(path) == LONG * 6
    assert "README.md: left out" in next(note for note in reading.notes if "README" in note)
    assert {tuple(source.columns) for source in reading.sources.values()} == {("text",)}


def test_a_table_beside_texts_is_read_if_its_column_is_known(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "about.csv").write_text("file,author\na.txt,Ada\nb.txt,Eve\n")
    with read_together() as reading:
        assert read(tmp_path) == ["text"]
    (note,) = reading.notes
    assert all(words in note for words in ("left out 1 of 1 tables", "about.csv", "--text"))
    with read_together(columns={"text": "author"}) as reading:
        assert read(tmp_path) == ["text", "Ada", "Eve"]
    assert not reading.notes
    with read_together(columns={"text": "author"}) as reading:
        assert read(tmp_path / "a.txt") == ["text"]
    assert "--text is not used" in next(iter(reading.notes))


def test_blank_documents_are_counted_and_json_lines_are_known_in_a_pipe(tmp_path, monkeypatch):
    lines = ['{"text": "a"}', '{"text": null}', '{"text": " "}', '{"body": "b"}', '{"text": "c"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    standard_input(monkeypatch, "\n".join(lines).encode())
    for path in (tmp_path / "a.jsonl", "-"):
        with read_together() as reading:
            assert read(path) == ["a", "c"]
        (source,) = reading.sources.values()
        assert [count for count, _ in source.left_out.values()] == [3]
        assert (source.rows, source.unit) == (2, "row")


def test_what_can_be_read_once_is_held(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("a")
    standard_input(monkeypatch, b"b")
    texts = reiterable_chunks([str(tmp_path / "a.txt"), "-"])
    (tmp_path / "a.txt").write_text("new")
    assert [list(texts), list(texts)] == [[(True, "new"), (True, "b")]] * 2


def test_size_is_known_if_it_takes_no_reading(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("12345")
    (tmp_path / "folder" / "b.md").write_text("é")
    plain = [str(tmp_path / "a.txt"), str(tmp_path / "folder")]
    assert text_size(plain) == 7
    for name in ("c.jsonl", "c.txt.GZ", "c.jsonl.xz"):
        (tmp_path / name).write_text("{}")
        assert text_size([*plain, str(tmp_path / name)]) is None
    assert text_size(["-"]) is text_size(["hf:o/n"]) is None
