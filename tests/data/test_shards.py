"""Prepared folders: equal to reading directly, complete or absent, and damage is noticed."""

import contextlib
import errno
import hashlib
import json
import os
import threading

import numpy as np
import pytest

from helpers.corpora import SPECIALS, expected_ids, ids, standard_input, write_documents
from helpers.errors import user_error
from regard.data import DataConfig, Windows, load_corpus, prepare, shards
from regard.data.shard import Shard
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("count", [1, 4, 23])
def test_prepared_is_like_read_directly(tmp_path, kind, count):
    path, _ = write_documents(tmp_path, count)
    config = DataConfig(tokenizer=kind, vocab=300)
    direct = load_corpus([path], [], config, SPECIALS)
    about = prepare([path], tmp_path / "out", config, SPECIALS, shard=101)
    shards = load_corpus([str(tmp_path / "out")], [], config, SPECIALS)
    assert shards.tokenizer.digest == direct.tokenizer.digest
    for one, other, side in ((shards.train, direct.train, "train"), (shards.valid, direct.valid, "valid")):
        assert ids(one) == ids(other)
        assert one.bytes == other.bytes == about[side]["bytes"]
        assert about[side]["tokens"] == len(other)
    positions = np.arange(40)
    batches = [Windows(corpus.train, 16, seed=1, size=4).batch(positions) for corpus in (shards, direct)]
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
    parts = load_corpus([str(out)], [], DataConfig(), []).train.parts
    assert all(isinstance(part, Shard) for part in parts)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_a_large_vocabulary_takes_wider_numbers(tmp_path):
    many = "".join(chr(0x10000 + i) for i in range(70_000))
    (tmp_path / "a.txt").write_text(many, "utf-8")
    about = prepare([str(tmp_path / "a.txt")], tmp_path / "out", DataConfig(holdout=0), SPECIALS)
    assert about["dtype"] == "uint32"
    corpus = load_corpus([str(tmp_path / "out")], [], DataConfig(), [])
    assert corpus.tokenizer.decode(ids(corpus.train)) == many
    assert corpus.valid is None


def test_standard_input_and_pipes_are_prepared_although_read_once(tmp_path, monkeypatch):
    path, rows = write_documents(tmp_path, 1)
    direct = load_corpus([path], [], DataConfig(), SPECIALS)
    standard_input(monkeypatch, rows[0].encode())
    prepare(["-"], tmp_path / "a", DataConfig(), SPECIALS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(rows[0],))
    writer.start()
    prepare([str(pipe)], tmp_path / "b", DataConfig(), SPECIALS)
    writer.join()
    for out in ("a", "b"):
        corpus = load_corpus([str(tmp_path / out)], [], DataConfig(), [])
        assert ids(corpus.train) == ids(direct.train)
        assert ids(corpus.valid) == ids(direct.valid)


def test_prepared_with_own_text_to_measure_on(tmp_path):
    path, rows = write_documents(tmp_path, 12)
    (tmp_path / "valid.txt").write_text("Other Letters: XYZ")
    prepare([path], tmp_path / "out", DataConfig(), SPECIALS, valid_paths=[str(tmp_path / "valid.txt")])
    corpus = load_corpus([str(tmp_path / "out")], [], DataConfig(), [])
    assert corpus.tokenizer.decode(ids(corpus.valid)) == "Other Letters: XYZ"
    assert ids(corpus.train) == expected_ids(corpus.tokenizer, rows)
    raw = load_corpus([str(tmp_path / "out")], [path], DataConfig(), [])
    assert ids(raw.valid) == expected_ids(corpus.tokenizer, rows)
    prepared = load_corpus([str(tmp_path / "out")], [str(tmp_path / "out")], DataConfig(), [])
    assert ids(prepared.valid) == [*ids(corpus.train), corpus.tokenizer.end, *ids(corpus.valid)]
    assert prepared.valid.bytes == corpus.train.bytes + corpus.valid.bytes


def test_preparing_shows_how_far_it_is(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("déjà vu " * 50)
    (tmp_path / "b.txt").write_text("valid")
    shown, moved = [], []

    @contextlib.contextmanager
    def progress(*args):
        shown.append(args)
        yield moved.append

    monkeypatch.setattr(shards, "progress", progress)
    prepare([str(tmp_path / "a.txt")], tmp_path / "out", DataConfig(), [], [str(tmp_path / "b.txt")])
    assert shown == [("bytes prepared", 10 * 50 + 5)]
    assert sum(moved) == 10 * 50 + 5


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
    one = load_corpus([str(folder / "a")], [], DataConfig(), [])
    two = load_corpus([str(folder / "a"), str(folder / "b")], [], DataConfig(), [])
    assert ids(two.train) == [*ids(one.train), one.tokenizer.end, *ids(one.train)]
    assert ids(two.valid) == [*ids(one.valid), one.tokenizer.end, *ids(one.valid)]
    assert two.train.bytes == 2 * one.train.bytes


def test_prepared_folders_that_do_not_fit(prepared):
    folder, path = prepared
    a, c = str(folder / "a"), str(folder / "c")
    user_error(lambda: load_corpus([a, c], [], DataConfig(), []), a, c, "another tokenizer")
    user_error(lambda: load_corpus([a], [c], DataConfig(), []), a, c, "another tokenizer")
    user_error(lambda: load_corpus([a, path], [], DataConfig(), []), a, path, "prepare both")
    user_error(lambda: load_corpus([path], [a], DataConfig(), []), a, path, "prepare both")
    user_error(
        lambda: load_corpus([c], [], DataConfig(tokenizer=str(folder / "byte.json")), []), c, "data.tokenizer"
    )
    user_error(
        lambda: load_corpus([c], [], DataConfig(), [], tokenizer=Tokenizer.load(a)), c, "another tokenizer"
    )
    user_error(lambda: prepare([a], folder / "new", DataConfig(), []), a, "prepared already")
    user_error(lambda: prepare([path], folder / "new", DataConfig(), [], [c]), c, "prepared already")
    same = DataConfig(tokenizer=str(folder / "byte.json"))
    assert len(load_corpus([a], [], same, []).train)


def test_damaged_shards_are_noticed(prepared):
    folder, _ = prepared
    a = folder / "a"
    load = lambda: load_corpus([str(a)], [], DataConfig(), [])  # noqa: E731
    shard, index = a / "train-00000.npy", a / "shards.json"
    raw, about = shard.read_bytes(), index.read_text()
    for bad in (raw[:-2], raw[:20], b"", raw.replace(b"<u2", b"<i2"), b"\x80\x04" + raw):
        shard.write_bytes(bad)
        user_error(load, shard, "npy: damaged (")
    np.save(shard, np.arange(5, dtype=np.uint16))
    user_error(load, shard, "npy: damaged (", "(5,)")
    shard.unlink()
    user_error(load, shard, "npy: missing")
    shard.write_bytes(raw)
    for bad in (
        "",
        "[]",
        "{}",
        "[" * 10**5,
        about.replace('"version": 1', '"version": 2'),
        about.replace("tokens", "t"),
    ):
        index.write_text(bad)
        user_error(load, index, "json: damaged (")
    index.write_text(about.replace('"tokenizer": "', '"tokenizer": "0'))
    user_error(load, a / "tokenizer.json", "prepare the folder again")
    index.write_text(about)
    load()


def test_nothing_is_overwritten(tmp_path):
    path, _ = write_documents(tmp_path, 3)
    (tmp_path / "out").mkdir()
    prepare([path], tmp_path / "out", DataConfig(), [])  # an empty folder will do
    before = sorted(p.read_bytes() for p in (tmp_path / "out").iterdir())
    user_error(lambda: prepare([path], tmp_path / "out", DataConfig(), []), tmp_path / "out", "delete")
    user_error(lambda: prepare([path], path, DataConfig(), []), path)
    assert sorted(p.read_bytes() for p in (tmp_path / "out").iterdir()) == before


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    path, _ = write_documents(tmp_path, 3)
    there = sorted(p.name for p in tmp_path.iterdir())

    def fail(error):
        def write(file, *_, **__):
            file.write(b"half")
            raise error

        monkeypatch.setattr(np.lib.format, "write_array_header_1_0", write)
        return lambda: prepare([path], tmp_path / "out", DataConfig(), [])

    full = OSError(errno.ENOSPC, "No space left on device")
    user_error(fail(full), tmp_path / "out", "No space left on device")
    user_error(fail(OSError("100 requested and 20 written")), tmp_path / "out", "20 written")
    assert sorted(p.name for p in tmp_path.iterdir()) == there
    interrupted = fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(p.name for p in tmp_path.iterdir()) == there
    monkeypatch.undo()
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff")
    config = DataConfig(tokenizer="byte", holdout=0)  # so that it is noticed while encoding
    user_error(lambda: prepare([path, str(tmp_path / "bad.txt")], tmp_path / "out", config, []), "bad.txt:2")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*there, "bad.txt"])
