"""Shards are checked once, read in windows, and say in one line that they are cut short or changed."""

import os

import numpy as np
import pytest

from helpers.errors import user_error
from helpers.runs import before, tiny, unmeasured, write_text
from regard.data import DataConfig, Windows, digests, load_corpus, load_heldout, prepare, shard
from regard.data.streams import Stream
from regard.training.trainer import Trainer

TOKENS = 1009


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("".join(chr(97 + n * n % 23) for n in range(TOKENS)))
    prepare(
        [str(tmp_path / "a.txt")], tmp_path / "out", DataConfig(holdout=0.2), ["<|endoftext|>"], shard=401
    )
    return tmp_path / "out"


def load(folder):
    return load_corpus([str(folder)], [], DataConfig(), [])


def change(file, where=-1, by=1):
    content = bytearray(file.read_bytes())
    content[where] ^= by
    file.write_bytes(content)


def test_windows_are_those_of_the_array(folder):
    corpus = load(folder)
    arrays = [np.load(part.path) for part in corpus.train.parts]
    stream = Stream(arrays, corpus.train.bytes)
    assert len(arrays) == 3
    positions = np.arange(300)
    for context in (7, 100):
        windows = [Windows(s, context, seed=2, size=4).batch(positions) for s in (corpus.train, stream)]
        assert (windows[0] == windows[1]).all()
    starts = np.array([0, 5, 390])
    assert (corpus.train.rows(starts, 11) == stream.rows(starts, 11)).all()
    assert [part[3:3].tolist() for part in corpus.train.parts] == [[]] * 3
    assert np.concatenate(list(corpus.train.blocks())).tolist() == np.concatenate(arrays).tolist()


def test_a_shard_is_written_as_numpy_does(folder, tmp_path):
    for part in load(folder).train.parts:
        np.save(tmp_path / "again.npy", np.load(part.path))
        assert (tmp_path / "again.npy").read_bytes() == part.path.read_bytes()


def test_a_changed_shard_is_noticed_when_it_is_first_read(folder):
    change(folder / "train-00001.npy", by=3)
    corpus = load(folder)
    corpus.train.read(0, 401)  # another file
    for _ in range(2):
        user_error(lambda: corpus.train.read(400, 403), folder / "train-00001.npy", "SHA-256")
    user_error(corpus.train.fingerprint, folder / "train-00001.npy", "SHA-256")
    change(folder / "valid-00000.npy")
    user_error(
        lambda: load_heldout([str(folder)], [], corpus.tokenizer).read(0, 9), folder / "valid-00000.npy"
    )


def test_a_shard_is_read_whole_only_once(folder, monkeypatch):
    monkeypatch.setattr(digests, "FRESH", 0)
    hashed = []
    true = digests.hashlib.file_digest
    monkeypatch.setattr(
        digests.hashlib, "file_digest", lambda file, kind: hashed.append(file.name) or true(file, kind)
    )
    for _ in range(2):
        corpus = load(folder)
        for start in range(0, 700, 100):
            corpus.train.read(start, start + 10)
        corpus.train.fingerprint()
    assert [os.path.basename(name) for name in hashed] == [f"train-0000{n}.npy" for n in range(3)]


def test_while_all_are_checked_nobody_waits(folder, monkeypatch):
    corpus = load(folder)
    read = []
    monkeypatch.setattr(shard, "file_sha256", lambda path: read.append(corpus.train.read(0, 800)) or "")
    user_error(corpus.train.fingerprint, folder / "train-00000.npy")
    assert len(read[0]) == 800  # also of those that come later


def test_a_shard_that_is_cut_while_it_is_used(folder):
    corpus = load(folder)
    stream, file = corpus.train, folder / "train-00000.npy"
    stream.read(0, 800)
    os.truncate(file, 300)
    user_error(lambda: stream.read(390, 400), file, "changed")
    user_error(lambda: stream.rows(np.array([3, 390]), 5), file, "changed")


def test_a_shard_that_changes_while_it_is_used(folder):
    corpus = load(folder)
    file = folder / "train-00000.npy"
    expected = corpus.train.read(0, 401).tolist()
    content = file.read_bytes()
    os.utime(file, ns=(1, 1))  # only its time
    assert corpus.train.read(0, 401).tolist() == expected
    file.unlink()
    file.write_bytes(content)  # the same again
    shard._open_file.cache_clear()
    assert corpus.train.read(0, 401).tolist() == expected
    change(file, by=3)
    os.utime(file, ns=(2, 2))
    user_error(lambda: corpus.train.read(0, 401), file, "SHA-256")
    file.unlink()
    shard._open_file.cache_clear()
    user_error(lambda: corpus.train.read(0, 401), file, "changed")


def test_more_files_than_may_be_open(folder, tmp_path):
    prepare([str(tmp_path / "a.txt")], tmp_path / "many", DataConfig(holdout=0), [], shard=3)
    stream = load(tmp_path / "many").train
    assert len(stream.parts) > 2 * shard.OPEN_FILES
    count = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert len(np.concatenate(list(stream.blocks()))) == TOKENS
    assert len(os.listdir("/proc/self/fd")) <= count + shard.OPEN_FILES


def test_tokens_outside_of_the_vocabulary(folder):
    """Written by somebody else, with a good SHA-256."""
    corpus = load(folder)
    part = corpus.train.parts[1]
    ids = np.load(part.path)
    ids[7] = corpus.tokenizer.vocab
    np.save(part.path, ids)
    index = (folder / "shards.json").read_text()
    (folder / "shards.json").write_text(index.replace(part.sha256, digests.file_sha256(part.path)))
    stream = load(folder).train
    stream.read(0, 401 + 7)
    user_error(lambda: stream.read(0, 401 + 8), part.path, f"token {corpus.tokenizer.vocab} ", "vocabulary")


def test_training_on_a_shard_that_is_cut(tmp_path, monkeypatch):
    """A mapped file would end the process with SIGBUS."""
    unmeasured(monkeypatch)
    prepare([write_text(tmp_path / "a.txt", 200)], tmp_path / "shards", DataConfig(), ["<|endoftext|>"])
    file = tmp_path / "shards" / "train-00000.npy"
    with before(Trainer, "train_step", lambda trainer: trainer.step == 3 and os.truncate(file, 200)):
        user_error(lambda: tiny(str(file.parent), tmp_path / "out", steps=9), file, "changed")


def test_training_stops_at_a_damaged_shard(tmp_path, monkeypatch):
    unmeasured(monkeypatch)
    prepare([write_text(tmp_path / "a.txt", 200)], tmp_path / "shards", DataConfig(), ["<|endoftext|>"])
    change(tmp_path / "shards" / "train-00000.npy")
    user_error(
        lambda: tiny(str(tmp_path / "shards"), tmp_path / "out", steps=9, train__save=3),
        "train-00000.npy",
        "SHA-256",
    )
    assert not (tmp_path / "out").exists()
