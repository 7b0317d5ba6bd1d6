"""Documents as sentences and passages: where they end, and random sentences of other documents."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from helpers.errors import user_error
from regard.data.passages import Passages, encode_passages, split_documents, split_paragraphs
from regard.data.ragged import Ragged
from regard.text.sentences import split_sentences
from regard.text.tokenizer_kinds import train_tokenizer

TEXTS = [
    "The fox ran. It saw a goose! Was it near?\nA line is a sentence",
    "One alone.",
    " \n ",
    "Two of them. Here is the other, which is much longer than all the others are.",
    "Last. But. Not. Least. Of. Them.",
]


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def tokenizer(request):
    return train_tokenizer(request.param, TEXTS, 320, ["[PAD]", "[UNK]"])


def numbers(*documents, longest=10):
    """Passages of sentences with these lengths; every token is the number of its sentence."""
    lengths = np.array([n for document in documents for n in document])
    firsts = np.cumsum([0, *map(len, documents)])
    return Passages(Ragged(np.repeat(np.arange(len(lengths)), lengths), lengths), firsts, 0, longest)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a\nb\n\nc\n", ["a\nb", "c\n"]),
        ("a\n \t\nb\n\n\n\nc", ["a", "b", "c"]),
        ("a\r\nb\r\n\r\nc", ["a\r\nb\r", "c"]),
        ("a\nb\n", ["a\nb"]),  # without a blank line, lines of one sentence belong together
        ("a\nb\n\n", ["a\nb"]),
        ("a\n" * 60, ["a\n" * 24 + "a"] * 2 + ["a\n" * 9 + "a"]),
        ("We go. You stay.\nNo! Who? Me.\nf\n", ["We go. You stay.", "No! Who? Me.", "f"]),  # most: several
        ("a", ["a"]),
        ("\n\na\n\n", ["a"]),
        ("\n\na\nb\n\n", ["a\nb"]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_paragraphs(text, parts):
    assert split_paragraphs(text) == parts


def test_sentences_are_ids_document_by_document(tokenizer):
    passages = encode_passages(iter(TEXTS), tokenizer, 7)
    expected = [split_sentences(text) for text in TEXTS if text.strip()]
    assert passages.firsts.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    for i, sentence in enumerate(s for document in expected for s in document):
        assert passages.sentence_ids(i, i + 1).tolist() == tokenizer.encode(sentence)
    for (first, stop), document in zip(pairwise(passages.firsts.tolist()), expected, strict=True):
        assert passages.sentence_ids(first, stop).tolist() == [
            id for s in document for id in tokenizer.encode(s)
        ]
    assert passages.bytes == sum(len(text.encode()) for text in TEXTS if text.strip())
    assert passages.ids.ids.dtype == np.uint16
    assert passages.describe() == f"{len(passages.ids.ids):,} tokens in 4 documents"
    for nothing in ([], [" \n "], [""]):
        user_error(lambda nothing=nothing: encode_passages(nothing, tokenizer, 7), "no sentence")


@pytest.mark.parametrize("longest", [1, 7, 20, 1000])
def test_passages_are_everything_once_within_the_room(tokenizer, longest):
    passages = encode_passages(TEXTS, tokenizer, longest)
    cuts = passages.cuts.tolist()
    assert len(passages) == len(cuts)
    assert [first for first, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == passages.firsts[-1]
    borders = set(passages.firsts.tolist())
    assert borders <= {place for cut in cuts for place in cut}  # never across documents
    for first, stop in cuts:
        size = len(passages.sentence_ids(first, stop))
        assert size <= longest or stop - first == 1
        if stop not in borders:  # one more would not have had room
            assert len(passages.sentence_ids(first, stop + 1)) > longest
    if longest == 1000:
        assert len(cuts) == 4


def test_passages_by_hand():
    assert numbers([3, 3, 4, 1], [11], [10, 1, 2]).cuts.tolist() == [
        [0, 3], [3, 4], [4, 5], [5, 6], [6, 8],
    ]  # fmt: skip
    passages = numbers([3, 3, 4, 1], [11], [10, 1, 2])
    assert [passages.passage_end(1, n) for n in (0, 3, 6, 7, 8, 99)] == [2, 2, 2, 3, 4, 4]
    assert passages.sentence_ids(1, 3).tolist() == [1, 1, 1, 2, 2, 2, 2]


def test_elsewhere_is_another_document_and_any_sentence_of_it():
    passages = numbers([3, 2], [5], [1, 1, 1, 4], [2])
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(4), np.diff(passages.firsts))
    draws = 7000
    for first in range(8):
        counts = Counter(passages.random_elsewhere(first, rng) for _ in range(draws))
        elsewhere = [i for i in range(8) if documents[i] != documents[first]]
        assert sorted(counts) == elsewhere
        share = 1 / len(elsewhere)
        deviation = (draws * share * (1 - share)) ** 0.5
        assert max(abs(counts[i] - draws * share) for i in elsewhere) < 4.5 * deviation


def test_fingerprints_tell_data_apart():
    one = numbers([3, 2], [5])
    assert one.fingerprint() == numbers([3, 2], [5]).fingerprint()
    variants = [numbers([3], [2, 5]), numbers([2, 3], [5]), numbers([3, 2], [6])]
    changed = numbers([3, 2], [5])
    changed.ids.ids[4] += 1
    assert len({p.fingerprint() for p in (one, changed, *variants)}) == 5


@pytest.mark.parametrize(
    ("many", "holdout", "held"),
    [
        (20, 0.1, [9, 19]),
        (19, 0.1, [9]),
        (5, 0.1, [4]),
        (2, 0.1, [1]),
        (1, 0.1, []),
        (0, 0.1, []),
        (6, 0.5, [1, 3, 5]),
        (6, 0.9, [1, 3, 5]),  # half is the most
        (9, 0.0, []),
    ],
)
def test_split_documents(many, holdout, held):
    train, valid = split_documents([str(n) for n in range(many)], holdout)
    assert valid == [str(n) for n in held]
    assert train == [str(n) for n in range(many) if n not in held]
