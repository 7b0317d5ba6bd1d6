"""Questions with answers in a context, and every kind of wrong input."""

import json

import pytest

from helpers.corpora import COMPRESS, write_file
from helpers.errors import user_error
from regard.data.spans import Span, read_spans


@pytest.mark.parametrize("suffix", COMPRESS)
def test_spans(tmp_path, suffix):
    rows = [
        {"question": "q?", "context": " é b b", "answer": "b", "id": 1},
        {"question": "q?", "context": " é b b", "answer": "b", "start": 5},
        {"question": "q?", "context": " é b b", "answer": "b", "start": None},
    ]
    path = write_file(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)), suffix)
    spans = read_spans([path])
    assert spans == [Span("q?", " é b b", "b", start) for start in (3, 5, 3)]
    assert all(span.context[span.start : span.end] == "b" for span in spans)
    assert read_spans([tmp_path]) == spans


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answer": 5}, 'the answer "5" is not text'),
        ({"question": None}, "an empty question"),
        ({"context": "\n"}, "an empty context"),
        ({"answer": ""}, "an empty answer"),
        ({"answer": "x\ny"}, 'the answer "x y" is not in the context'),
        ({"start": 1}, 'at start 1 of the context is "b", not the answer "a"'),
        ({"start": 99}, 'at start 99 of the context is ""'),
        ({"start": -2}, 'start "-2" is not'),
        ({"start": "x"}, 'start "x" is not'),
        ({"start": False}, 'start "False" is not'),
        ({"question": "\ud800"}, "half a surrogate"),
    ],
)
def test_wrong_spans(tmp_path, change, words):
    row = {"question": "q", "context": "ab", "answer": "a"}
    path = write_file(tmp_path / "a.jsonl", f"{json.dumps(row)}\n\n{json.dumps(row | change)}\n")
    user_error(lambda: read_spans([path]), f"{path}:3: {words}")


def test_no_spans(tmp_path):
    user_error(lambda: read_spans([write_file(tmp_path / "a.jsonl", "\n")]), "a.jsonl: empty")
    user_error(lambda: read_spans([write_file(tmp_path / "a.tsv", "x")]), "a.tsv:1: 1 column", "--question")
    user_error(lambda: read_spans([tmp_path / "missing"]), "missing: no such file")
    path = write_file(tmp_path / "b.jsonl", "[1]")
    user_error(lambda: read_spans([path]), f"{path}:1: not an object")
