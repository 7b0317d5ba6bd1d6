"""Tables that are wrong, each with what its message has to say; and what is left out and counted."""

import io
import json
from pathlib import Path

import pytest

from helpers.errors import user_error
from helpers.formats import READ, read_labels, write_parquet
from regard.data import labels
from regard.data.cells import is_class_column
from regard.data.pairs import read_pairs
from regard.data.reading import describe_sources, read_together

# Wrong files

LABELLED = "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40))
TMX = (
    b'<tmx><body><tu><tuv xml:lang="de"><seg>Ein Haus am See</seg></tuv>'
    b'<tuv xml:lang="en"><seg>A house by a lake</seg></tuv></tu></body></tmx>'
)
MALFORMED = [
    ("classify", "a.csv", b"", {}, ["a.csv: empty"]),
    ("classify", "a.csv", b"text,label\n", {}, ["a.csv", "no row"]),
    (
        "classify",
        "a.csv",
        LABELLED.replace("text 7,b", "text 7,b,c").encode(),
        {},
        ["a.csv:9: 3 columns", "header has 2"],
    ),
    (
        "classify",
        "a.csv",
        LABELLED.replace("text 7,", ",").replace("text 9,", ",").replace("text 3,", ",").encode(),
        {},
        ["a.csv:5: an empty text", "3 of 40 rows"],
    ),
    ("classify", "a.csv", b'text,label\n"a,b\nc,d\n', {}, ["a.csv:2: not CSV", "double"]),
    ("classify", "a.csv", LABELLED.encode("utf-16-le"), {}, ["a.csv:1", "zero byte", "utf-16"]),
    ("classify", "a.csv", "text,label\ncafé,b\n".encode("latin1"), {}, ["a.csv:2: byte 0xe9 is not UTF-8"]),
    (
        "classify",
        "a.csv",
        LABELLED.encode(),
        {"text": "review"},
        ['no column "review" (--text)', '"text", "label"'],
    ),
    (
        "classify",
        "a.csv",
        b"q,q,label\na,b,c\n",
        {"text": "q"},
        ['several columns are named "q"', "--text 1"],
    ),
    ("classify", "a.csv", LABELLED.encode(), {"label": "3"}, ['no column "3" (--label)']),
    (
        "classify",
        "a.csv",
        LABELLED.encode(),
        {"source": "text"},
        ["--source", "--text --other --label --score"],
    ),
    ("classify", "a.csv", b"review,comment,label\na,b,c\n", {}, ['"review" and "comment"', "--text"]),
    ("classify", "a.csv", b"text,label,score\na,b,1\n", {}, ["label or score", "--label", "--score"]),
    ("classify", "a.json", b'[{"text": "a"', {}, ["a.json: not JSON", "list of objects"]),
    ("classify", "a.json", b'{"a": 1}', {}, ["a.json: no list of rows"]),
    ("classify", "a.json", b'{"x": [{"a": 1}], "y": [{"a": 1}, {}]}', {}, ["several", '"x", "y"', "a file"]),
    ("classify", "a.json", b'{"x": {"a": 1}, "y": ' * 700 + b"[1]" + b"}" * 700, {}, ["no list of rows"]),
    ("classify", "a.json", b"[" * 100_000, {}, ["a.json: not JSON"]),
    ("classify", "a.json", b'[{"text": "a", "label": "b"}, 5]', {}, ["a.json row 2: not an object"]),
    (
        "classify",
        "a.jsonl",
        b'{"text": "a", "label": "b"}\n{"text": {"x": 1}, "label": "b"}\n',
        {},
        ['"text.x"', "--text"],
    ),
    ("classify", "a.parquet", b"PAR1 and nothing else", {}, ["a.parquet", "not a complete Parquet"]),
    ("classify", "a.xlsx", b"PK\x03\x04 no sheet", {}, ["a.xlsx", "not a readable .xlsx"]),
    ("classify", "a.pdf", b"%PDF", {}, ["a.pdf: not a table", ".parquet"]),
    ("translate", "a.csv", b"a,b,c\nd,e,f\n", {}, ["a.csv:1: 3 columns without names", "--source"]),
    ("translate", "a.csv", b"en,de,fr\nd,e,f\n", {}, ['"en", "de", "fr"', "--source", "--target"]),
    ("tag", "a.jsonl", b'{"tokens": ["a", "b"], "ner_tags": ["O"]}\n', {}, ["a.jsonl:1: 2 words, but 1 tag"]),
    (
        "tag",
        "a.jsonl",
        b'{"tokens": ["a"], "ner_tags": ["O"], "pos_tags": ["X"]}\n',
        {},
        ['"ner_tags" and "pos_tags"', "--tags"],
    ),
    (
        "span",
        "a.json",
        b'{"data": [{"title": "t", "paragraphs": [{"context": "x"}]}]}',
        {},
        ["row 1, paragraph 1", "qas"],
    ),
    ("span", "a.csv", b"question,context,answer\nq,a b,c\n", {}, ["a.csv:2", '"c" is not in the context']),
    ("see", "a.csv", b"image,label\nnone.png,owl\n", {}, ["a.csv:2: no image 'none.png'"]),
    ("write", "a.csv", b"text,n\none, and, two\n", {}, ["a.csv:2: 3 columns", "quotes", ".txt"]),
    ("write", "a.json", b'{"a": 1}', {}, ["a.json: no list of rows"]),
    ("write", "a.tmx", TMX, {}, ['"de", "en"', "--text NAME"]),
    ("write", "a.docx", b"PK\x03\x04\0", {}, ["a.docx: ", "is not text", ".txt"]),
    ("write", "a.rtf", b"{\\rtf1 Hi}", {}, ["a.rtf: ", "is not text", ".txt"]),
    ("classify", "a.xls", b"\xd0\xcf", {}, ["a.xls: not a table", "save it as .xlsx"]),
    ("translate", "a.txt", b"a\tb\n", {}, ["a.txt: 1 file", "tab", ".tsv"]),
    ("hear", "a.csv", b"image,label\nnone.png,owl\n", {}, ["audio and label", "--audio"]),
]


@pytest.mark.parametrize(("recipe", "file", "data", "columns", "words"), MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_wrong_is_named(
    tmp_path: Path, recipe: str, file: str, data: bytes, columns: dict[str, str], words: list[str]
) -> None:
    if file.endswith((".parquet", ".xlsx")):
        pytest.importorskip({".parquet": "pyarrow", ".xlsx": "openpyxl"}[Path(file).suffix])
    (tmp_path / file).write_bytes(data)
    with read_together(columns=columns):
        message = user_error(lambda: READ[recipe](str(tmp_path / file)), *words)
    assert len(message) < 500


def test_a_few_rows_with_empty_cells_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(LABELLED.replace("text 7,", ","))
    with read_together() as reading:
        assert len(labels.read_labels([str(path)])) == 39
    lines = describe_sources(reading.sources.values(), "")
    assert "39 rows" in lines[0]
    assert "1 with an empty text" in lines[1]
    assert f"{path}:9" in lines[1]


def test_small_files_that_expand_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [{"text": "x" * 100_000, "label": "b"}] * 20)
    with read_together(max_bytes=50_000):
        user_error(lambda: labels.read_labels([str(path)]), "expands to more than 50,000 bytes", "max_bytes")


def test_a_header_of_pairs_with_unknown_names_is_none_before_version_3(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text_en\ttext_de\na\tb\n")
    assert list(read_pairs([str(path)])) == [("a", "b")]
    with read_together(version=2):
        assert list(read_pairs([str(path)])) == [("text_en", "text_de"), ("a", "b")]


def test_the_columns_of_a_run_are_used_where_a_table_has_them(tmp_path: Path) -> None:
    for name, header in (("a.csv", "q1,q2,text,label"), ("b.csv", "x,y,text,label")):
        (tmp_path / name).write_text(f"{header}\na,b,c,d\n")
    with read_together(usual_columns={"text": "q1", "label": "q2"}):
        assert read_labels(str(tmp_path / "a.csv")) == [{"text": "a", "label": "b"}]
        assert read_labels(str(tmp_path / "b.csv")) == [{"text": "c", "label": "d"}]


def test_a_key_that_comes_late_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a", "label": "b"}] * 300 + [{"text": "a", "label": "b", "other": "c"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    user_error(lambda: labels.read_labels([str(path)]), f"{path}:301", "other")


def test_column_names() -> None:
    assert is_class_column(["a", "b"] * 4)
    assert not is_class_column(["a", "b", "c", "d"])


# Standard input


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("text,label\n" + "good film,a\n" * 3, "','"),
        ("sep=|\ntext|label\n" + "good film|a\n" * 3, "'|'"),
        ("label;text\n" + 'a;"good ""film, ""\nor not"\n' * 3, "';'"),
        ("text\tlabel\n" + "good; film, a\ta\n" * 3, ""),
        ('{"text": "good, film", "label": "a"}\n' * 3, ""),
    ],
)
def test_standard_input_is_read_as_what_it_is(monkeypatch: pytest.MonkeyPatch, text: str, note: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with read_together() as reading:
        rows = read_labels("-")
    assert [row["label"] for row in rows] == ["a"] * 3
    assert all(row["text"].startswith("good") for row in rows)
    assert [line for line in reading.notes if note and note in line] == list(reading.notes)
    assert len(reading.notes) == bool(note)


def test_standard_input_without_cells_is_no_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Well, this is a text.\nIt has some lines.\nThat is all.\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    user_error(lambda: read_labels("-"), "standard input:1", "1 column ", "--text")


def test_a_folder_says_which_files_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(LABELLED)
    (tmp_path / "about.txt").write_text("x")
    with read_together() as reading:
        read_labels(str(tmp_path))
    (note,) = reading.notes
    assert "1 of 2 files" in note
    assert "no table" in note


def test_answers_are_shown_as_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"question": "q", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}}\n'
    )
    with read_together() as reading:
        READ["span"](str(tmp_path / "a.jsonl"))
    assert next(iter(reading.sources.values())).examples[0]["answer"] == "b"
