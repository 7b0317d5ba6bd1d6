"""Labelled texts: every format and every kind of wrong input; classes and holding out."""

import json
import sys
import types
from pathlib import Path

import pytest

from helpers.corpora import COMPRESS, standard_input, write_file
from helpers.errors import user_error
from regard.data import files
from regard.data.labels import LabelledTexts, class_ids, class_names, read_labels, split_labels
from regard.data.reading import read_together

# Reading


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tsv(tmp_path, suffix, newline):
    lines = ["\ufefftext\tlabel", " a b \tx", "", '"ä" 😀, "\ty z ', "c\u2028d\tx"]
    path = write_file(tmp_path / "a.tsv", newline.join(lines), suffix)
    table = read_labels([path])
    assert table == LabelledTexts(["a b", '"ä" 😀, "', "c\u2028d"], None, ["x", "y z", "x"], None)
    assert table.where == [f"{path}:{line}" for line in (2, 4, 5)]
    assert (len(table), table.kind, table.columns) == (3, "class", ["text", "label"])


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv(tmp_path, suffix, newline):
    lines = ["score,id, other,text", '-3,1,b,"one, ""two""', 'three"', "", "2e-1,2,d,c d"]
    path = write_file(tmp_path / "a.CSV", newline.join(lines), suffix)
    table = read_labels([path])
    assert table == LabelledTexts(['one, "two"\nthree', "c d"], ["b", "d"], None, [-3.0, 0.2])
    assert table.where == [f"{path}:2", f"{path}:5"]
    assert (len(table), table.kind, table.columns) == (2, "score", ["text", "other", "score"])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl(tmp_path, suffix):
    rows = [
        {"label": 1, "text": " a\nb "},
        {"text": "c", "id": 3, "label": "1"},
        {"text": "d", "label": True},
    ]
    path = write_file(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)), suffix)
    table = read_labels([path])
    assert table == LabelledTexts(["a\nb", "c", "d"], None, ["1", "1", "true"], None)
    assert table.where == [f"{path}:{line}" for line in (1, 3, 5)]


@pytest.mark.parametrize(
    "columns",
    [["text", "label"], ["label", "other", "text"], ["score", "text"], ["n", "text", "m", "score", "other"]],
)
def test_every_form_is_the_same(tmp_path, columns):
    values = [{name: f"{name} {row}" for name in columns} | {"score": row / 7} for row in range(11)]
    rows = [[str(value[name]) for name in columns] for value in values]
    tables = [
        read_labels([write_file(tmp_path / name, "\n".join(content))])
        for name, content in {
            "a.tsv": map("\t".join, [columns, *rows]),
            "a.csv": map(",".join, [columns, *rows]),
            "a.jsonl": (json.dumps({name: value[name] for name in columns}) for value in values),
        }.items()
    ]
    assert tables[0] == tables[1] == tables[2]
    assert set(tables[0].columns) == {"text", "other", "label", "score"} & set(columns)
    for name, column in (("label", tables[0].labels), ("score", tables[0].scores)):
        assert column == ([value[name] for value in values] if name in columns else None)


def test_several_files_and_folders(tmp_path):
    (tmp_path / "b").mkdir()
    write_file(tmp_path / "b" / "y.csv", "label,text\n3,three\n")
    write_file(tmp_path / "b" / "x.jsonl", '{"text": "two", "label": 2}')
    write_file(tmp_path / "b" / "z.txt", "not this")
    own = write_file(tmp_path / "a.tsv", "text\tlabel\none\t1\n", ".gz")
    table = read_labels([own, tmp_path / "b"])
    assert (table.texts, table.labels) == (["one", "two", "three"], ["1", "2", "3"])
    other = write_file(tmp_path / "c.tsv", "text\tscore\none\t1\n")
    user_error(lambda: read_labels([own, other]), other, "text score", own, "text label")
    user_error(
        lambda: read_labels([write_file(tmp_path / "z.txt", "x")]), "z.txt: ", ".csv .tsv .jsonl .json"
    )
    user_error(lambda: read_labels([tmp_path / "missing"]), "missing: no such file")
    user_error(lambda: read_labels([tmp_path / "missing.csv.gz"]), "missing.csv.gz: no such file")
    user_error(lambda: read_labels([]), "no file")


def test_standard_input_is_a_tsv(monkeypatch):
    standard_input(monkeypatch, b"text\tlabel\na\tb\n")
    assert read_labels(["-"]).labels == ["b"]
    standard_input(monkeypatch, b"text\tlabel\na\n")
    user_error(lambda: read_labels(["-"]), "standard input:2: 1 column", "header has 2")
    standard_input(monkeypatch, b"\n")
    user_error(lambda: read_labels(["-"]), "standard input: empty")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("a good film,positive", ['"a good film", "positive"', "text", "other"]),
        ("text,grade", ['"text", "grade"', "label or score", "--label"]),
        ("label,other", ['"label", "other"', "text"]),
        ("text,label,score", ["label or score", "--label", "--score"]),
        ("review,comment,label", ['"review" and "comment"', "--text"]),
        ("text,label,text", ["text", "once"]),
        ("x" * 1000 + ",label", ['"' + "x" * 40 + '…"']),
        (",".join(f"n{i}" for i in range(1000)), ['"n19", … first;']),
    ],
)
def test_wrong_names(tmp_path, header, words):
    for suffix, tab in (("csv", ","), ("tsv", "\t")):
        path = write_file(tmp_path / f"a.{suffix}", header.replace(",", tab) + "\n")
        assert len(user_error(lambda path=path: read_labels([path]), f"{path}:1:", *words)) < 500


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a|b", "2 columns, but the header has 3"),
        ("a|b|1|", "4 columns, but the header has 3"),
        ("a", "1 column, but the header has 3"),
        (" |b|1", "an empty text"),
        ("a||1", "an empty other"),
        ("||", "an empty text"),
        ("a|b|", "an empty score"),
        ("a|b|two", 'the score "two" is not a number'),
        ("a|b|nan", 'the score "nan" is not a number'),
        ("a|b|-inf", 'the score "-inf" is not a number'),
    ],
)
def test_wrong_rows(tmp_path, row, words):
    for suffix, tab in (("csv", ","), ("tsv", "\t")):
        content = f"text|other|score\na|b|1\n\n{row}\na|b|1\n".replace("|", tab)
        path = write_file(tmp_path / f"a.{suffix}", content)
        user_error(lambda path=path: read_labels([path]), f"{path}:4: {words}; ")
    path = write_file(tmp_path / "b.tsv", "text\tlabel\na\t \n")
    user_error(lambda: read_labels([path]), f"{path}:2: an empty label")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('"a" b,x\n', 4),
        ('"a\n\nb""", x\n"c\nd', 7),
        ('"' + "a\n" * 100_000, 4),  # a quote that is never closed takes everything in
    ],
)
def test_wrong_csv(tmp_path, rows, line):
    path = write_file(tmp_path / "a.csv", 'text,label\n"a\nb",x\n' + rows)
    user_error(lambda: read_labels([path]), f"{path}:{line}: not CSV (", "double")


def test_a_line_is_named_after_one_of_several_lines(tmp_path):
    path = write_file(tmp_path / "a.csv", 'text,label\n"a\nb",x\n"c\n\nd"\n')
    user_error(lambda: read_labels([path]), f"{path}:4: 1 column,")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", "JSON"),
        ("[1]", '"text"'),
        ("{}", "an empty text"),
        ('{"text": "a"}', "an empty label"),
        ('{"text": 5, "label": "c"}', 'no string under "text", but "5"'),
        ('{"text": "a", "label": null}', "an empty label"),
        ('{"text": "a", "label": 0.5}', 'no string under "label", but "0.5"'),
        ('{"text": "\\n", "label": "c"}', "an empty text"),
        ('{"text": "a", "label": "\\ud800"}', "surrogate"),
    ],
)
def test_wrong_jsonl(tmp_path, line, words):
    path = write_file(tmp_path / "a.jsonl", '{"text": "a", "label": "b"}\n\n' + line)
    user_error(lambda: read_labels([path]), f"{path}:3:", words)


def test_wrong_jsonl_at_its_beginning(tmp_path):
    path = write_file(tmp_path / "a.jsonl", '{"words": "a", "label": "b"}')
    user_error(lambda: read_labels([path]), f"{path}:1:", '"words", "label"', "text", "label or score")
    for score in ("true", "[1]", '"x"', "1" + "0" * 400):
        write_file(tmp_path / "a.jsonl", f'{{"text": "a", "score": {score}}}')
        assert len(user_error(lambda: read_labels([path]), f"{path}:1: the score", "not a number")) < 200
    write_file(tmp_path / "a.jsonl", '{"text": "a", "score": "1.5"}')
    assert read_labels([path]).scores == [1.5]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_wrong_bytes(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a{suffix}"
    good = {
        ".tsv": b"text\tlabel\nx\ty\n",
        ".csv": b"text,label\nx,y\n",
        ".jsonl": b'{"text":"x","label":"y"}\n',
    }
    line = good[suffix].count(b"\n") + 1
    failing = lambda *words: user_error(lambda: read_labels([str(path)]), *words)  # noqa: E731
    failing(f"{path}: no such file")
    for content, word in ((b"", "empty"), (b" \n\n", "empty")):
        write_file(path, content)
        failing(f"{path}: {word}")
    for bad, word in ((b"\xe9\n", "0xe9"), (b"\0\n", "zero byte")):
        write_file(path, good[suffix] + bad)
        failing(f"{path}:{line}:", word)
    monkeypatch.setattr(files, "MAX_LINE", 100)
    write_file(path, good[suffix] + b"x" * 101)
    failing(f"{path}:{line}:", "100 bytes")
    if suffix != ".jsonl":
        write_file(path, good[suffix].split(b"\n")[0])
        failing(f"{path}:", "header", "no row")


def test_hub(monkeypatch):
    class Rows(list):
        column_names = ("id", "label", "text")
        features: dict = {}  # noqa: RUF012

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return rows

    asked: list = []
    rows = Rows([{"id": 1, "text": " a", "label": 0}, {"id": 2, "text": "b", "label": 1}])
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert read_labels(["hf:o/n"]) == LabelledTexts(["a", "b"], None, ["0", "1"], None)
    rows.features = {"label": types.SimpleNamespace(names=["no", "yes"]), "text": object()}
    table = read_labels(["hf:o/n/c:test", "hf:n"])
    assert table == LabelledTexts(["a", "b"] * 2, None, ["no", "yes"] * 2, None)
    assert table.where[1] == "hf:o/n/c:test row 2"
    assert asked == [("o/n", None, "train"), ("o/n", "c", "test"), ("n", None, "train")]
    rows.append({"id": 3, "text": "c", "label": -1})
    user_error(lambda: read_labels(["hf:o/n"]), "hf:o/n row 3:", "label -1")
    rows[2] = {"id": 3, "text": None, "label": 0}
    user_error(lambda: read_labels(["hf:o/n"]), "hf:o/n row 3: an empty text")
    rows.column_names = ("sound", "label")
    user_error(lambda: read_labels(["hf:o/n"]), "hf:o/n:", '"sound", "label"', "text")
    rows.column_names = ("text", "other", "score")
    rows[:] = [{"text": "a", "other": "b", "score": 2}]
    assert read_labels(["hf:o/n"]) == LabelledTexts(["a"], ["b"], None, [2.0])
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace())
    user_error(lambda: read_labels(["hf:o/n"]), "hf:o/n: cannot be loaded", "OWNER/NAME/CONFIG:SPLIT")
    monkeypatch.setitem(sys.modules, "datasets", None)
    user_error(lambda: read_labels(["hf:o/n"]), "hf:o/n: needs", "pip install 'regard[datasets]'")


# Classes


def of(labels):
    return LabelledTexts([f"text {i}" for i in range(len(labels))], None, list(labels), None)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ("bacab", ["a", "b", "c"]),
        (["10", "9", "-1", "+2.5", "9"], ["-1", "+2.5", "9", "10"]),
        (["10", "x", "9", "nan", "inf"], ["9", "10", "inf", "nan", "x"]),
        (["1", "1.0"], ["1", "1.0"]),
    ],
)
def test_classes(labels, names):
    assert class_names(labels) == class_names(reversed(labels)) == names
    assert [names[number] for number in class_ids(of(labels), names)] == list(labels)


def test_wrong_classes(tmp_path):
    user_error(lambda: class_names(["good"] * 3), 'only the class "good"', "two or more")
    user_error(lambda: class_names([]), "no class")
    path = write_file(tmp_path / "a.tsv", "text\tlabel\na\tx\nb\tz\n")
    said = user_error(lambda: class_ids(read_labels([path]), ["x", "y"]), f"{path}:3:", '"z"', '"x", "y"')
    assert user_error(lambda: class_ids(of("xz"), ["x", "y"])) == said.removeprefix(f"{path}:3: ")


# Holding out


def test_every_tenth_of_each_class_is_held_out():
    table = of("a" * 23 + "bc" * 13 + "d" * 9)
    train, valid = split_labels(table, None, 0.1)
    assert valid.texts == [f"text {i}" for i in (9, 19, 23 + 18, 23 + 19)]
    assert valid.labels == ["a", "a", "b", "c"]
    assert sorted(train.texts + valid.texts) == sorted(table.texts)
    assert train.texts == [text for text in table.texts if text not in valid.texts]
    assert [table.texts.index(text) for text in split_labels(table, None, 0.2)[1].texts][:2] == [4, 9]


@pytest.mark.parametrize(
    ("labels", "holdout", "held"),
    [
        ("aabab", 0.1, [3, 4]),  # few: the last of each
        ("aab", 0.1, [1]),  # but never all of a class
        ("ab", 0.1, []),
        ("", 0.1, []),
        ("ab" * 31, 0, []),
        ("aaab", 0.9, [1]),
    ],
)
def test_few_are_held_out(labels, holdout, held):
    train, valid = split_labels(of(labels), None, holdout)
    assert valid.texts == [f"text {i}" for i in held]
    assert len(train) + len(valid) == len(labels)
    assert set(labels) == set(train.labels)


def test_scores_and_pairs_are_held_out_with_all_that_belongs_to_them(tmp_path):
    content = "text\tother\tscore\n" + "".join(f"a{i}\tb{i}\t{i}\n" for i in range(29))
    path = write_file(tmp_path / "a.tsv", content)
    train, valid = split_labels(read_labels([path]), None, 0.1)
    assert valid == LabelledTexts(["a9", "a19"], ["b9", "b19"], None, [9.0, 19.0])
    assert valid.where == [f"{path}:11", f"{path}:21"]
    assert len(train) == 27
    assert (train.describe(), of("a").describe(), of("").describe()) == ("27 scores", "1 label", "0 labels")


def test_validation_data_of_their_own():
    table, valid = of("abab"), of("ba")
    assert split_labels(table, valid, 0.1) == (table, valid)
    other = LabelledTexts(["a"], ["b"], None, [1.0])
    user_error(lambda: split_labels(table, other, 0.1), "text other score", "text label")


# Columns without known names


def table_text(header: str, *rows: str) -> str:
    return "\n".join([header, *rows, *rows, *rows]) + "\n"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (table_text("Review Text,Sentiment", "good,pos", "bad,neg"), "Review Text"),
        (table_text("ID,Title,Review Text,Rating", "7,a b c d,good,5", "8,e f g h,bad,1"), "Review Text"),
        (table_text("id,user,opinion,label", "1,ann,I like it,x", "2,bob,not for me,y"), "opinion"),
        (table_text("date,opinion,stars", "2020,I like it a lot,4", "2021,not at all for me,1"), "opinion"),
    ],
)  # fmt: skip
def test_an_obvious_text_beside_a_named_label(tmp_path: Path, text: str, chosen: str) -> None:
    path = write_file(tmp_path / "a.csv", text)
    with read_together() as reading:
        table = read_labels([path])
    assert reading.sources[path].columns["text"] == chosen
    assert reading.sources[path].is_guess
    assert table.kind == "class"


@pytest.mark.parametrize(
    "text",
    [
        table_text("Clean Text,Raw Text,label", "a good one,A good one,x", "a bad one,A bad one!,y"),
        table_text("plot,opinion,label", "a b c d,I like it a lot,x", "e f g h,not at all for me,y"),
        table_text("city,owner,label", "Rome,ann,x", "Oslo,bob,y"),
    ],
)
def test_a_text_that_is_not_obvious_is_refused(tmp_path: Path, text: str) -> None:
    path = write_file(tmp_path / "a.csv", text)
    user_error(lambda: read_labels([path]), f"{path}:1:", "--text NAME")
