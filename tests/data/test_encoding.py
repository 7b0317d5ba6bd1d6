"""The configuration, the tokenizer that it names, and ids batch by batch."""

import pytest

from helpers.corpora import SPECIALS, ids, write_documents
from helpers.errors import user_error
from regard.data import DataConfig, encoding, load_corpus
from regard.runs.recipe import fill
from regard.text import tokenizer as text
from regard.text.tokenizer_kinds import train_tokenizer


def test_bad_configuration(tmp_path):
    path, _ = write_documents(tmp_path, 3)
    for holdout in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"holdout={holdout} must be a share"):
            DataConfig(holdout=holdout)
    with pytest.raises(ValueError, match="vocab=0 must be more than 0"):
        DataConfig(vocab=0)
    user_error(lambda: fill("data", {"holdout": 2}, DataConfig), "data: holdout=2")
    unknown = DataConfig(tokenizer="wordpeice")
    user_error(
        lambda: load_corpus([path], [], unknown, []), "data.tokenizer=wordpeice", "did you mean wordpiece?"
    )
    known = "bpe, byte, char, unigram, word, wordpiece"
    user_error(lambda: load_corpus([path], [], DataConfig(tokenizer="!"), []), known)
    user_error(
        lambda: load_corpus([path], [], DataConfig(tokenizer=str(tmp_path)), []), tmp_path / "tokenizer.json"
    )


def test_only_char_learns_from_the_held_out_text(tmp_path):
    (tmp_path / "a.txt").write_text("low lower lowest " * 60 + "zqzqzqzqzq" * 10)
    corpora = {
        kind: load_corpus([str(tmp_path)], [], DataConfig(tokenizer=kind), []) for kind in ("char", "bpe")
    }
    assert corpora["char"].tokenizer.id("q") is not None
    assert not any("q" in token and len(token) > 1 for token in corpora["bpe"].tokenizer.inner.get_vocab())


def test_the_tokenizer_learns_from_the_beginning_of_an_enormous_text(tmp_path, monkeypatch):
    path, rows = write_documents(tmp_path, 5)
    monkeypatch.setattr(encoding, "TRAINING_TEXT", len(rows[0]) + 10)
    corpus = load_corpus([path], [], DataConfig(tokenizer="bpe", vocab=400, holdout=0), [])
    expected = train_tokenizer("bpe", [rows[0], rows[1][:10]], 400, [])
    assert corpus.tokenizer.digest == expected.digest


def test_a_long_text_arrives_whole_in_many_batches(tmp_path, monkeypatch):
    path, _rows = write_documents(tmp_path, 25)
    config = DataConfig(tokenizer="byte")
    corpus = load_corpus([path], [], config, SPECIALS)
    for module in (text, encoding):
        monkeypatch.setattr(module, "AT_ONCE", 50)
    monkeypatch.setattr(text, "PIECE", 16)
    cut = load_corpus([path], [], config, SPECIALS)
    assert ids(cut.train) == ids(corpus.train)
    assert ids(cut.valid) == ids(corpus.valid)
    assert (cut.train.bytes, cut.valid.bytes) == (corpus.train.bytes, corpus.valid.bytes)
    parts = encoding.split_texts([(True, "long enough for many " * 50)], None, 0.1)
    assert len(list(encoding.encode_texts(parts, corpus.tokenizer))) > 10
