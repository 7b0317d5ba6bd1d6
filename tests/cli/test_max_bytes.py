"""data.max_bytes: every command that reads files lets a compressed one expand further."""

import gzip

import pytest

from helpers.commands import call, check_refused, stdout_of
from regard.data import files

pytestmark = pytest.mark.usefixtures("quick")
VECTORS = "cat 1.0 0.0 0.5\ndog 0.9 0.1 0.5\nsun 0.0 1.0 0.5\n"


@pytest.fixture
def vectors(tmp_path, monkeypatch):
    """Word vectors, which expand further than files may here."""
    monkeypatch.setattr(files, "SMALL", 20)
    monkeypatch.setattr(files, "MAX_EXPANSION", 0)
    path = tmp_path / "vectors.txt.gz"
    path.write_bytes(gzip.compress(VECTORS.encode()))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["ask", "MODEL", "cat"],
        ["score", "MODEL", "pairs.csv"],
        ["look", "MODEL", "cat", "--save", "cat.svg"],
        ["serve", "MODEL"],
        ["export", "MODEL", "out.txt", "--to", "word2vec"],
    ],
    ids=lambda words: words[0],
)
def test_commands_that_load_a_model(capsys, tmp_path, vectors, words):
    words = [vectors if word == "MODEL" else word for word in words]
    check_refused(capsys, tmp_path, words, vectors, "20 bytes", "--set data.max_bytes=")
    check_refused(capsys, tmp_path, [*words, "--set", "data.max_bytes=23"], vectors, "23 bytes")
    check_refused(capsys, tmp_path, [*words, "--set", "data.max_bytes=0"], "max_bytes=0")
    check_refused(capsys, tmp_path, [*words, "--set", "data.vocab=3"], "data.vocab", "max_bytes")
    check_refused(capsys, tmp_path, [*words, "--set", "model.dim=3"], "model.dim")


def test_ask_and_train_on(capsys, tmp_path, vectors):
    more = ["--set", "data.max_bytes=999"]
    assert "dog" in stdout_of(capsys, "ask", vectors, "cat", *more)
    text = tmp_path / "text.txt"
    text.write_text("cat dog sun " * 50)
    train = ["train", "words", text, "--from", vectors, "--steps", 1, "--out", tmp_path / "out"]
    check_refused(capsys, tmp_path, train, vectors, "--set data.max_bytes=")
    assert call(*train, "--set", "train.device=cpu", *more) == 0


def test_score_and_prepare(capsys, tmp_path, monkeypatch, model):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"The quick brown fox jumps over the lazy dog.\n" * 99))
    plain = stdout_of(capsys, "score", model, path)
    monkeypatch.setattr(files, "SMALL", 20)
    monkeypatch.setattr(files, "MAX_EXPANSION", 0)
    for words in (["score", model, path], ["prepare", path, "--out", tmp_path / "shards"]):
        check_refused(capsys, tmp_path, words, path, "20 bytes", "--set data.max_bytes=")
    assert stdout_of(capsys, "score", model, path, "--set", "data.max_bytes=9999") == plain
    assert call("prepare", path, "--out", tmp_path / "shards", "--set", "data.max_bytes=9999") == 0
