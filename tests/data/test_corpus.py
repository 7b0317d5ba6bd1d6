"""Texts for training and validation: what is held out, and which tokenizer is used."""

import re
from pathlib import Path

import pytest

from helpers.corpora import SPECIALS, expected_ids, ids, size, write_documents
from regard import data
from regard.data import DataConfig, load_corpus
from regard.text import tokenizer as text
from regard.text.tokenizer_kinds import train_tokenizer


def test_one_text_is_cut_as_nanogpt_does(tmp_path):
    text = "".join(chr(97 + i * i % 23) + "é" * (i % 2) for i in range(1003))
    (tmp_path / "a.txt").write_text(text)
    corpus = load_corpus([str(tmp_path / "a.txt")], [], DataConfig(), SPECIALS)
    cut = int(len(text) * 0.9)
    assert corpus.tokenizer.decode(ids(corpus.train)) == text[:cut]
    assert corpus.tokenizer.decode(ids(corpus.valid)) == text[cut:]
    assert (corpus.train.bytes, corpus.valid.bytes) == (size([text[:cut]]), size([text[cut:]]))


def test_few_texts_are_cut_by_their_characters(tmp_path):
    path, rows = write_documents(tmp_path, 5)
    corpus = load_corpus([path], [], DataConfig(tokenizer="byte", holdout=0.5), SPECIALS)
    cut = int(sum(map(len, rows)) * 0.5) - len(rows[0]) - len(rows[1])
    train, valid = [*rows[:2], rows[2][:cut]], [rows[2][cut:], *rows[3:]]
    assert all([*train, *valid])
    assert ids(corpus.train) == expected_ids(corpus.tokenizer, train)
    assert ids(corpus.valid) == expected_ids(corpus.tokenizer, valid)
    assert corpus.train.bytes == size(train)


def test_a_cut_between_two_texts(tmp_path):
    (tmp_path / "a.txt").write_text("aaaa")
    (tmp_path / "b.txt").write_text("bbbb")
    corpus = load_corpus([str(tmp_path)], [], DataConfig(tokenizer="byte", holdout=0.5), SPECIALS)
    assert [corpus.tokenizer.decode(ids(side)) for side in (corpus.train, corpus.valid)] == ["aaaa", "bbbb"]
    assert len(corpus.train) == len(corpus.valid) == 4


@pytest.mark.parametrize(
    ("count", "holdout", "every"), [(10, 0.1, 10), (31, 0.1, 10), (31, 0.25, 4), (12, 0.9, 2)]
)
def test_of_many_texts_every_kth_is_held_out(tmp_path, count, holdout, every):
    path, rows = write_documents(tmp_path, count)
    corpus = load_corpus([path], [], DataConfig(tokenizer="byte", holdout=holdout), SPECIALS)
    assert ids(corpus.valid) == expected_ids(corpus.tokenizer, rows[every - 1 :: every])
    train = [row for i, row in enumerate(rows) if i % every != every - 1]
    assert ids(corpus.train) == expected_ids(corpus.tokenizer, train)
    assert (corpus.train.bytes, corpus.valid.bytes) == (size(train), size(rows[every - 1 :: every]))


def test_a_small_share_of_texts_is_still_held_out(tmp_path):
    path, _ = write_documents(tmp_path, 20)
    assert len(load_corpus([path], [], DataConfig(holdout=0.02), []).valid) > 10


def test_own_text_to_measure_on(tmp_path):
    path, rows = write_documents(tmp_path, 12)
    (tmp_path / "valid.txt").write_text("Other Letters: XYZ")
    corpus = load_corpus([path], [str(tmp_path / "valid.txt")], DataConfig(), SPECIALS)
    assert corpus.tokenizer.decode(ids(corpus.valid)) == "Other Letters: XYZ"  # known, although only there
    assert ids(corpus.train) == expected_ids(corpus.tokenizer, rows)


def test_nothing_held_out(tmp_path):
    path, rows = write_documents(tmp_path, 12)
    corpus = load_corpus([path], [], DataConfig(holdout=0.0), SPECIALS)
    assert corpus.valid is None
    assert ids(corpus.train) == expected_ids(corpus.tokenizer, rows)
    (tmp_path / "tiny.txt").write_text("abcdefgh")
    assert load_corpus([str(tmp_path / "tiny.txt")], [], DataConfig(), []).valid is None  # a single token


def test_without_an_end_token_texts_follow_directly(tmp_path):
    path, rows = write_documents(tmp_path, 3)
    corpus = load_corpus([path], [], DataConfig(tokenizer="byte", holdout=0), [])
    assert bytes(ids(corpus.train)) == "".join(rows).encode()


def test_a_tokenizer_of_ones_own(tmp_path):
    path, rows = write_documents(tmp_path, 3)
    own = train_tokenizer("bpe", rows, 300, SPECIALS)
    own.save(tmp_path / "tokenizer.json")
    for corpus in (
        load_corpus([path], [], DataConfig(tokenizer=str(tmp_path)), ["ignored"]),
        load_corpus([path], [], DataConfig(tokenizer=str(tmp_path / "tokenizer.json")), []),
        load_corpus([path], [], DataConfig(), [], tokenizer=own),
    ):
        assert corpus.tokenizer.digest == own.digest
        assert max(ids(corpus.train)) < own.vocab


def test_no_torch():
    """Except for images and recordings, which are augmented on the device."""
    files = [text.__file__, *Path(data.__file__).parent.glob("*.py")]
    tensors = "augment", "images", "image_readers", "resizing", "sounds", "spec_augment", "resizing_kernel"
    for path in (path for path in files if Path(path).stem not in tensors):
        assert not re.search(r"^\s*(import|from) torch", Path(path).read_text(), re.MULTILINE)
