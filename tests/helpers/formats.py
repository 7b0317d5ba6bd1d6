"""Write tables with other tools, and read them with the recipes' own readers."""

import csv
import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data import image_readers, labels, sound_readers, spans, tags
from regard.data.conversations import read_conversations
from regard.data.documents import read_documents
from regard.data.pairs import read_pairs
from regard.tasks import TASKS, DataRequest, similarity

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


def read_chats(path: str) -> Rows:
    chats = (turns for _, turns in read_conversations([path]))
    return [{"messages": [{"role": turn.role, "content": turn.text} for turn in turns]} for turns in chats]


def read_learned(recipe: str, path: str) -> Rows:
    """The texts between the end tokens of what a task learns from."""
    task, config = TASKS[recipe]
    more = {"next": False} if recipe == "fill" else {}
    data = task.data_config(holdout=0.0, tokenizer="char")
    corpus = task.read(DataRequest([path], [], data, config(name=recipe, **more), 50))
    assert corpus.tokenizer is not None
    ids = corpus.train.read(0, len(corpus.train))
    ends = (ids == corpus.tokenizer.end).nonzero()[0]
    parts = np.split(ids, ends)
    return [{"text": corpus.tokenizer.decode(part[n > 0 :])} for n, part in enumerate(parts)]


READ: dict[str, Callable[[str], Rows]] = {
    "classify": read_labels,
    "translate": lambda path: [{"source": a, "target": b} for a, b in read_pairs([path])],
    "span": lambda path: [vars(span) for span in spans.read_spans([path])],
    "tag": lambda path: [{"words": words, "tags": names} for words, names in tags.read_tags([path])],
    "embed": read_similar,
    "see": lambda path: [row for _, row in image_readers.read_files(path, image_readers.CLASSES)],
    "caption": lambda path: [row for _, row in image_readers.read_files(path, image_readers.CAPTIONS)],
    "write": lambda path: [{"text": text} for text in read_documents([path])],
    "chat": read_chats,
    "fill": partial(read_learned, "fill"),
    "restore": partial(read_learned, "restore"),
    "words": partial(read_learned, "words"),
    "hear": lambda path: [row for _, row in image_readers.read_files(path, sound_readers.LAYOUT)],
}
