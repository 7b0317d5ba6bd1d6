"""Pairs: every format and every kind of wrong input; conversations and holding out."""

import gzip
import json
import sys
import types

import pytest

from helpers.corpora import COMPRESS, standard_input, write_file
from helpers.errors import user_error
from regard.data import files
from regard.data.pairs import build_histories, conversation_ids, read_pairs, split_pairs
from regard.data.reading import read_together


def read(*paths):
    return list(read_pairs([str(path) for path in paths]))


# Reading


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tsv(tmp_path, suffix, newline):
    lines = ["\ufeffa b\tä 😀", "", "  ", " c \t d\u2028e ", "\t", "f\t", "g\th"]
    path = write_file(tmp_path / "a.tsv", newline.join(lines), suffix)
    assert read(path) == [("a b", "ä 😀"), ("c", "d\u2028e"), ("", ""), ("f", ""), ("g", "h")]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl(tmp_path, suffix):
    rows = [{"source": " a ", "target": "b\tc", "id": 3}, {"turns": ["d", " e ", "f"]}, {"turns": ["g", ""]}]
    path = write_file(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)), suffix)
    assert read(path) == [("a", "b\tc"), ("d", "e"), ("e", "f"), ("g", "")]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_parallel_files(tmp_path, suffix):
    en = write_file(tmp_path / "a.en", "one\r\n\r\n\tthree\r\n", suffix)
    de = write_file(tmp_path / "a.de", "eins \n \ndrei\tdrei", suffix)
    assert read(en, de) == [("one", "eins"), ("", ""), ("three", "drei\tdrei")]


def test_several_files_and_folders(tmp_path):
    for name in ("b/y.tsv", "b/x.jsonl", "b/z.txt", "b/.h.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_file(tmp_path / name, '{"source": "1", "target": "2"}' if "json" in name else "3\t4")
    own = write_file(tmp_path / "a.TSV", "5\t6", ".gz")
    assert read(own, tmp_path / "b") == [("5", "6"), ("1", "2"), ("3", "4")]
    (tmp_path / "c").mkdir()
    write_file(tmp_path / "c" / "z.txt", "3\t4")
    user_error(lambda: read(tmp_path / "c"), tmp_path / "c", ".jsonl", ".tsv")


def test_standard_input_is_a_tsv(monkeypatch):
    standard_input(monkeypatch, b"a\tb\n")
    assert read("-") == [("a", "b")]
    standard_input(monkeypatch, b"a\tb\nc\n")
    user_error(lambda: read("-"), "standard input:2: 1 column,", "tab")
    standard_input(monkeypatch, b"\n")
    user_error(lambda: read("-"), "standard input: empty")


@pytest.mark.parametrize(
    ("line", "columns"), [("a", "1 column,"), ("a\tb\tc", "3 columns"), ("\t\t", "3 co")]
)
def test_columns(tmp_path, line, columns):
    path = write_file(tmp_path / "a.tsv", f"a\tb\n\n{line}\nc\td\n")
    user_error(lambda: read(path), f"{path}:3: {columns}", "tab")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", "JSON"),
        ("[1]", "not an object"),
        ('{"source": "a", "target": 1}', '"target"'),
        ('{"turns": ["a"]}', "two turns"),
        ('{"turns": "ab"}', "two turns"),
        ('{"turns": ["a", "b", 3]}', "two turns"),
        ('{"source": "a", "target": "\\ud800"}', "surrogate"),
    ],
)
def test_bad_jsonl(tmp_path, line, words):
    path = write_file(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n\n' + line)
    user_error(lambda: read(path), f"{path}:3:", words)


def test_uneven_parallel_files(tmp_path):
    short, long = write_file(tmp_path / "a.en", "x\n" * 3), write_file(tmp_path / "a.de", "y\n" * 1007)
    user_error(lambda: read(short, long), short, "3 lines", long, "1,007", "remove")
    user_error(lambda: read(long, short), long, "1,007 lines", short, "3;")
    blank = write_file(tmp_path / "b.en", "\n\n")
    for pair in ((blank, long), (long, blank), (blank, blank)):
        user_error(lambda pair=pair: read(*pair), f"{blank}: empty")


def test_what_makes_no_pairs(tmp_path):
    a, b, c, tsv = (write_file(tmp_path / name, "x") for name in ("a.en", "a.de", "a.fr", "a.tsv"))
    user_error(lambda: read(a), f"{a}: 1 file", "pairs take two", ".tsv (source TAB target)")
    user_error(lambda: read(a, b, c), f"{a}: 3 files", "pairs take two")
    user_error(lambda: read(tsv, a, b), a, tsv, "separately")
    user_error(lambda: read(a, "-"), a, "standard input", "separately")


def test_wrong_bytes(tmp_path, monkeypatch):
    good = write_file(tmp_path / "good.en", "x\ny\n")
    for name, paths in (("a.tsv", lambda path: [path]), ("a.de", lambda path: [good, path])):
        tab = b"\t" if name == "a.tsv" else b" "
        path = tmp_path / name
        failing = lambda *words, p=path, g=paths: user_error(lambda: read(*g(p)), *words)  # noqa: E731
        failing(path, ": no such file")
        for content, words in [(b"a%sb\nc%s\xe9\n", ("2:", "0xe9")), (b"a%sb\nc%s\0\n", ("2:", "zero byte"))]:
            write_file(path, content.replace(b"%s", tab))
            failing(f"{path}:{words[0]}", words[1])
        write_file(path, b"")
        failing(f"{path}: empty")
        monkeypatch.setattr(files, "MAX_LINE", 100)
        write_file(path, b"a" + tab + b"b\n" + b"x" * 101)
        failing(f"{path}:2:", "100 bytes")
        monkeypatch.undo()
        damaged = path.with_name(name + ".gz")
        damaged.write_bytes(gzip.compress(b"a" + tab + b"b\n" + b"c" + tab + b"d\n")[:-5])
        user_error(lambda g=paths, d=damaged: read(*g(d)), damaged, "damaged compressed file")
    user_error(lambda: read(tmp_path / "missing"), tmp_path / "missing", ": no such file")
    user_error(lambda: read(tmp_path / "missing.tsv.gz"), "missing.tsv.gz: no such file")


def test_hub(monkeypatch):
    class Rows(list):
        column_names = ("source", "target")

    rows = Rows([{"source": " a", "target": "b "}, {"source": None, "target": "c"}])
    library = types.SimpleNamespace(load_dataset=lambda name, config, split: rows)
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert read("hf:o/n", "hf:o/n:test") == [("a", "b"), ("", "c")] * 2
    rows.append({"source": {"en": "a"}, "target": "b"})
    user_error(lambda: read("hf:o/n"), "hf:o/n", '"source.en"', "--source")
    rows.column_names = ("source", "mood")
    user_error(lambda: read("hf:o/n"), "hf:o/n", "--target", '"source", "mood"')


# Conversations

TALK = [("a", "b"), ("b", "c"), ("c", "d"), ("x", "y"), ("a", "b"), ("a", "b"), ("b", "e")]


def test_conversations_and_histories():
    assert conversation_ids(TALK) == [0, 0, 0, 1, 2, 3, 3]
    assert conversation_ids([]) == []
    assert build_histories(TALK, 1) == [([source], target) for source, target in TALK]
    two = [["a"], ["a", "b"], ["b", "c"], ["x"], ["a"], ["a"], ["a", "b"]]
    assert build_histories(TALK, 2) == [(turns, target) for turns, (_, target) in zip(two, TALK, strict=True)]
    assert build_histories(TALK, 5)[2] == (["a", "b", "c"], "d")


@pytest.mark.parametrize(
    ("count", "holdout", "held"),
    [
        (31, 0.1, [9, 19, 29]),
        (11, 0.25, [3, 7]),
        (7, 0.1, [6]),
        (7, 0.5, [4, 5, 6]),
        (2, 0.99, [1]),
        (53, 0.01, [52]),
        (1, 0.5, []),
        (0, 0.5, []),
        (31, 0, []),
    ],
)
def test_whole_conversations_are_held_out(count, holdout, held):
    pairs = [(f"{n}.{turn}", f"{n}.{turn + 1}") for n in range(count) for turn in range(n % 3 + 1)]
    train, valid = split_pairs(pairs, None, holdout)
    assert valid == [pair for pair in pairs if int(pair[0].split(".")[0]) in held]
    assert train == [pair for pair in pairs if pair not in valid]
    assert split_pairs(pairs, TALK, holdout) == (pairs, TALK)


@pytest.mark.parametrize(
    "header", ["source\ttarget", "en\tde", "Question\tAnswer", "en_US\tde-DE", "sentence1 \tsentence2"]
)
def test_a_header_is_no_pair(tmp_path, header):
    path = write_file(tmp_path / "a.tsv", f"{header}\na\tb\n{header}\n")
    words = tuple(cell.strip() for cell in header.split("\t"))
    with read_together() as reading:
        assert read(path) == [("a", "b"), words]
    (note,) = reading.notes
    assert f"{path}:1" in note
    assert words[0] in note
    with read_together(version=1):
        assert read(path) == [words, ("a", "b"), words]
    assert read(write_file(tmp_path / "b.tsv", f"\n{header}\n")) == [words]  # as the note says


@pytest.mark.parametrize(
    "line", ["source\tsource", "target\tsource", "a\tb", "the source\tthe target", "en\tx"]
)
def test_a_pair_is_no_header(tmp_path, line):
    assert read(write_file(tmp_path / "a.tsv", line)) == [tuple(line.split("\t"))]


def test_pairs_with_one_source_stay_together():
    pairs = [(f"s{n % 23}", f"t{n}") for n in range(100)]
    train, valid = split_pairs(pairs, None, 0.1)
    assert {source for source, _ in valid} == {"s9", "s19"}
    assert sorted(train + valid) == sorted(pairs)
    assert not {source for source, _ in train} & {source for source, _ in valid}
    with read_together(version=1):
        assert split_pairs(pairs, None, 0.1)[1] == pairs[9::10]
