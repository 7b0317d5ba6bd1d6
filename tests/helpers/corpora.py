"""Files for the tests of data, and the ids that they should become."""

import gzip
import io
import json
import lzma
import sys
import types

import zstandard

SPECIALS = ["<|endoftext|>"]
COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the zstd command does
}


def write_file(path, content, suffix=""):
    """Write text or bytes, compressed according to the suffix that is added to the name."""
    path = path.with_name(path.name + suffix)
    path.write_bytes(COMPRESS[suffix](content if isinstance(content, bytes) else content.encode()))
    return str(path)


def write_documents(folder, count, words=30):
    """Write a .jsonl of documents that differ in their letters and lengths."""
    rows = [" ".join(f"{chr(97 + i % 26)}{j}é" for j in range(words + i)) for i in range(count)]
    path = folder / f"{count}.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path), rows


def ids(stream):
    return [] if stream is None else stream.read(0, len(stream)).tolist()


def expected_ids(tokenizer, texts):
    ids = []
    for number, text in enumerate(texts):
        ids += ([tokenizer.end] if number else []) + tokenizer.encode(text)
    return ids


def size(texts):
    return sum(len(text.encode()) for text in texts)


def standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))
