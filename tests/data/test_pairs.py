"""Pairs: reading with every mistake there is, conversations, filters, and batches of similar length."""

import gzip
import json
import lzma
import sys
import types

import numpy as np
import pytest
import zstandard
from corpora import standard_input
from mistakes import mistake

from regard.data import reading
from regard.data.pairs import (
    Buckets,
    PairConfig,
    conversations,
    encode,
    filtered,
    histories,
    in_length_order,
    split_pairs,
    text_pairs,
)
from regard.recipe import fill
from regard.text import train_tokenizer

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
BYTE = train_tokenizer("byte", [], 0, ["<|endoftext|>"])
SEPARATOR = BYTE.end


def read(*paths):
    return list(text_pairs([str(path) for path in paths]))


def write(path, content, suffix=""):
    path = path.with_name(path.name + suffix)
    path.write_bytes(COMPRESS[suffix](content if isinstance(content, bytes) else content.encode()))
    return path


# Reading


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tsv(tmp_path, suffix, newline):
    lines = ["\ufeffa b\tä 😀", "", "  ", " c \t d\u2028e ", "\t", "f\t", "g\th"]
    path = write(tmp_path / "a.tsv", newline.join(lines), suffix)
    assert read(path) == [("a b", "ä 😀"), ("c", "d\u2028e"), ("", ""), ("f", ""), ("g", "h")]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl(tmp_path, suffix):
    rows = [{"source": " a ", "target": "b\tc", "id": 3}, {"turns": ["d", " e ", "f"]}, {"turns": ["g", ""]}]
    path = write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)), suffix)
    assert read(path) == [("a", "b\tc"), ("d", "e"), ("e", "f"), ("g", "")]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_parallel_files(tmp_path, suffix):
    en = write(tmp_path / "a.en", "one\r\n\r\n\tthree\r\n", suffix)
    de = write(tmp_path / "a.de", "eins \n \ndrei\tdrei", suffix)
    assert read(en, de) == [("one", "eins"), ("", ""), ("three", "drei\tdrei")]


def test_several_files_and_folders(tmp_path):
    for name in ("b/y.tsv", "b/x.jsonl", "b/z.txt", "b/.h.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, '{"source": "1", "target": "2"}' if "json" in name else "3\t4")
    own = write(tmp_path / "a.TSV", "5\t6", ".gz")
    assert read(own, tmp_path / "b") == [("5", "6"), ("1", "2"), ("3", "4")]
    (tmp_path / "c").mkdir()
    write(tmp_path / "c" / "z.txt", "3\t4")
    mistake(lambda: read(tmp_path / "c"), tmp_path / "c", ".jsonl .tsv")


def test_standard_input_is_a_tsv(monkeypatch):
    standard_input(monkeypatch, b"a\tb\n")
    assert read("-") == [("a", "b")]
    standard_input(monkeypatch, b"a\tb\nc\n")
    mistake(lambda: read("-"), "standard input:2: 1 column;", "tab")
    standard_input(monkeypatch, b"\n")
    mistake(lambda: read("-"), "standard input: empty")


@pytest.mark.parametrize(
    ("line", "columns"), [("a", "1 column;"), ("a\tb\tc", "3 columns"), ("\t\t", "3 co")]
)
def test_columns(tmp_path, line, columns):
    path = write(tmp_path / "a.tsv", f"a\tb\n\n{line}\nc\td\n")
    mistake(lambda: read(path), f"{path}:3: {columns}", "tab")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", "JSON"),
        ("[1]", '"source"'),
        ('{"source": "a"}', '"target"'),
        ('{"source": "a", "target": 1}', '"target"'),
        ('{"turns": ["a"]}', "two turns"),
        ('{"turns": "ab"}', "two turns"),
        ('{"turns": ["a", "b", 3]}', "two turns"),
        ('{"source": "a", "target": "\\ud800"}', "surrogate"),
    ],
)
def test_bad_jsonl(tmp_path, line, words):
    path = write(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n\n' + line)
    mistake(lambda: read(path), f"{path}:3:", words)


def test_uneven_parallel_files(tmp_path):
    short, long = write(tmp_path / "a.en", "x\n" * 3), write(tmp_path / "a.de", "y\n" * 1007)
    mistake(lambda: read(short, long), f"{short} has 3 lines, but {long} has 1,007;", "remove")
    mistake(lambda: read(long, short), f"{long} has 1,007 lines, but {short} has 3;")
    blank = write(tmp_path / "b.en", "\n\n")
    for pair in ((blank, long), (long, blank), (blank, blank)):
        mistake(lambda pair=pair: read(*pair), f"{blank}: empty")


def test_what_makes_no_pairs(tmp_path):
    a, b, c, tsv = (write(tmp_path / name, "x") for name in ("a.en", "a.de", "a.fr", "a.tsv"))
    mistake(lambda: read(a), f"{a}: 1 file of lines", "pairs take two", ".tsv (source TAB target)")
    mistake(lambda: read(a, b, c), f"{a}: 3 files of lines", "pairs take two")
    mistake(lambda: read(tsv, a, b), a, tsv, "separately")
    mistake(lambda: read(a, "-"), a, "standard input", "separately")


def test_wrong_bytes(tmp_path, monkeypatch):
    good = write(tmp_path / "good.en", "x\ny\n")
    for name, given in (("a.tsv", lambda path: [path]), ("a.de", lambda path: [good, path])):
        tab = b"\t" if name == "a.tsv" else b" "
        path = tmp_path / name
        failing = lambda *words, p=path, g=given: mistake(lambda: read(*g(p)), *words)  # noqa: E731
        failing(path, ": no such file")
        for content, words in [(b"a%sb\nc%s\xe9\n", ("2:", "0xe9")), (b"a%sb\nc%s\0\n", ("2:", "zero byte"))]:
            write(path, content.replace(b"%s", tab))
            failing(f"{path}:{words[0]}", words[1])
        write(path, b"")
        failing(f"{path}: empty")
        monkeypatch.setattr(reading, "LONGEST_LINE", 100)
        write(path, b"a" + tab + b"b\n" + b"x" * 101)
        failing(f"{path}:2:", "100 bytes")
        monkeypatch.undo()
        damaged = path.with_name(name + ".gz")
        damaged.write_bytes(gzip.compress(b"a" + tab + b"b\n" + b"c" + tab + b"d\n")[:-5])
        mistake(lambda g=given, d=damaged: read(*g(d)), damaged, "damaged compressed file")
    mistake(lambda: read(tmp_path / "missing"), tmp_path / "missing", ": no such file")
    mistake(lambda: read(tmp_path / "missing.tsv.gz"), "missing.tsv.gz: no such file")


def test_hub(monkeypatch):
    class Rows(list):
        column_names = ("source", "target")

    rows = Rows([{"source": " a", "target": "b "}, {"source": None, "target": "c"}])
    library = types.SimpleNamespace(load_dataset=lambda name, config, split: rows)
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert read("hf:o/n", "hf:o/n:test") == [("a", "b"), ("", "c")] * 2
    rows.append({"source": {"en": "a"}, "target": "b"})
    mistake(lambda: read("hf:o/n"), "hf:o/n", "not both texts", ".jsonl")
    rows.column_names = ("source", "de")
    mistake(lambda: read("hf:o/n"), "hf:o/n", 'no column "target", but source, de')


# Conversations

TALK = [("a", "b"), ("b", "c"), ("c", "d"), ("x", "y"), ("a", "b"), ("a", "b"), ("b", "e")]


def test_conversations_and_histories():
    assert conversations(TALK) == [0, 0, 0, 1, 2, 3, 3]
    assert conversations([]) == []
    assert histories(TALK, 1) == [([source], target) for source, target in TALK]
    two = [["a"], ["a", "b"], ["b", "c"], ["x"], ["a"], ["a"], ["a", "b"]]
    assert histories(TALK, 2) == [(turns, target) for turns, (_, target) in zip(two, TALK, strict=True)]
    assert histories(TALK, 5)[2] == (["a", "b", "c"], "d")


@pytest.mark.parametrize(
    ("count", "holdout", "held"),
    [
        (31, 0.1, [9, 19, 29]),
        (11, 0.25, [3, 7]),
        (7, 0.1, [6]),
        (7, 0.5, [4, 5, 6]),
        (2, 0.99, [1]),
        (53, 0.01, [52]),
        (1, 0.5, []),
        (0, 0.5, []),
        (31, 0, []),
    ],
)
def test_whole_conversations_are_held_out(count, holdout, held):
    pairs = [(f"{n}.{turn}", f"{n}.{turn + 1}") for n in range(count) for turn in range(n % 3 + 1)]
    train, valid = split_pairs(pairs, None, holdout)
    assert valid == [pair for pair in pairs if int(pair[0].split(".")[0]) in held]
    assert train == [pair for pair in pairs if pair not in valid]
    assert split_pairs(pairs, TALK, holdout) == (pairs, TALK)


# Token ids


def pairs_of(*lengths):
    """Pairs with these numbers of tokens, all of them different texts."""
    texts = [([(chr(97 + i) * a)], chr(65 + i) * b) for i, (a, b) in enumerate(lengths)]
    return encode(texts, BYTE, BYTE)


def test_encoded(monkeypatch):
    other = train_tokenizer("char", ["défg"], 0, [])
    texts = [(["ab", "", "c"], "dé"), ([""], "g"), (["é"], ""), (["cab", "b"], "fd")]
    for at_once in (1, 100, 10**6):
        monkeypatch.setattr("regard.data.pairs.AT_ONCE", at_once)
        pairs = encode(texts, BYTE, other, SEPARATOR)
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
    assert encode(texts, BYTE, other).source(0).tolist() == [a, b, c]
    assert len(encode([], BYTE, BYTE)) == 0
    assert pairs.describe() == "4 pairs"
    assert encode(texts[:1], BYTE, BYTE).describe() == "1 pair"


def test_fingerprint():
    def of(*texts):
        return encode([([source], target) for source, target in texts], BYTE, BYTE).fingerprint()

    same = of(("ab", "cd"), ("e", "f"))
    assert same == of(("ab", "cd"), ("e", "f"))
    others = [
        [("a", "cd"), ("be", "f")],
        [("ab", "c"), ("e", "df")],
        [("ab", "cd"), ("e", "g")],
        [("ab", "cd")],
    ]
    assert len({same, *(of(*other) for other in others)}) == 5


def test_nothing_to_filter():
    pairs = pairs_of((2, 3), (5, 7))
    assert filtered(pairs, PairConfig(), 5, 7, False) == (pairs, [])


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
    kept, report = filtered(pairs, config, 12, 100, False)
    rows = [0, 7, 10]
    assert kept.targets == [pairs.targets[row] for row in rows]
    assert kept.sources == [pairs.sources[row] for row in rows]
    for new, row in enumerate(rows):
        assert kept.source(new).tolist() == pairs.source(row).tolist()
        assert kept.target(new).tolist() == pairs.target(row).tolist()
    assert kept.source_lengths.tolist() == [5, 12, 3]
    assert report == [
        "dropped 3 of 11 pairs: an empty side",
        "dropped 1 of 11 pairs: shorter than 2 tokens (data.shortest)",
        "dropped 3 of 11 pairs: longer than 12 (source) or 13 (target) tokens "
        "(data.longest or model.context)",
        "dropped 1 of 11 pairs: one side over 5 times as long as the other (data.ratio)",
    ]
    kept, report = filtered(pairs, PairConfig(ratio=0), 13, 13, False)
    assert len(kept) == 6
    assert report[1:] == ["dropped 2 of 11 pairs: longer than 13 tokens (data.longest or model.context)"]


def test_a_long_source_is_cut_from_its_oldest():
    texts = [(["abc", "defg"], "x"), (["hi"], "yy"), (["jklmnop"], "z" * 8), ([""], "w"), (["qrstu"], "v")]
    pairs = encode(texts, BYTE, BYTE, SEPARATOR)
    kept, report = filtered(pairs, PairConfig(), 5, 7, True)
    assert [BYTE.tokens(kept.source(row)) for row in range(3)] == [
        [*["<|endoftext|>"], *"defg"],
        [*"hi"],
        [*"qrstu"],
    ]
    assert kept.targets == ["x", "yy", "v"]
    assert report == [
        "dropped 1 of 5 pairs: an empty side",
        "dropped 1 of 5 pairs: longer than 7 tokens (data.longest or model.context)",
        "cut 1 of 5 pairs: the last 5 tokens of a longer source are read (data.longest or model.context)",
    ]
    assert filtered(pairs, PairConfig(longest=3), 5, 7, True)[0].source_lengths.tolist() == [3, 2, 3]


def test_nothing_left():
    pairs = pairs_of((0, 2), (7, 7), (11, 11))
    said = mistake(lambda: filtered(pairs, PairConfig(), 5, 5, False), "no pair is left")
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
        ({"ratio": float("nan")}, "ratio=nan must be"),
    ],
)
def test_bad_configuration(bad, words):
    with pytest.raises(ValueError, match=words):
        PairConfig(**bad)
    mistake(lambda: fill("data", bad, PairConfig), f"data: {words}")
    filled = fill("data", {"target_tokenizer": "char", "longest": 5}, PairConfig)
    assert filled == PairConfig(target_tokenizer="char", longest=5)


# Batches


def some_lengths(n, seed=0):
    random = np.random.default_rng(seed)
    source = random.poisson(14, n) + 1
    return source, np.maximum(1, source + random.integers(-3, 4, n))


def epoch(buckets, number):
    return [buckets.rows(number * buckets.count + index) for index in range(buckets.count)]


def padded(batch, *lengths):
    return sum(len(batch) * (int(side[batch].max()) + 1) for side in lengths)


@pytest.mark.parametrize(
    "size", [{"rows": 1}, {"rows": 13}, {"rows": 5000}, {"tokens": 211}, {"tokens": 10**6}]
)
@pytest.mark.parametrize("n", [1, 2, 997])
@pytest.mark.parametrize("seed", [0, 3, -5])
def test_every_pair_once_an_epoch(n, size, seed):
    lengths = some_lengths(n)
    buckets = Buckets(*lengths, seed, **size)
    for number in (0, 1, 101):
        batches = epoch(buckets, number)
        assert sorted(np.concatenate(batches).tolist()) == list(range(n))
        if "rows" in size:
            assert all(len(batch) <= size["rows"] for batch in batches)
            assert len(batches) == -(-n // size["rows"])
        else:
            for batch in batches:
                assert len(batch) * (max(int(side[batch].max()) for side in lengths) + 1) <= size["tokens"]


def test_a_step_is_a_function_of_seed_and_step():
    lengths = some_lengths(997)
    buckets = Buckets(*lengths, 7, tokens=307)
    steps = [0, 5 * buckets.count + 3, 1, buckets.count, 10**9, 0]
    found = [buckets.rows(step).tolist() for step in steps]
    assert found[0] == found[-1]
    assert found == [Buckets(*lengths, 7, tokens=307).rows(step).tolist() for step in steps]
    other = Buckets(*lengths, 8, tokens=307)
    assert other.count == buckets.count
    assert sum(other.rows(step).tolist() == buckets.rows(step).tolist() for step in range(20)) == 0


@pytest.mark.parametrize("size", [{"rows": 13}, {"tokens": 211}])
def test_company_and_order_change(size):
    lengths = some_lengths(4999)
    buckets = Buckets(*lengths, 1, **size)
    together = [
        {frozenset((a, b)) for batch in epoch(buckets, e) for a in batch for b in batch if a < b}
        for e in (0, 1)
    ]
    assert len(together[0] & together[1]) < 0.3 * len(together[0])
    widths = [
        [max(int(side[batch].max()) for side in lengths) for batch in epoch(buckets, e)] for e in (0, 1)
    ]
    assert widths[0] != widths[1]
    for found in widths:  # short and long batches follow each other at random
        assert abs(np.corrcoef(np.arange(len(found)), found)[0, 1]) < 0.2


@pytest.mark.parametrize("size", [{"rows": 17}, {"tokens": 401}])
def test_waste(size):
    lengths = some_lengths(4999)
    buckets = Buckets(*lengths, 2, **size)
    buckets.rows(buckets.count)
    total = sum(padded(batch, *lengths) for batch in epoch(buckets, 0))
    used = sum(int((side + 1).sum()) for side in lengths)
    assert buckets.waste == pytest.approx(1 - used / total, abs=1e-12)
    assert 0 < buckets.waste < 0.1
    random = np.array_split(np.random.default_rng(0).permutation(4999), buckets.count)
    assert 1 - used / sum(padded(batch, *lengths) for batch in random) > 2 * buckets.waste
    assert Buckets(np.array([5, 5]), np.array([7, 7]), 0, rows=2).waste == 0


def test_full_batches():
    """The token limit is used: with equal lengths, to the last row that fits."""
    same = np.full(1009, 7)
    batches = epoch(Buckets(same, same - 2, 0, tokens=83), 0)
    assert sorted({len(batch) for batch in batches}) == [1009 % 10, 10]
    buckets = Buckets(*some_lengths(4999), 0, tokens=1009)
    assert buckets.count <= 1.1 * len(list(in_length_order(*some_lengths(4999), 1009)))


def test_what_is_longer_than_the_tokens_is_alone():
    source, target = np.array([3, 50, 3, 2, 61]), np.array([3, 2, 3, 70, 5])
    for batches in (epoch(Buckets(source, target, 0, tokens=8), 0), list(in_length_order(source, target, 8))):
        assert sorted(map(sorted, (batch.tolist() for batch in batches))) == [[0, 2], [1], [3], [4]]


def test_no_pairs():
    none = np.array([], dtype=np.int64)
    mistake(lambda: Buckets(none, none, 0, rows=3), "at least one pair")
    assert list(in_length_order(none, none, 5)) == []


@pytest.mark.parametrize("tokens", [53, 503, 10**6])
def test_in_length_order(tokens):
    lengths = some_lengths(997)
    batches = list(in_length_order(*lengths, tokens))
    assert sorted(np.concatenate(batches).tolist()) == list(range(997))
    longest = [max(int(side[batch].max()) for side in lengths) for batch in batches]
    assert longest == sorted(longest)
    assert all(len(b) * (width + 1) <= tokens for b, width in zip(batches, longest, strict=True))
    again = list(in_length_order(*lengths, tokens))
    assert all((a == b).all() for a, b in zip(again, batches, strict=True))
