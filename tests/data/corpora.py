"""Texts for the tests of data, and what should become of them."""

import io
import json
import sys
import types

SPECIALS = ["<|endoftext|>"]


def write_documents(folder, count, words=30):
    """A .jsonl of documents that differ in all their letters and lengths."""
    rows = [" ".join(f"{chr(97 + i % 26)}{j}é" for j in range(words + i)) for i in range(count)]
    path = folder / f"{count}.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path), rows


def ids(stream):
    return [] if stream is None else stream.read(0, len(stream)).tolist()


def expected_ids(tokenizer, texts):
    joined = []
    for number, one in enumerate(texts):
        joined += ([tokenizer.end] if number else []) + tokenizer.encode(one)
    return joined


def size(texts):
    return sum(len(one.encode()) for one in texts)


def standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))
