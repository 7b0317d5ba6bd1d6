"""Pairs as token ids, filters by length, and the configuration of both."""

import numpy as np
import pytest

from helpers.errors import user_error
from regard.data.pair_dataset import PairConfig, encode_pairs, filter_pairs
from regard.runs.recipe import fill
from regard.text.tokenizer_kinds import train_tokenizer

BYTE = train_tokenizer("byte", [], 0, ["<|endoftext|>"])
SEPARATOR = BYTE.end


def pairs_of(*lengths):
    """Pairs of different texts with these numbers of tokens."""
    texts = [([(chr(97 + i) * a)], chr(65 + i) * b) for i, (a, b) in enumerate(lengths)]
    return encode_pairs(texts, BYTE, BYTE)


def test_encode_pairs(monkeypatch):
    other = train_tokenizer("char", ["défg"], 0, [])
    texts = [(["ab", "", "c"], "dé"), ([""], "g"), (["é"], ""), (["cab", "b"], "fd")]
    for at_once in (1, 100, 10**6):
        monkeypatch.setattr("regard.data.pair_dataset.AT_ONCE", at_once)
        pairs = encode_pairs(texts, BYTE, other, SEPARATOR)
        assert len(pairs) == 4
        a, b, c = BYTE.encode("abc")
        assert pairs.source(0).tolist() == [a, b, SEPARATOR, SEPARATOR, c]
        assert pairs.source(3).tolist() == [c, a, b, SEPARATOR, b]
        assert [pairs.target(i).tolist() for i in range(4)] == [other.encode(t) for _, t in texts]
        assert pairs.source_lengths.tolist() == [5, 0, 2, 5]
        assert pairs.target_lengths.tolist() == [2, 1, 0, 2]
        assert pairs.source_ids.ids.dtype == np.uint16
        assert (pairs.sources, pairs.targets) == (["ab\n\nc", "", "é", "cab\nb"], ["dé", "g", "", "fd"])
        assert pairs.bytes == 3 + 1 + 0 + 2
    assert encode_pairs(texts, BYTE, other).source(0).tolist() == [a, b, c]
    assert len(encode_pairs([], BYTE, BYTE)) == 0
    assert pairs.describe() == "4 pairs"
    assert encode_pairs(texts[:1], BYTE, BYTE).describe() == "1 pair"


def test_fingerprint():
    def of(*texts):
        return encode_pairs([([source], target) for source, target in texts], BYTE, BYTE).fingerprint()

    same = of(("ab", "cd"), ("e", "f"))
    assert same == of(("ab", "cd"), ("e", "f"))
    variants = [
        [("a", "cd"), ("be", "f")],
        [("ab", "c"), ("e", "df")],
        [("ab", "cd"), ("e", "g")],
        [("ab", "cd")],
    ]
    assert len({same, *(of(*other) for other in variants)}) == 5


def test_nothing_to_filter():
    pairs = pairs_of((2, 3), (5, 7))
    assert filter_pairs(pairs, PairConfig(), 5, 7, False) == (pairs, [])


def test_filters_and_their_report():
    lengths = [
        (5, 5),
        (0, 3),
        (3, 0),
        (1, 3),
        (13, 11),
        (11, 14),
        (2, 11),
        (12, 13),
        (0, 0),
        (20, 20),
        (3, 11),
    ]
    pairs = pairs_of(*lengths)
    config = PairConfig(shortest=2, longest=13, ratio=5)
    filtered, report = filter_pairs(pairs, config, 12, 100, False)
    rows = [0, 7, 10]
    assert filtered.targets == [pairs.targets[row] for row in rows]
    assert filtered.sources == [pairs.sources[row] for row in rows]
    for new, row in enumerate(rows):
        assert filtered.source(new).tolist() == pairs.source(row).tolist()
        assert filtered.target(new).tolist() == pairs.target(row).tolist()
    assert filtered.source_lengths.tolist() == [5, 12, 3]
    assert report == [
        "dropped 3 of 11 pairs: an empty side",
        "dropped 1 of 11 pairs: shorter than 2 tokens (data.shortest)",
        "dropped 3 of 11 pairs: longer than 12 (source) or 13 (target) tokens "
        "(data.longest or model.context)",
        "dropped 1 of 11 pairs: one side over 5 times as long as the other (data.ratio)",
    ]
    filtered, report = filter_pairs(pairs, PairConfig(ratio=0), 13, 13, False)
    assert len(filtered) == 6
    assert report[1:] == ["dropped 2 of 11 pairs: longer than 13 tokens (data.longest or model.context)"]


def test_a_long_source_is_cut_from_its_oldest():
    texts = [(["abc", "defg"], "x"), (["hi"], "yy"), (["jklmnop"], "z" * 8), ([""], "w"), (["qrstu"], "v")]
    pairs = encode_pairs(texts, BYTE, BYTE, SEPARATOR)
    filtered, report = filter_pairs(pairs, PairConfig(), 5, 7, True)
    assert [BYTE.tokens(filtered.source(row)) for row in range(3)] == [
        [*["<|endoftext|>"], *"defg"],
        [*"hi"],
        [*"qrstu"],
    ]
    assert filtered.targets == ["x", "yy", "v"]
    assert report == [
        "dropped 1 of 5 pairs: an empty side",
        "dropped 1 of 5 pairs: longer than 7 tokens (data.longest or model.context)",
        "cut 1 of 5 pairs: the last 5 tokens of a longer source are read (data.longest or model.context)",
    ]
    assert filter_pairs(pairs, PairConfig(longest=3), 5, 7, True)[0].source_lengths.tolist() == [3, 2, 3]


def test_nothing_left():
    pairs = pairs_of((0, 2), (7, 7), (11, 11))
    said = user_error(lambda: filter_pairs(pairs, PairConfig(), 5, 5, False), "no pair is left")
    assert "dropped 1 of 3 pairs: an empty side" in said
    assert "dropped 2 of 3 pairs: longer than 5 tokens" in said


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"holdout": 1.0}, "holdout=1.0 must be a share"),
        ({"vocab": 0}, "vocab=0 must be more"),
        ({"shortest": 0}, "shortest=0 must be more than 0"),
        ({"shortest": 7, "longest": 5}, "longest=5 must be at least shortest=7"),
        ({"ratio": 0.5}, "ratio=0.5 must be at least 1, or 0"),
    ],
)
def test_bad_configuration(bad, words):
    with pytest.raises(ValueError, match=words):
        PairConfig(**bad)
    user_error(lambda: fill("data", bad, PairConfig), f"data: {words}")
    user_error(lambda: fill("data", {"ratio": float("nan")}, PairConfig), "data.ratio=nan is not a number")
    filled = fill("data", {"target_tokenizer": "char", "longest": 5}, PairConfig)
    assert filled == PairConfig(target_tokenizer="char", longest=5)
