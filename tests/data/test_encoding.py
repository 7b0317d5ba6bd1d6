"""The configuration, the tokenizer that it names, and ids batch by batch."""

import numpy as np
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


def test_a_tokenizer_learns_no_more_from_a_larger_text(monkeypatch):
    """Its trainer holds all different words that it reads: those of a share, from all parts alike."""
    learned = []

    def train(kind, texts, vocab, specials):
        learned.append("".join(texts))
        return train_tokenizer("byte", [], vocab, specials)

    monkeypatch.setattr(encoding, "train_tokenizer", train)
    monkeypatch.setattr(encoding, "LEARNED", 1009)
    monkeypatch.setattr(encoding, "LEARNED_PER_TOKEN", 11)
    for count in (89, 890, 3560):
        texts = [(False, chr(0x4E00 + n) * (n % 13 + 31)) for n in range(count)]
        for vocab, length in ((64, 1009), (256, 11 * 256)):
            encoding.tokenizer_for(texts, DataConfig(tokenizer="bpe", vocab=vocab), [])
            counts = np.bincount([(ord(c) - 0x4E00) * 4 // count for c in learned[-1]], minlength=4)
            assert length - 43 <= len(learned[-1]) <= length
            assert counts.max() - counts.min() < 100, "characters of each quarter of the texts"
        encoding.tokenizer_for(texts, DataConfig(tokenizer="char"), [])
        assert learned[-1] == "".join(text for _, text in texts), "characters need all of it"


def test_a_sample_of_texts():
    rows = ["ab", "cde", "f", "ghij", "klm"]
    assert list(encoding.sample_texts(rows, 13)) == rows
    for limit in range(4, 13):
        sample = list(encoding.sample_texts(rows, limit))
        assert limit - 4 < sum(map(len, sample)) <= limit
        places = [rows.index(next(row for row in rows if row.startswith(text))) for text in sample]
        assert places == sorted(set(places)), "texts, the last one perhaps cut, in their order"


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
