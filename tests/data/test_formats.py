"""The formats that people have: each recipe's own reader gets the same rows of files that other tools wrote.

CASES has a row for each format and recipe; add one for each new format. MALFORMED has files that are wrong.
"""

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.errors import user_error
from regard.data import image_readers, labels, pairs, sound_readers, spans, tags
from regard.data.cells import is_class_column
from regard.data.documents import read_documents
from regard.data.pairs import read_pairs
from regard.data.reading import describe_sources, read_together
from regard.tasks import similarity

Rows = list[dict[str, Any]]

# Writing: with pandas, pyarrow, openpyxl, csv and json


def frame(rows: Rows) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def flat(rows: Rows) -> Rows:
    """Rows for formats that have no lists."""
    return [{k: " ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]


def write_tsv(path: Path, rows: Rows) -> None:
    lines = [list(rows[0]), *(list(map(str, row.values())) for row in flat(rows))]
    path.write_text("".join("\t".join(line).replace("\n", " ") + "\n" for line in lines), encoding="utf-8")


def write_excel_dialect(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]), dialect="excel")
        writer.writeheader()
        writer.writerows(flat(rows))


def write_xlsx(path: Path, rows: Rows) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.append(list(rows[0]))
    for row in flat(rows):
        book.active.append(list(row.values()))
    book.save(path)


def arrow(rows: Rows) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def write_parquet(path: Path, rows: Rows) -> None:
    table = arrow(rows)
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=2)


def write_feather(path: Path, rows: Rows) -> None:
    table = arrow(rows)
    pytest.importorskip("pyarrow.feather").write_feather(table, path)


def write_arrow_stream(path: Path, rows: Rows) -> None:
    table, pa = arrow(rows), pytest.importorskip("pyarrow")
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def with_class_numbers(rows: Rows) -> Any:
    """A Parquet table as the package datasets writes it: classes are numbers, with names in its metadata."""
    pa, names = pytest.importorskip("pyarrow"), sorted({row["label"] for row in rows})
    table = pa.Table.from_pylist([row | {"label": names.index(row["label"])} for row in rows])
    about = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(about)})


FORMATS: dict[str, tuple[str, Callable[[Path, Rows], Any]]] = {
    "csv": ("a.csv", lambda path, rows: frame(flat(rows)).to_csv(path, index=False)),
    "csv of Excel": ("a.csv", write_excel_dialect),
    "csv with an index": ("a.csv", lambda path, rows: frame(flat(rows)).to_csv(path)),
    "csv with ;": ("a.csv", lambda path, rows: frame(flat(rows)).to_csv(path, sep=";", index=False)),
    "csv with |": ("a.csv", lambda path, rows: frame(flat(rows)).to_csv(path, sep="|", index=False)),
    "csv with tabs": ("a.csv", lambda path, rows: frame(flat(rows)).to_csv(path, sep="\t", index=False)),
    "csv.gz": ("a.csv.gz", lambda path, rows: frame(flat(rows)).to_csv(path, index=False)),
    "tsv": ("a.tsv", write_tsv),
    "jsonl": ("a.jsonl", lambda path, rows: frame(rows).to_json(path, orient="records", lines=True)),
    "json lines in .json": (
        "a.json",
        lambda path, rows: frame(rows).to_json(path, orient="records", lines=True),
    ),
    "json": ("a.json", write_json),
    "json under data": ("a.json", lambda path, rows: write_json(path, {"version": "1", "data": rows})),
    "json columns": (
        "a.json",
        lambda path, rows: write_json(path, {k: [r[k] for r in rows] for k in rows[0]}),
    ),
    "json of pandas": ("a.json", lambda path, rows: frame(rows).to_json(path)),
    "json split": ("a.json", lambda path, rows: frame(rows).to_json(path, orient="split")),
    "json.gz": ("a.json.gz", lambda path, rows: path.write_bytes(gzip.compress(json.dumps(rows).encode()))),
    "parquet": ("a.parquet", write_parquet),
    "parquet of pandas": ("a.parquet", lambda path, rows: frame(rows).to_parquet(path)),
    "feather": ("a.feather", write_feather),
    "arrow stream": ("a.arrow", write_arrow_stream),
    "xlsx": ("a.xlsx", write_xlsx),
}

# Reading: the readers of the recipes


def read_labels(path: str) -> Rows:
    table = labels.read_labels([path])
    columns = {"text": table.texts, "other": table.second_texts, "label": table.labels, "score": table.scores}
    columns = {name: column for name, column in columns.items() if column is not None}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]  # type: ignore[arg-type]


def read_similar(path: str) -> Rows:
    texts, scores = similarity.read_similar_pairs([path])
    names = ("anchor", "positive", "negative") if scores is None else ("sentence1", "sentence2", "score")
    rows = [(*text, *(() if scores is None else (scores[i],))) for i, text in enumerate(texts)]
    return [dict(zip(names, row, strict=False)) for row in rows]


READ: dict[str, Callable[[str], Rows]] = {
    "classify": read_labels,
    "translate": lambda path: [{"source": a, "target": b} for a, b in read_pairs([path])],
    "span": lambda path: [vars(span) for span in spans.read_spans([path])],
    "tag": lambda path: [{"words": words, "tags": names} for words, names in tags.read_tags([path])],
    "embed": read_similar,
    "see": lambda path: [row for _, row in image_readers.read_files(path, image_readers.CLASSES)],
    "caption": lambda path: [row for _, row in image_readers.read_files(path, image_readers.CAPTIONS)],
    "write": lambda path: [{"text": text} for text in read_documents([path])],
    "hear": lambda path: [row for _, row in image_readers.read_files(path, sound_readers.LAYOUT)],
}
ROWS: dict[str, Rows] = {
    "classify": [
        {"text": text, "label": label}
        for text, label in (
            ('one, "two" 😀', "pos"),
            ("Ärger; oder | nicht", "neg"),
            ("plain", "pos"),
            ("3.5", "neg"),
            ("x", "pos"),
        )
    ],
    "translate": [{"source": f"a, {n} é", "target": f'b; "{n}"'} for n in range(5)],
    "span": [
        {"question": "Who sleeps?", "context": "The fox, the fox sleeps.", "answer": "fox", "start": 13},
        {"question": "When?", "context": "It is “Monday”, he said.", "answer": "Monday", "start": 7},
    ],
    "tag": [
        {"words": ["Ada", "codes", "."], "tags": ["B-PER", "O", "O"]},
        {"words": ["In", "Rome"], "tags": ["O", "B-LOC"]},
    ],
    "write": [{"text": text} for text in ("One, two.\nThree.", "é | four", "five")],
    "embed": [{"anchor": f"a {n}", "positive": f"p, {n}", "negative": f"n {n}"} for n in range(3)],
    "see": [{"image": "one.png", "label": "owl"}, {"image": "two words.png", "label": "fox"}],
    "caption": [
        {"image": "one.png", "caption": ["an owl, small"]},
        {"image": "two words.png", "caption": ["a fox"]},
    ],
    "hear": [{"audio": "one.wav", "label": "yes"}, {"audio": "two words.wav", "label": "no"}],
}
SCORED = [{"text": f"a {n}", "other": f"b, {n}", "score": n / 4} for n in range(3)]
FLAT = {"caption": [row | {"caption": row["caption"][0]} for row in ROWS["caption"]]}


@dataclass
class Case:
    name: str  # of the format
    recipe: str
    write: Callable[[Path], str]  # files to a folder; returns the path to read
    rows: Rows = field(default_factory=list)  # none: those of the recipe
    columns: dict[str, str] = field(default_factory=dict)  # that the user chooses


def plain(name: str, recipe: str, **columns: str) -> Case:
    """All columns have the names of the fields."""
    file, write = FORMATS[name]

    def write_rows(folder: Path) -> str:
        write(folder / file, FLAT.get(recipe, ROWS[recipe]))
        return str(folder / file)

    return Case(name, recipe, write_rows, columns={key: column for key, column in columns.items() if column})


def content(
    name: str, recipe: str, file: str, text: str, columns: dict[str, str] | None = None, rows: Rows = ()
) -> Case:  # type: ignore[assignment]
    """A file with this text."""

    def write(folder: Path) -> str:
        (folder / file).write_text(text, encoding="utf-8")
        return str(folder / file)

    return Case(name, recipe, write, list(rows), columns or {})


def written(name: str, recipe: str, file: str, write: Callable[[Path], Any], **more: Any) -> Case:
    def write_file(folder: Path) -> str:
        write(folder / file)
        return str(folder / file)

    return Case(name, recipe, write_file, **more)


def renamed(rows: Rows, **names: str) -> Rows:
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


PAIRS = ROWS["translate"]
TRANSLATION = [
    {"id": n, "translation": {"en": row["source"], "de": row["target"]}} for n, row in enumerate(PAIRS)
]
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": row["context"],
                    "qas": [
                        {
                            "id": "1",
                            "question": row["question"],
                            "answers": [{"text": row["answer"], "answer_start": row["start"]}] * 2,
                        }
                    ],
                }
            ],
        }
        for row in ROWS["span"]
    ],
}
NO_ANSWER = {"question": "Why?", "context": "Nobody knows.", "answer": "", "start": 0}
SQUAD_2 = {
    "version": "v2.0",
    "data": [
        *SQUAD["data"],
        {
            "title": "u",
            "paragraphs": [
                {
                    "context": NO_ANSWER["context"],
                    "qas": [{"id": "2", "question": "Why?", "answers": [], "is_impossible": True}],
                }
            ],
        },
    ],
}
LISTS = [
    {
        "question": r["question"],
        "context": r["context"],
        "answers": {"text": [r["answer"]] * 2, "answer_start": [r["start"]] * 2},
    }
    for r in ROWS["span"]
]
TABLES = [*FORMATS]
EVERY = ["csv", "csv with ;", "tsv", "jsonl", "json", "parquet", "arrow stream", "xlsx"]
CASES = [
    *(plain(name, "classify") for name in TABLES),
    *(plain(name, "translate") for name in TABLES if name != "csv with an index"),
    *(
        plain(name, recipe)
        for recipe in ("span", "tag", "embed")
        for name in EVERY
        if (name, recipe) != ("tsv", "tag")
    ),
    *(
        plain(name, recipe)
        for recipe in ("see", "caption", "hear")
        for name in ("csv", "tsv", "jsonl", "parquet", "xlsx")
    ),
    *(
        plain(name, "write", text="text" if name not in ("jsonl", "parquet", "feather", "xlsx") else "")
        for name in ("csv", "csv with ;", "jsonl", "json", "parquet", "feather", "xlsx")
    ),
    # other names
    written(
        "names of IMDb",
        "classify",
        "a.csv",
        lambda p: frame(renamed(ROWS["classify"], text="review", label="sentiment")).to_csv(p),
    ),
    written(
        "chosen names",
        "classify",
        "a.csv",
        lambda p: frame(renamed(ROWS["classify"], text="q17", label="q18")).to_csv(p),
        columns={"text": "q17", "label": "Q18"},
    ),
    written(
        "chosen numbers",
        "classify",
        "a.csv",
        lambda p: frame(ROWS["classify"]).to_csv(p, header=False),
        columns={"text": "2", "label": "3"},
    ),
    written(
        "without names",
        "classify",
        "a.csv",
        lambda p: frame(ROWS["classify"]).to_csv(p, header=False, index=False),
    ),
    written(
        "unknown names",
        "classify",
        "a.csv",
        lambda p: frame(renamed(ROWS["classify"], text="x", label="y")).to_csv(p, index=False),
    ),
    written(
        "class numbers",
        "classify",
        "a.parquet",
        lambda p: pytest.importorskip("pyarrow.parquet").write_table(with_class_numbers(ROWS["classify"]), p),
    ),
    written(
        "names of GLUE",
        "classify",
        "a.jsonl",
        lambda p: frame(renamed(SCORED, text="sentence1", other="sentence2")).to_json(
            p, orient="records", lines=True
        ),
        rows=SCORED,
    ),
    written(
        "lists",
        "classify",
        "a.json",
        lambda p: write_json(p, [list(row.values()) for row in ROWS["classify"]]),
    ),
    # pairs
    written("nested languages", "translate", "a.json", lambda p: write_json(p, TRANSLATION)),
    written("nested languages in parquet", "translate", "a.parquet", lambda p: write_parquet(p, TRANSLATION)),
    written(
        "chosen languages",
        "translate",
        "a.jsonl",
        lambda p: frame(TRANSLATION).to_json(p, orient="records", lines=True),
        columns={"source": "de", "target": "en"},
        rows=renamed(PAIRS, source="target", target="source"),
    ),
    written(
        "languages",
        "translate",
        "a.csv",
        lambda p: frame(renamed(PAIRS, source="English", target="German")).to_csv(p),
    ),
    written(
        "pairs without names",
        "translate",
        "a.csv",
        lambda p: frame(PAIRS).to_csv(p, index=False, header=False),
    ),
    written(
        "one of three columns",
        "translate",
        "a.tsv",
        lambda p: write_tsv(p, [{"id": 7, **row} for row in PAIRS]),
        columns={"source": "2", "target": "3"},
    ),
    # questions
    written("SQuAD 1.1", "span", "a.json", lambda p: write_json(p, SQUAD)),
    written("SQuAD 2", "span", "a.json", lambda p: write_json(p, SQUAD_2), rows=[*ROWS["span"], NO_ANSWER]),
    written("SQuAD of datasets", "span", "a.parquet", lambda p: write_parquet(p, LISTS)),
    written(
        "no answer in a table",
        "span",
        "a.csv",
        lambda p: frame([*ROWS["span"], NO_ANSWER | {"is_impossible": True}]).to_csv(p, index=False),
        rows=[*ROWS["span"], NO_ANSWER],
    ),
    # tags
    content("CoNLL", "tag", "a.conll", "Ada B-PER\ncodes O\n. O\n\nIn O\nRome B-LOC\n"),
    content(
        "lists as Python writes them",
        "tag",
        "a.csv",
        "tokens,ner_tags\n\"['Ada', 'codes', '.']\",\"['B-PER', 'O', 'O']\"\n"
        "\"['In', 'Rome']\",\"['O', 'B-LOC']\"\n",
    ),
    # similar texts
    content(
        "labels 0 and 1",
        "embed",
        "a.csv",
        "sentence1,sentence2,label\na,b,1\nc,d,0\n",
        rows=[
            {"sentence1": "a", "sentence2": "b", "score": 1.0},
            {"sentence1": "c", "sentence2": "d", "score": 0.0},
        ],
    ),
    written(
        "scores",
        "embed",
        "a.csv",
        lambda p: frame(SCORED).to_csv(p, index=False),
        rows=renamed(SCORED, text="sentence1", other="sentence2"),
    ),
    written(
        "STS-B",
        "embed",
        "a.parquet",
        lambda p: write_parquet(p, renamed(SCORED, text="sentence1", other="sentence2")),
        rows=renamed(SCORED, text="sentence1", other="sentence2"),
    ),
    written(
        "pairs",
        "embed",
        "a.csv",
        lambda p: frame([{k: row[k] for k in ("anchor", "positive")} for row in ROWS["embed"]]).to_csv(
            p, index=False
        ),
        rows=[{k: row[k] for k in ("anchor", "positive")} for row in ROWS["embed"]],
    ),
    # images
    written(
        "several captions",
        "caption",
        "a.jsonl",
        lambda p: p.write_text('{"file_name": "one.png", "captions": ["a", "b"]}\n'),
        rows=[{"image": "one.png", "caption": ["a", "b"]}],
    ),
]


def test_there_are_many() -> None:
    names = {(case.name, case.recipe) for case in CASES}
    assert len(names) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.recipe}")
def test_every_format_has_the_same_rows(tmp_path: Path, case: Case) -> None:
    for name in ("one.png", "two words.png", "one.wav", "two words.wav"):
        (tmp_path / name).touch()
    path = case.write(tmp_path)
    with read_together(columns=case.columns) as reading:
        rows = READ[case.recipe](path)
    assert rows == (case.rows or ROWS[case.recipe])
    lines = describe_sources(reading.sources.values(), "all to train on")
    if case.name != "pairs":  # of which the first file is looked at before
        assert len(lines) in (4, 5)
        assert f"{len(rows):,} row" in lines[0]


def test_options_are_the_fields_of_recipes() -> None:
    from regard.cli.parser import COLUMN_OPTIONS

    layouts = (labels.LAYOUT, pairs.LAYOUT, spans.LAYOUT, tags.LAYOUT, similarity.TRIPLETS)
    layouts += (image_readers.CLASSES, image_readers.CAPTIONS, sound_readers.LAYOUT)
    assert {field.name for layout in layouts for field in layout.fields} <= set(COLUMN_OPTIONS)


# Wrong files

LABELLED = "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40))
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
    ("classify", "a.csv", LABELLED.encode("utf-16"), {}, ["a.csv:1", "zero byte", "utf-16"]),
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
