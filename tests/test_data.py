"""Reading, with every mistake there is; streams and windows; holding out; shards like reading directly."""

import errno
import gzip
import hashlib
import io
import itertools
import json
import lzma
import math
import os
import re
import sys
import threading
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zstandard

from regard import data, text
from regard.data import DataConfig, Stream, Windows, corpus, documents, in_order, keys, prepare, shuffled
from regard.errors import Mistake
from regard.text import Tokenizer, train_tokenizer

SPECIALS = ["<|endoftext|>"]
COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # as the zstd command does
}


def read(*paths):
    return list(documents([str(path) for path in paths]))


def mistake(call, *words):
    """The one line that the mistake says, which has all of these words in it."""
    with pytest.raises(Mistake) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert str(word) in said, said
    return said


# ---------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("suffix", COMPRESS)
def test_text_is_exact(tmp_path, suffix):
    content = "first\r\nsecond\rstill\n\n\tlast é 😀 \x0b\x1c\u2028 without newline"
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESS[suffix](content.encode()))
    assert read(tmp_path / f"a.txt{suffix}") == [content]


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


def standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))


def test_standard_input_is_one_document(monkeypatch):
    standard_input(monkeypatch, b"a\nb\n")
    assert read("-") == ["a\nb\n"]
    standard_input(monkeypatch, b"a\n\xff")
    mistake(lambda: read("-"), "standard input:2", "0xff")


@pytest.mark.parametrize("name", ["a.txt", "folder/", "a.jsonl.gz"])
def test_missing(tmp_path, name):
    mistake(lambda: read(f"{tmp_path}/{name}"), tmp_path / name, ": no such file")


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_empty(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    mistake(lambda: read(tmp_path / name), tmp_path / name, ": empty,")


def test_empty_in_a_folder_and_empty_folder(tmp_path):
    (tmp_path / "other.csv").write_text("x")
    mistake(lambda: read(tmp_path), tmp_path, ".txt")
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b""))
    mistake(lambda: read(tmp_path), tmp_path / "b.txt.gz", ": empty,")


def test_binary(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\nfine\nnot\0fine\n")
    mistake(lambda: read(tmp_path / "a.txt"), f"{tmp_path / 'a.txt'}:3:", "zero byte")
    (tmp_path / "b.txt").write_bytes("wide".encode("utf-16"))
    mistake(lambda: read(tmp_path / "b.txt"), f"{tmp_path / 'b.txt'}:1:", "utf-16")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_not_utf8(tmp_path, name):
    content = b'{"text": "fine"}\r\n{"text": "\xc3\xa9 caf\xe9"}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    mistake(lambda: read(tmp_path / name), f"{tmp_path / name}:2:", "0xe9", "iconv -f latin1 -t utf-8")


def test_longest_line(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "LONGEST_LINE", 100)
    (tmp_path / "a.txt").write_bytes(b"x" * 100 + b"\n" + b"y" * 100)
    assert len(read(tmp_path / "a.txt")[0]) == 201
    (tmp_path / "a.txt").write_bytes(b"fine\n" + b"x" * 101)
    mistake(lambda: read(tmp_path / "a.txt"), f"{tmp_path / 'a.txt'}:2:", "100 bytes", "break")


def test_an_endless_line_is_not_read_to_its_end(monkeypatch):
    class Endless(io.RawIOBase):
        given = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.given += len(buffer)
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    endless = Endless()
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(endless)))
    mistake(lambda: read("-"), "standard input:1:", "10,000,000")
    assert endless.given < 2 * data.LONGEST_LINE


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_damaged(tmp_path, suffix):
    content = COMPRESS[suffix](np.random.default_rng(0).bytes(200_000).hex().encode())
    path = tmp_path / f"a.txt{suffix}"
    short, half = content[:-9], content[: len(content) // 2]
    changed = content[:100] + bytes(255 - byte for byte in content[100:2000]) + content[2000:]
    for bad in (short, half, changed, b"no such thing" * 9):
        path.write_bytes(bad)
        mistake(lambda: read(path), path, "damaged compressed file")


def test_zstandard_may_be_missing(tmp_path, monkeypatch):
    (tmp_path / "a.txt.zst").write_bytes(COMPRESS[".zst"](b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    mistake(lambda: read(tmp_path / "a.txt.zst"), tmp_path / "a.txt.zst", "pip install zstandard")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", "JSON"),
        ("[" * 100_000, "JSON"),
        ("1" * 5000, "JSON"),
        ("[1]", '"text"'),
        ('"text"', '"text"'),
        ('{"txt": "a"}', '"text"'),
        ('{"text": null}', '"text"'),
        ('{"text": "\\ud800"}', "surrogate"),
    ],
)
def test_bad_jsonl(tmp_path, line, words):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n' + line)
    mistake(lambda: read(tmp_path / "a.jsonl"), f"{tmp_path / 'a.jsonl'}:3:", words)


def test_not_allowed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    mistake(lambda: read(tmp_path / "a.txt"), tmp_path / "a.txt", "Permission denied")
    monkeypatch.undo()

    def refuse_folder(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse_folder)
    mistake(lambda: read(tmp_path), tmp_path, "Permission denied")


class Rows(list):
    column_names = ("id", "text")


def test_hub(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        if name == "no/such":
            raise FileNotFoundError("Dataset not found\nmany lines")
        rows = Rows([{"text": "a"}, {"text": ""}, {"text": None}, {"text": "b"}])
        if name == "o/columns":
            rows.column_names = ("id", "body")
        return rows

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert read("hf:o/n", "hf:o/n/c:test", "hf:n:valid[:5]") == ["a", "b"] * 3
    assert asked == [("o/n", None, "train"), ("o/n", "c", "test"), ("n", None, "valid[:5]")]
    mistake(lambda: read("hf:no/such"), "hf:no/such", "Dataset not found")
    mistake(lambda: read("hf:o/columns"), "hf:o/columns", "body")
    monkeypatch.setitem(sys.modules, "datasets", None)
    mistake(lambda: read("hf:o/n"), "hf:o/n", "pip install 'regard[datasets]'")


# --------------------------------------------------------------------------------------------- sampling


def test_a_stream_reads_across_its_parts():
    whole = np.arange(23)
    narrow, wide = whole.astype(np.uint16), whole.astype(np.uint32)
    stream = Stream([narrow[:5], narrow[5:5], wide[5:6], whole[6:]], bytes=99)
    assert len(stream) == 23
    assert stream.bytes == 99
    for start, stop in itertools.combinations(range(25), 2):
        ids = stream.read(start, stop)
        assert ids.dtype == np.int64
        assert ids.tolist() == whole[start:stop].tolist()
    assert len(Stream([], 0)) == 0
    assert Stream([], 0).read(0, 3).tolist() == []


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 66, 256, 257, 1000, 4096, 4097])
def test_shuffling_is_a_bijection(n):
    named = [keys(seed, np.array([epoch])) for seed in (0, -5) for epoch in (0, 1)]
    orders = [shuffled(np.arange(n), n, key) for key in named]
    for order in orders:
        assert sorted(order.tolist()) == list(range(n))
    if n > 60:
        assert len({tuple(order.tolist()) for order in orders}) == len(orders)
        assert all((order == np.arange(n)).mean() < 0.2 for order in orders)


def surprise(counts, expected):
    """How many standard deviations the chi-square statistic of these counts lies from what it should be."""
    freedom = len(counts) - 1
    return (sum((count - expected) ** 2 / expected for count in counts) - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [3, 4])
def test_every_order_of_few_is_as_likely(n):
    times = 5000
    key = keys(7, np.repeat(np.arange(times), n))
    found = shuffled(np.tile(np.arange(n), times), n, key)
    counts = Counter(map(tuple, found.reshape(times, n).tolist()))
    expected = times / math.factorial(n)
    assert abs(surprise([counts[order] for order in itertools.permutations(range(n))], expected)) < 5


@pytest.mark.parametrize("n", [65, 100, 1023])
def test_every_place_of_many_is_as_likely_even_in_pairs(n):
    times = 20_000
    key = keys(3, np.arange(times))
    first, second = (shuffled(np.full(times, index), n, key) for index in (0, 1))
    assert abs(surprise(np.bincount(first, minlength=n), times / n)) < 5
    bins = np.bincount(first * 8 // n * 8 + second * 8 // n, minlength=64)  # of about equal size
    sizes = np.bincount(np.arange(n) * 8 // n) / n
    expected = times * np.outer(sizes, sizes).ravel()
    assert (np.abs(bins - expected) < 6 * np.sqrt(expected)).all()


def test_shuffling_needs_no_memory_for_enormous_ranges():
    index = np.array([0, 1, 2**59, 2**60 - 1])
    found = shuffled(index, 2**60, keys(0, np.array([0])))
    assert len(set(found.tolist())) == 4
    assert found.min() >= 0
    assert found.max() < 2**60


def test_a_fingerprint_tells_streams_apart():
    whole = np.arange(5000)
    prints = {Stream([whole[:cut], whole[cut:]], 1).fingerprint() for cut in (0, 7, 4999)}
    assert len(prints) == 1  # however it lies in parts
    assert Stream([whole[:-1]], 1).fingerprint() not in prints
    assert Stream([whole[::-1]], 1).fingerprint() not in prints


def numbered(n):
    return Stream([np.arange(n // 3, dtype=np.uint16), np.arange(n // 3, n, dtype=np.uint16)], n)


@pytest.mark.parametrize(("n", "context"), [(1009, 13), (53, 13), (27, 13), (26, 13), (1000, 7)])
def test_every_window_once_an_epoch(n, context):
    windows = Windows(numbered(n), context, seed=11)
    offsets, orders = set(), set()
    for epoch in range(20):
        batch = windows.batch(np.arange(windows.count) + epoch * windows.count)
        assert batch.shape == (windows.count, context + 1)
        assert batch.dtype == np.int64
        assert (np.diff(batch, axis=1) == 1).all()  # consecutive tokens
        starts = sorted(batch[:, 0].tolist())
        assert np.diff(starts).tolist() == [context] * (windows.count - 1)  # each once, none shared
        offsets.add(starts[0])
        orders.add(tuple((batch[:, 0] - starts[0]).tolist()))
        assert starts[-1] + context < n
    assert windows.count == max(1, (n - 1) // context - 1)
    assert len(offsets) > 1 or windows.slack == 0
    if windows.count > 50:
        assert len(orders) == 20


def test_every_offset_comes():
    windows = Windows(numbered(20), 7, seed=0)  # a single window: from 0 up to the last that fits
    assert {int(start) for start in windows.batch(np.arange(500))[:, 0]} == set(range(13))


def test_a_batch_depends_on_its_positions_only():
    windows, other = Windows(numbered(509), 11, seed=3), Windows(numbered(509), 11, seed=4)
    positions = np.array([5000, 3, 17, 10**12, 3])
    batch = windows.batch(positions)
    windows.batch(np.arange(100))
    assert (Windows(numbered(509), 11, seed=3).batch(positions) == batch).all()
    assert (windows.batch(positions[::-1]) == batch[::-1]).all()
    assert all((windows.batch(positions[i : i + 1])[0] == batch[i]).all() for i in range(5))
    assert (batch[1] == batch[4]).all()
    assert not (other.batch(np.arange(40)) == windows.batch(np.arange(40))).all()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_windows_of_tiny_texts(n):
    windows = Windows(numbered(n), 100, seed=0)
    assert windows.count == 1
    assert windows.batch(np.arange(3)).tolist() == [list(range(n))] * 3


@pytest.mark.parametrize("n", [0, 1])
def test_too_little_to_learn_from(n):
    mistake(lambda: Windows(Stream([np.arange(n)], n), 8, 0), "at least two tokens")


@pytest.mark.parametrize("n", [1, 2, 8, 9, 15, 50, 57, 58])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_in_order_every_token_is_a_target_once(n, batch):
    context = 7
    rows = list(in_order(numbered(n), context, batch))
    assert [t for _, targets in rows for t in targets.ravel().tolist()] == list(range(1, n))
    for inputs, targets in rows:
        assert inputs.shape == targets.shape
        assert inputs.dtype == targets.dtype == np.int64
        assert (inputs + 1 == targets).all()
        assert len(inputs) <= batch
        assert inputs.shape[1] == context or len(inputs) == 1
    assert all(inputs.shape[1] == context for inputs, _ in rows[:-1])


# ----------------------------------------------------------------------------------------------- corpus


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


def test_one_text_is_cut_as_nanogpt_does(tmp_path):
    whole = "".join(chr(97 + i * i % 23) + "é" * (i % 2) for i in range(1003))
    (tmp_path / "a.txt").write_text(whole)
    found = corpus([str(tmp_path / "a.txt")], [], DataConfig(), SPECIALS)
    cut = int(len(whole) * 0.9)
    assert found.tokenizer.decode(ids(found.train)) == whole[:cut]
    assert found.tokenizer.decode(ids(found.valid)) == whole[cut:]
    assert (found.train.bytes, found.valid.bytes) == (size([whole[:cut]]), size([whole[cut:]]))


def test_few_texts_are_cut_by_their_characters(tmp_path):
    path, rows = write_documents(tmp_path, 5)
    found = corpus([path], [], DataConfig(tokenizer="byte", holdout=0.5), SPECIALS)
    cut = int(sum(map(len, rows)) * 0.5) - len(rows[0]) - len(rows[1])
    train, valid = [*rows[:2], rows[2][:cut]], [rows[2][cut:], *rows[3:]]
    assert all([*train, *valid])
    assert ids(found.train) == expected_ids(found.tokenizer, train)
    assert ids(found.valid) == expected_ids(found.tokenizer, valid)
    assert found.train.bytes == size(train)


def test_a_cut_between_two_texts(tmp_path):
    (tmp_path / "a.txt").write_text("aaaa")
    (tmp_path / "b.txt").write_text("bbbb")
    found = corpus([str(tmp_path)], [], DataConfig(tokenizer="byte", holdout=0.5), SPECIALS)
    assert [found.tokenizer.decode(ids(side)) for side in (found.train, found.valid)] == ["aaaa", "bbbb"]
    assert len(found.train) == len(found.valid) == 4


@pytest.mark.parametrize(
    ("count", "holdout", "every"), [(10, 0.1, 10), (31, 0.1, 10), (31, 0.25, 4), (12, 0.9, 2)]
)
def test_of_many_texts_every_kth_is_held_out(tmp_path, count, holdout, every):
    path, rows = write_documents(tmp_path, count)
    found = corpus([path], [], DataConfig(tokenizer="byte", holdout=holdout), SPECIALS)
    assert ids(found.valid) == expected_ids(found.tokenizer, rows[every - 1 :: every])
    train = [row for i, row in enumerate(rows) if i % every != every - 1]
    assert ids(found.train) == expected_ids(found.tokenizer, train)
    assert (found.train.bytes, found.valid.bytes) == (size(train), size(rows[every - 1 :: every]))


def test_a_small_share_of_texts_is_still_held_out(tmp_path):
    path, _ = write_documents(tmp_path, 20)
    assert len(corpus([path], [], DataConfig(holdout=0.02), []).valid) > 10


def test_own_text_to_measure_on(tmp_path):
    path, rows = write_documents(tmp_path, 12)
    (tmp_path / "valid.txt").write_text("Other Letters: XYZ")
    found = corpus([path], [str(tmp_path / "valid.txt")], DataConfig(), SPECIALS)
    assert found.tokenizer.decode(ids(found.valid)) == "Other Letters: XYZ"  # known, although only there
    assert ids(found.train) == expected_ids(found.tokenizer, rows)


def test_nothing_held_out(tmp_path):
    path, rows = write_documents(tmp_path, 12)
    found = corpus([path], [], DataConfig(holdout=0.0), SPECIALS)
    assert found.valid is None
    assert ids(found.train) == expected_ids(found.tokenizer, rows)
    (tmp_path / "tiny.txt").write_text("abcdefgh")
    assert corpus([str(tmp_path / "tiny.txt")], [], DataConfig(), []).valid is None  # a single token


def test_without_an_end_token_texts_follow_directly(tmp_path):
    path, rows = write_documents(tmp_path, 3)
    found = corpus([path], [], DataConfig(tokenizer="byte", holdout=0), [])
    assert bytes(ids(found.train)) == "".join(rows).encode()


def test_only_char_learns_from_the_held_out_text(tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest " * 60 + "zqzqzqzqzq" * 10)
    found = {kind: corpus([str(tmp_path)], [], DataConfig(tokenizer=kind), []) for kind in ("char", "bpe")}
    assert found["char"].tokenizer.id("q") is not None
    assert not any("q" in token and len(token) > 1 for token in found["bpe"].tokenizer.inner.get_vocab())


def test_a_tokenizer_of_ones_own(tmp_path):
    path, rows = write_documents(tmp_path, 3)
    own = train_tokenizer("bpe", rows, 300, SPECIALS)
    own.save(tmp_path / "tokenizer.json")
    for found in (
        corpus([path], [], DataConfig(tokenizer=str(tmp_path)), ["ignored"]),
        corpus([path], [], DataConfig(tokenizer=str(tmp_path / "tokenizer.json")), []),
        corpus([path], [], DataConfig(), [], tokenizer=own),
    ):
        assert found.tokenizer.digest == own.digest
        assert max(ids(found.train)) < own.vocab


def test_bad_configuration(tmp_path):
    path, _ = write_documents(tmp_path, 3)
    for holdout in (1.0, -0.1, float("nan")):
        mistake(lambda holdout=holdout: corpus([path], [], DataConfig(holdout=holdout), []), "data.holdout")
    mistake(lambda: corpus([path], [], DataConfig(vocab=0), []), "data.vocab")
    unknown = DataConfig(tokenizer="wordpeice")
    mistake(lambda: corpus([path], [], unknown, []), "data.tokenizer", "'wordpiece'", "char, byte, bpe")
    mistake(lambda: corpus([path], [], DataConfig(tokenizer=str(tmp_path)), []), tmp_path / "tokenizer.json")


def test_a_long_text_arrives_whole_in_many_batches(tmp_path, monkeypatch):
    path, _rows = write_documents(tmp_path, 25)
    config = DataConfig(tokenizer="byte")
    whole = corpus([path], [], config, SPECIALS)
    for module in (text, data):
        monkeypatch.setattr(module, "AT_ONCE", 50)
    monkeypatch.setattr(text, "PIECE", 16)
    cut = corpus([path], [], config, SPECIALS)
    assert ids(cut.train) == ids(whole.train)
    assert ids(cut.valid) == ids(whole.valid)
    assert (cut.train.bytes, cut.valid.bytes) == (whole.train.bytes, whole.valid.bytes)
    assert len(cut.train.parts) > 10


# ----------------------------------------------------------------------------------------------- shards


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("count", [1, 4, 23])
def test_prepared_is_like_read_directly(tmp_path, kind, count):
    path, _ = write_documents(tmp_path, count)
    config = DataConfig(tokenizer=kind, vocab=300)
    direct = corpus([path], [], config, SPECIALS)
    about = prepare([path], tmp_path / "out", config, SPECIALS, shard=101)
    shards = corpus([str(tmp_path / "out")], [], config, SPECIALS)
    assert shards.tokenizer.digest == direct.tokenizer.digest
    for one, other, side in ((shards.train, direct.train, "train"), (shards.valid, direct.valid, "valid")):
        assert ids(one) == ids(other)
        assert one.bytes == other.bytes == about[side]["bytes"]
        assert about[side]["tokens"] == len(other)
    positions = np.arange(40)
    batches = [Windows(found.train, 16, seed=1).batch(positions) for found in (shards, direct)]
    assert (batches[0] == batches[1]).all()


def test_what_is_in_a_prepared_folder(tmp_path, capsys):
    path, _rows = write_documents(tmp_path, 23)
    about = prepare([path], tmp_path / "deep" / "out", DataConfig(), SPECIALS, shard=1000)
    out = tmp_path / "deep" / "out"
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert json.loads((out / "shards.json").read_text()) == about
    assert about["tokenizer"] == Tokenizer.load(out).digest
    assert (about["train"]["documents"], about["valid"]["documents"]) == (21, 2)
    files = about["train"]["files"] + about["valid"]["files"]
    assert {p.name for p in out.iterdir()} == {"tokenizer.json", "shards.json"} | {f["name"] for f in files}
    assert files[0]["name"] == "train-00000.npy"
    for entry in files:
        array = np.load(out / entry["name"], allow_pickle=False)
        assert array.dtype == np.uint16
        assert len(array) == entry["tokens"] <= 1000
        assert hashlib.sha256((out / entry["name"]).read_bytes()).hexdigest() == entry["sha256"]
    mapped = corpus([str(out)], [], DataConfig(), []).train.parts
    assert all(isinstance(part, np.memmap) for part in mapped)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_a_large_vocabulary_takes_wider_numbers(tmp_path):
    many = "".join(chr(0x10000 + i) for i in range(70_000))
    (tmp_path / "a.txt").write_text(many, "utf-8")
    about = prepare([str(tmp_path / "a.txt")], tmp_path / "out", DataConfig(holdout=0), SPECIALS)
    assert about["dtype"] == "uint32"
    found = corpus([str(tmp_path / "out")], [], DataConfig(), [])
    assert found.tokenizer.decode(ids(found.train)) == many
    assert found.valid is None


def test_standard_input_and_pipes_are_prepared_although_read_once(tmp_path, monkeypatch):
    path, rows = write_documents(tmp_path, 1)
    direct = corpus([path], [], DataConfig(), SPECIALS)
    standard_input(monkeypatch, rows[0].encode())
    prepare(["-"], tmp_path / "a", DataConfig(), SPECIALS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(rows[0],))
    writer.start()
    prepare([str(pipe)], tmp_path / "b", DataConfig(), SPECIALS)
    writer.join()
    for out in ("a", "b"):
        found = corpus([str(tmp_path / out)], [], DataConfig(), [])
        assert ids(found.train) == ids(direct.train)
        assert ids(found.valid) == ids(direct.valid)


def test_prepared_with_own_text_to_measure_on(tmp_path):
    path, rows = write_documents(tmp_path, 12)
    (tmp_path / "valid.txt").write_text("Other Letters: XYZ")
    prepare([path], tmp_path / "out", DataConfig(), SPECIALS, valid_paths=[str(tmp_path / "valid.txt")])
    found = corpus([str(tmp_path / "out")], [], DataConfig(), [])
    assert found.tokenizer.decode(ids(found.valid)) == "Other Letters: XYZ"
    assert ids(found.train) == expected_ids(found.tokenizer, rows)
    raw = corpus([str(tmp_path / "out")], [path], DataConfig(), [])
    assert ids(raw.valid) == expected_ids(found.tokenizer, rows)
    prepared = corpus([str(tmp_path / "out")], [str(tmp_path / "out")], DataConfig(), [])
    assert ids(prepared.valid) == [*ids(found.train), found.tokenizer.end, *ids(found.valid)]
    assert prepared.valid.bytes == found.train.bytes + found.valid.bytes


@pytest.fixture
def prepared(tmp_path):
    """Two folders with the same tokenizer and one with another; a file of text."""
    path, _rows = write_documents(tmp_path, 12)
    train_tokenizer("byte", [], 0, SPECIALS).save(tmp_path / "byte.json")
    own = DataConfig(tokenizer=str(tmp_path / "byte.json"))
    prepare([path], tmp_path / "a", own, [])
    prepare([path], tmp_path / "b", own, [])
    prepare([path], tmp_path / "c", DataConfig(), SPECIALS)
    return tmp_path, path


def test_several_prepared_folders_are_one(prepared):
    folder, _ = prepared
    one = corpus([str(folder / "a")], [], DataConfig(), [])
    two = corpus([str(folder / "a"), str(folder / "b")], [], DataConfig(), [])
    assert ids(two.train) == [*ids(one.train), one.tokenizer.end, *ids(one.train)]
    assert ids(two.valid) == [*ids(one.valid), one.tokenizer.end, *ids(one.valid)]
    assert two.train.bytes == 2 * one.train.bytes


def test_prepared_folders_that_do_not_fit(prepared):
    folder, path = prepared
    a, c = str(folder / "a"), str(folder / "c")
    mistake(lambda: corpus([a, c], [], DataConfig(), []), a, c, "another tokenizer")
    mistake(lambda: corpus([a], [c], DataConfig(), []), a, c, "another tokenizer")
    mistake(lambda: corpus([a, path], [], DataConfig(), []), a, path, "prepare both")
    mistake(lambda: corpus([path], [a], DataConfig(), []), a, path, "prepare both")
    mistake(lambda: corpus([c], [], DataConfig(tokenizer=str(folder / "byte.json")), []), c, "data.tokenizer")
    mistake(lambda: corpus([c], [], DataConfig(), [], tokenizer=Tokenizer.load(a)), c, "another tokenizer")
    mistake(lambda: prepare([a], folder / "new", DataConfig(), []), a, "prepared already")
    same = DataConfig(tokenizer=str(folder / "byte.json"))
    assert len(corpus([a], [], same, []).train)


def test_damaged_shards_are_noticed(prepared):
    folder, _ = prepared
    a = folder / "a"
    load = lambda: corpus([str(a)], [], DataConfig(), [])  # noqa: E731
    shard, index = a / "train-00000.npy", a / "shards.json"
    whole, about = shard.read_bytes(), index.read_text()
    for bad in (whole[:-2], whole[:20], b"", whole.replace(b"<u2", b"<i2"), b"\x80\x04" + whole):
        shard.write_bytes(bad)
        mistake(load, shard, "npy: damaged (")
    np.save(shard, np.arange(5, dtype=np.uint16))
    mistake(load, shard, "npy: damaged (", "(5,)")
    shard.unlink()
    mistake(load, shard, "npy: missing")
    shard.write_bytes(whole)
    for bad in ("", "[]", "{}", about.replace('"version": 1', '"version": 2'), about.replace("tokens", "t")):
        index.write_text(bad)
        mistake(load, index, "json: damaged (")
    index.write_text(about.replace('"tokenizer": "', '"tokenizer": "0'))
    mistake(load, a / "tokenizer.json", "not the one of these shards")
    index.write_text(about)
    load()


def test_nothing_is_overwritten(tmp_path):
    path, _ = write_documents(tmp_path, 3)
    (tmp_path / "out").mkdir()
    prepare([path], tmp_path / "out", DataConfig(), [])  # an empty folder will do
    before = sorted(p.read_bytes() for p in (tmp_path / "out").iterdir())
    mistake(lambda: prepare([path], tmp_path / "out", DataConfig(), []), tmp_path / "out", "delete")
    mistake(lambda: prepare([path], path, DataConfig(), []), path)
    assert sorted(p.read_bytes() for p in (tmp_path / "out").iterdir()) == before


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    path, _ = write_documents(tmp_path, 3)
    there = sorted(p.name for p in tmp_path.iterdir())

    def fail(error):
        def save(file, *_, **__):
            Path(file).write_bytes(b"half")
            raise error

        monkeypatch.setattr(np, "save", save)
        return lambda: prepare([path], tmp_path / "out", DataConfig(), [])

    full = OSError(errno.ENOSPC, "No space left on device")
    mistake(fail(full), tmp_path / "out", "No space left on device")
    mistake(fail(OSError("100 requested and 20 written")), tmp_path / "out", "20 written")
    assert sorted(p.name for p in tmp_path.iterdir()) == there
    interrupted = fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(p.name for p in tmp_path.iterdir()) == there
    monkeypatch.undo()
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff")
    config = DataConfig(tokenizer="byte", holdout=0)  # so that it is noticed while encoding
    mistake(lambda: prepare([path, str(tmp_path / "bad.txt")], tmp_path / "out", config, []), "bad.txt:2")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*there, "bad.txt"])


def test_the_tokenizer_learns_from_the_beginning_of_an_enormous_text(tmp_path, monkeypatch):
    path, rows = write_documents(tmp_path, 5)
    monkeypatch.setattr(data, "TRAINING_TEXT", len(rows[0]) + 10)
    found = corpus([path], [], DataConfig(tokenizer="bpe", vocab=400, holdout=0), [])
    expected = train_tokenizer("bpe", [rows[0], rows[1][:10]], 400, [])
    assert found.tokenizer.digest == expected.digest


def test_no_torch():
    for module in (data, text):
        assert not re.search(r"^\s*(import|from) torch", Path(module.__file__).read_text(), re.MULTILINE)
