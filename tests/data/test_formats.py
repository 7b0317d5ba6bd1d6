"""The formats that people have: each recipe's own reader gets the same rows of files that other tools wrote.

CASES has a row for each format and recipe; add one for each new format.
"""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.formats import (
    FORMATS,
    READ,
    Rows,
    flat,
    frame,
    with_class_numbers,
    write_json,
    write_parquet,
    write_tsv,
)
from regard.data import columns, image_readers, labels, pairs, sound_readers, spans, tags
from regard.data.reading import describe_sources, read_together
from regard.tasks import similarity

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
    "chat": [
        {"messages": [{"role": "user", "content": 'Hi, "you"'}, {"role": "assistant", "content": "é; ja"}]},
        {
            "messages": [
                {"role": ("user", "assistant")[n % 2], "content": text}
                for n, text in enumerate(("What?\nWho?", "The fox.", "Where, then?", "Here | there"))
            ]
        },
    ],
    "embed": [{"anchor": f"a {n}", "positive": f"p, {n}", "negative": f"n {n}"} for n in range(3)],
    "see": [{"image": "one.png", "label": "owl"}, {"image": "two words.png", "label": "fox"}],
    "caption": [
        {"image": "one.png", "caption": ["an owl, small"]},
        {"image": "two words.png", "caption": ["a fox"]},
    ],
    "hear": [{"audio": "one.wav", "label": "yes"}, {"audio": "two words.wav", "label": "no"}],
}
ROWS |= dict.fromkeys(("fill", "restore", "words"), ROWS["write"])
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


def zipped(name: str, recipe: str) -> Case:
    """The file of a format, in a .zip."""
    inner = plain(name, recipe)

    def write(folder: Path) -> str:
        path = Path(inner.write(folder))
        with zipfile.ZipFile(folder / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, f"inside/{path.name}")
        return str(folder / "all.zip")

    return Case(f"{name} in a zip", recipe, write)


ZIPPED = [
    *(("csv", recipe) for recipe in ("classify", "span", "translate", "tag")),
    *(("parquet", "classify"), ("xlsx", "classify"), ("json", "translate")),
    *(("jsonl", "chat"), ("parquet", "chat"), ("csv", "write"), ("parquet", "write"), ("xlsx", "write")),
]
PAIRS = ROWS["translate"]
ALPACA = [{"instruction": f"Say {n}, é", "output": f'"{n}"; so'} for n in range(3)]
ASKED = [
    {
        "messages": [
            {"role": "user", "content": row["instruction"]},
            {"role": "assistant", "content": row["output"]},
        ]
    }
    for row in ALPACA
]
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
    *(plain(name, "write") for name in TABLES if name not in ("tsv", "csv with an index")),
    *(
        plain(name, recipe)
        for recipe in ("fill", "restore", "words")
        for name in ("csv", "jsonl", "json", "parquet", "xlsx")
    ),
    *(
        plain(name, "chat")
        for name in (
            *("jsonl", "json lines in .json", "json", "json under data", "json.gz"),
            *("parquet", "parquet of pandas", "feather", "arrow stream"),
        )
    ),
    *(
        written(
            f"Alpaca in {name}",
            "chat",
            FORMATS[name][0],
            lambda p, write=FORMATS[name][1]: write(p, ALPACA),
            rows=ASKED,
        )
        for name in ("csv", "csv with ;", "tsv", "jsonl", "parquet", "xlsx")
    ),
    *(zipped(name, recipe) for name, recipe in ZIPPED),
    # other names
    written(
        "names of IMDb",
        "classify",
        "a.csv",
        lambda p: frame(renamed(ROWS["classify"], text="review", label="sentiment")).to_csv(p),
    ),
    written(
        "a separator named for Excel",
        "classify",
        "a.csv",
        lambda p: p.write_text("sep=;\n" + frame(ROWS["classify"]).to_csv(index=False, sep=";")),
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
    *(
        written(
            f"pandas, {orient}, {'numbered' if numbered else 'named'} rows",
            "classify",
            "a.json",
            lambda p, orient=orient, numbered=numbered: (
                frame(ROWS["classify"])
                .rename(index=str if numbered else "row {}".format)
                .to_json(p, orient=orient)
            ),
        )
        for orient, numbered in (("index", True), ("index", False), ("columns", False), ("split", True))
    ),
    written(
        "lists",
        "classify",
        "a.json",
        lambda p: write_json(p, [list(row.values()) for row in ROWS["classify"]]),
    ),
    *(
        written(name, "classify", "a.json", lambda p, wrap=wrap: write_json(p, wrap(ROWS["classify"])))
        for name, wrap in (
            ("an object in an object", lambda rows: {"data": {"rows": rows}}),
            (
                "objects around rows",
                lambda rows: {"about": {"by": "me"}, "set": {"n": 5, "items": {"rows": rows}}},
            ),
            ("rows two levels deep", lambda rows: [{"n": 1, "a": {"b": row, "c": 0.5}} for row in rows]),
        )
    ),
    content(
        "names of Quora",
        "classify",
        "a.csv",
        ",question1,question2,is_duplicate\n0,a?,b?,1\n1,c?,d?,0\n",
        rows=[{"text": "a?", "other": "b?", "label": "1"}, {"text": "c?", "other": "d?", "label": "0"}],
    ),
    # pairs
    written("nested languages", "translate", "a.json", lambda p: write_json(p, TRANSLATION)),
    written(
        "languages two levels deep",
        "translate",
        "a.json",
        lambda p: write_json(
            p, {"info": {"by": "me"}, "data": {"rows": [{"n": 1, "row": row} for row in TRANSLATION]}}
        ),
    ),
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
    # without names, in their order or by numbers
    *(
        written(
            "columns without names",
            recipe,
            "a.csv",
            lambda p, recipe=recipe, names=names: frame(flat(ROWS[recipe]))[names].to_csv(
                p, header=False, index=False
            ),
            columns={name: str(n) for n, name in enumerate(names, 1)} if recipe in ("span", "tag") else {},
            rows=rows,
        )
        for recipe, names, rows in (
            ("see", ["image", "label"], []),
            ("caption", ["image", "caption"], []),
            ("hear", ["audio", "label"], []),
            ("span", ["question", "context", "answer", "start"], []),
            ("tag", ["words", "tags"], []),
            ("write", ["text"], []),
            (
                "embed",
                ["anchor", "positive"],
                [{k: r[k] for k in ("anchor", "positive")} for r in ROWS["embed"]],
            ),
        )
    ),
    written(
        "triplets by numbers",
        "embed",
        "a.csv",
        lambda p: frame(ROWS["embed"]).to_csv(p, header=False),
        columns={"source": "2", "target": "3", "negative": "4"},
    ),
    *(
        written(
            "a text by its number",
            recipe,
            "a.csv",
            lambda p: frame([{"a": "x y z", **row, "b": "x y z"} for row in ROWS["write"]]).to_csv(
                p, header=False, index=False
            ),
            columns={"text": "2"},
        )
        for recipe in ("write", "words")
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
    content(
        "names of Quora",
        "embed",
        "a.csv",
        ",question1,question2,is_duplicate\n0,a?,b?,1\n1,c?,d?,0\n",
        rows=[
            {"sentence1": "a?", "sentence2": "b?", "score": 1.0},
            {"sentence1": "c?", "sentence2": "d?", "score": 0.0},
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
        assert f": {len(rows):,} " in lines[0]


@pytest.mark.parametrize("recipe", ["classify", "write", "tag", "translate", "chat"])
def test_what_the_package_datasets_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    """A folder of its own, in shards, and other formats; and what it loads, at once or as a stream."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_list(ROWS[recipe])
    if recipe == "classify":
        rows = rows.class_encode_column("label")  # numbers, which have names
    rows.save_to_disk("saved", num_shards=2)
    rows.to_parquet("owner/name/train.parquet")
    rows.to_parquet("a.parquet")
    rows.to_json("a.jsonl")
    paths = ["saved", "a.parquet", "hf:owner/name", *["a.jsonl"] * (recipe != "classify")]
    for path in paths:
        with read_together() as reading:
            assert READ[recipe](path) == ROWS[recipe], path
        assert not reading.notes
    with read_together(stream=True):
        assert READ[recipe]("hf:owner/name") == ROWS[recipe]


def test_options_are_the_fields_of_recipes() -> None:
    from regard.cli.parser import COLUMN_OPTIONS, LONGER

    assert columns.LONGER == LONGER
    layouts = (labels.LAYOUT, pairs.LAYOUT, spans.LAYOUT, tags.LAYOUT, similarity.TRIPLETS)
    layouts += (image_readers.CLASSES, image_readers.CAPTIONS, sound_readers.LAYOUT)
    assert {field.name for layout in layouts for field in layout.fields} <= set(COLUMN_OPTIONS)
