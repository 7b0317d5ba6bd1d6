"""Tokenizers: exact round trips, reproducible training, streaming, and long texts in pieces."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from regard.errors import UserError
from regard.text import tokenizer as text_module
from regard.text.tokenizer import BYTES, Tokenizer, split_pieces
from regard.text.tokenizer_kinds import KINDS, train_tokenizer, word_tokenizer

SPECIALS = ["<|endoftext|>", "<pad>", "[MASK]"]
EXACT = ["char", "byte", "bpe", "unigram"]
HARD = [
    "plain words, and more of them.",
    "emoji 😀👩‍👩‍👧 and flags 🇩🇪",
    "windows\r\nlines\r\n\r\nand\rold ones\n",
    "\ttabs\t\tand    runs  of spaces   ",
    "control \x01\x02\x1b[0m\x7f\x85 characters",
    "combining e\u0301 and z\u0351\u0352, \u00e9 apart from it, \u200d joiners",
    "literal <|endoftext|> and <pad> <|endoftext|>[MASK] <unk>",
    "replacement \ufffd sign \ufffd",
    " Привет, 世界! don't we'll I'm 12345 ",
    "",
]
CORPUS = [*HARD, "the cat sat on the mat; the dog sat on the log. " * 20]


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(kind, CORPUS, 400, SPECIALS) for kind in KINDS}


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("text", HARD)
def test_round_trip_is_exact(trained, kind, text):
    ids = trained[kind].encode(text)
    assert trained[kind].decode(ids) == text
    assert not set(ids) & {trained[kind].id(special) for special in SPECIALS}  # spelt out, they are text


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram"])
def test_byte_kinds_know_every_character(kind):
    tokenizer = train_tokenizer(kind, ["abc"], 300, [])
    unseen = "".join(map(chr, [*range(1, 0x800), *range(0x4E00, 0x4F00), 0x1F600]))
    assert tokenizer.decode(tokenizer.encode(unseen)) == unseen


def test_a_special_that_is_a_word_is_not_found_in_text():
    for kind in ("char", "byte", "unigram"):  # byte-pair merges could spell it
        tokenizer = train_tokenizer(kind, ["pad the pad pad"] * 9, 300, ["pad"])
        assert 0 not in tokenizer.encode("pad the pad")


def test_char_has_the_characters_in_order_and_one_for_the_others():
    tokenizer = train_tokenizer("char", ["hello", "world"], 3, ["<pad>"])
    names = ["<pad>", "<unk>", *sorted(set("helloworld"))]
    assert [tokenizer.id(name) for name in names] == list(range(len(names)))
    assert tokenizer.vocab == len(names)
    assert tokenizer.encode("héllo")[1] == tokenizer.id("<unk>")
    assert len(tokenizer.encode("héééllo")) == 7  # each unknown character counts


def test_byte_ids_are_the_bytes_after_the_specials():
    tokenizer = train_tokenizer("byte", [], 1, ["<a>", "<b>"])
    assert tokenizer.encode("aé\n") == [2 + byte for byte in "aé\n".encode()]
    assert tokenizer.vocab == 258
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet())


def test_wordpiece_is_lower_cased_words():
    tokenizer = train_tokenizer("wordpiece", ["The cat sat. A café!"] * 3, 200, ["[PAD]"])
    read = tokenizer.tokens(tokenizer.encode("the CAT sat, cafe."))
    assert read == ["the", "cat", "sat", "[UNK]", "cafe", "."]
    assert tokenizer.decode(tokenizer.encode("THE Cat sat.")) == "the cat sat."
    assert tokenizer.id("[PAD]") == 0
    first, *rest = tokenizer.tokens(tokenizer.encode("catsat"))
    assert first == "cat"
    assert rest
    assert all(token.startswith("##") for token in rest)


def test_words_are_parted_by_space_the_most_frequent_first():
    text = "b a\tA b,\nb  a c a"
    tokenizer = train_tokenizer("word", [text], 7, ["<pad>"])
    assert [tokenizer.id(word) for word in ("<pad>", "<unk>", "a", "b", "A", "b,", "c")] == list(range(7))
    assert tokenizer.encode(" a\u2003x b ") == [2, 1, 3]
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())
    assert train_tokenizer("word", [text], 4, ["<pad>"]).encode("a b c") == [2, 3, 1]
    lower = word_tokenizer([text, "B Ä ä"], 100, [], least=2, lower=True)
    assert [lower.id(word) for word in ("<unk>", "a", "b", "ä")] == [0, 1, 2, 3]
    assert lower.vocab == 4
    assert lower.encode("Ä C A") == [3, 0, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('The bear. "Bear," he (said): bears!', 'The bear . " Bear , " he ( said ) : bears !'),
        ("it's don't O'Neil's 'tis the dogs' café’s", "it 's don 't O ' Neil 's ' tis the dogs ' café ’s"),
        ("U.S. e.g. Mr. end.Then 3.14 1,000, 5%", "U.S. e.g. Mr . end . Then 3.14 1,000 , 5 %"),
        ("mother-in-law yes—no a/b e\u0301te\u0301", "mother-in-law yes — no a / b e\u0301te\u0301"),
        ("1 @-@ 2 @,@ 000 <unk> 's isn 't -- ... \" u.s.", None),  # parted already
    ],
)
def test_words_are_parted_from_signs(text, words):
    tokenizer = word_tokenizer([text], 100, [], signs=True)
    assert tokenizer.decode(tokenizer.encode(text)) == (words or text.replace("<unk> ", ""))
    assert tokenizer.encode(words or text) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_specials_have_the_lowest_ids_and_are_not_shown(trained, kind):
    tokenizer = trained[kind]
    assert [tokenizer.id(special) for special in SPECIALS] == [0, 1, 2]
    assert tokenizer.end == 0
    assert tokenizer.decode([0, *tokenizer.encode("cat"), 1, 0]) == "cat"
    assert tokenizer.vocab == max(tokenizer.inner.get_vocab().values()) + 1
    assert tokenizer.tokens([0]) == ["<|endoftext|>"]
    assert tokenizer.id("no such token") is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["One sentence is here.", "a", "\n", "", "aaaaaaaaaaaa aaaa", "ab" * 500])
@pytest.mark.parametrize("vocab", [1, 300, 8192])
def test_little_text_is_enough(kind, text, vocab):
    tokenizer = train_tokenizer(kind, [text], vocab, SPECIALS)
    if kind not in ("wordpiece", "word"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("kind", "size"), [("bpe", 310), ("wordpiece", 200), ("unigram", 280)])
def test_vocabulary_is_of_the_size_that_was_asked_for(kind, size):
    words = " ".join(f"{a}{b}{c}ing" for a in "bcdfgl" for b in "aeiou" for c in "mnprst")
    assert train_tokenizer(kind, [words], size, SPECIALS).vocab == size


def test_training_is_the_same_every_time(tmp_path):
    # In another process too, since the library hashes with a new seed in each.
    (tmp_path / "corpus.json").write_text(json.dumps(CORPUS))
    script = (
        "import json, sys; from regard.text.tokenizer_kinds import *\n"
        "texts = json.load(open(sys.argv[1]))\n"
        f"print(json.dumps([train_tokenizer(kind, texts, 400, {SPECIALS}).digest for kind in KINDS]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "corpus.json")]
    elsewhere = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    here = [train_tokenizer(kind, iter(CORPUS), 400, SPECIALS).digest for kind in KINDS]
    assert here == elsewhere
    assert len(set(here)) == len(KINDS)
    assert here[2] != train_tokenizer("bpe", CORPUS, 401, SPECIALS).digest


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same(trained, kind, tmp_path):
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = Tokenizer.load(path)
        assert loaded.digest == tokenizer.digest
        assert loaded.encode(HARD[6]) == tokenizer.encode(HARD[6])
        assert loaded.vocab == tokenizer.vocab


def test_digest_does_not_depend_on_the_layout(trained, tmp_path):
    content = json.loads(trained["bpe"].inner.to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(dict(reversed(content.items())), indent=7))
    assert Tokenizer.load(tmp_path).digest == trained["bpe"].digest


def test_loading_what_is_not_a_tokenizer(tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "latin.json").write_bytes(b"\xe9")
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "bad.json", tmp_path / "latin.json"):
        with pytest.raises(UserError) as caught:
            Tokenizer.load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_that_truncates_and_pads_does_not(tmp_path):
    inner = train_tokenizer("byte", [], 1, []).inner
    inner.enable_truncation(5)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.load(tmp_path).encode("0123456")) == 7
    assert len(Tokenizer.load(tmp_path).encode("01")) == 2


def test_batches_are_like_single_texts(trained):
    for tokenizer in trained.values():
        batch = tokenizer.encode_batch(HARD)
        assert [row.tolist() for row in batch] == [tokenizer.encode(text) for text in HARD]
        assert all(np.issubdtype(row.dtype, np.integer) for row in batch)
        assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_in_pieces_are_like_whole(trained, kind, monkeypatch):
    tokenizer = trained[kind]
    text = "".join(HARD[:-2]) + "\n\n \n  word\n\nword \n(so.)\n\n" * 40 + "".join(CORPUS)
    expected = tokenizer.encode(text)
    monkeypatch.setattr(text_module, "PIECE", 37)
    monkeypatch.setattr(text_module, "AT_ONCE", 100)
    cut = list(split_pieces(text))
    assert len(cut) > 10
    assert max(map(len, cut)) <= 2 * 37
    assert "".join(cut) == text
    if kind in ("char", "byte"):
        assert tokenizer.encode(text) == expected
    lined = "\n".join(word for word in text.split() if len(word) < 37)  # there is always a place to cut at
    monkeypatch.setattr(text_module, "PIECE", 2**19)
    expected = tokenizer.encode(lined)
    monkeypatch.setattr(text_module, "PIECE", 37)
    assert len(list(split_pieces(lined))) > 10
    assert tokenizer.encode(lined) == expected
    assert [ids.tolist() for ids in tokenizer.encode_batch(["a", lined, "b"])][1] == expected


def test_pieces_are_cut_before_newlines_and_otherwise_anywhere(monkeypatch):
    monkeypatch.setattr(text_module, "PIECE", 4)
    assert list(split_pieces("aaaaaaaa")) == ["aaaaaaaa"]
    assert list(split_pieces("a" * 9)) == ["a" * 8, "a"]
    assert list(split_pieces("aaaaa\naaaa")) == ["aaaaa", "\naaaa"]
    assert list(split_pieces("aa\n\n\n\naaa\naaa")) == ["aa\n\n\n\naa", "a\naaa"]  # not after a space
    assert list(split_pieces("aaaa.\na\naaaa")) == [
        "aaaa.\na",
        "\naaaa",
    ]  # rather after a letter than a point
    assert list(split_pieces("")) == [""]


def streamed(tokenizer, ids):
    decoder = tokenizer.decoder()
    pieces = [decoder.push(id) for id in ids]
    return pieces, decoder.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_is_like_decoding_at_once(trained, kind):
    tokenizer = trained[kind]
    for text in CORPUS:
        ids = tokenizer.encode(text)
        pieces, rest = streamed(tokenizer, ids)
        assert "".join(pieces) + rest == tokenizer.decode(ids)
    random = np.random.default_rng(0)
    for _ in range(20):  # any ids at all: broken characters, special tokens in between
        ids = random.integers(0, tokenizer.vocab, 60).tolist()
        pieces, rest = streamed(tokenizer, ids)
        assert "".join(pieces) + rest == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_streaming_by_a_table(trained, kind, monkeypatch):
    """A server's streams decode thousands of tokens a second."""
    tokenizer = trained[kind]
    ids = tokenizer.encode(CORPUS[0])
    monkeypatch.setattr(Tokenizer, "decode", lambda *args: pytest.fail("decoded one by one"))
    assert "".join(streamed(tokenizer, ids)[0]) == CORPUS[0]


def test_streaming_waits_for_whole_characters():
    tokenizer = train_tokenizer("byte", [], 1, [])
    assert streamed(tokenizer, tokenizer.encode("é😀a")) == (["", "é", "", "", "", "😀", "a"], "")
    assert streamed(tokenizer, tokenizer.encode("aé")[:-1]) == (["a", ""], "\ufffd")


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_on_from_what_stands_there(trained, kind):
    """The joined pieces equal the text of all ids, without that of the prompt."""
    tokenizer = trained[kind]
    for text in CORPUS:
        ids = tokenizer.encode(text)[:60]
        for cut in range(0, len(ids) + 1, 7):
            begun = tokenizer.decode(ids[:cut])
            if begun.endswith("\ufffd"):
                continue  # in the midst of a character
            decoder = tokenizer.decoder(ids[:cut])
            added = "".join(decoder.push(id) for id in ids[cut:]) + decoder.finish()
            assert begun + added == tokenizer.decode(ids)


def test_streaming_on_puts_a_space_between_words_but_not_into_them():
    words = train_tokenizer("wordpiece", ["the cat sat on the cathedral"] * 9, 200, [])
    for begun, following in (("the cat", " sat"), ("the", " cat"), ("", "the")):
        decoder = words.decoder(words.encode(begun))
        assert decoder.push(words.encode(following)[0]) == following
    inside = words.id("##t")
    assert words.decoder(words.encode("the ca")).push(inside) == "t"
    assert words.decoder().finish() == words.decoder(words.encode("the cat")).finish() == ""
    decoder = words.decoder(begun := words.encode("the cat"))
    decoder.push(words.encode("sat")[0])
    assert begun == words.encode("the cat"), "it is left alone"


def test_streaming_with_sentence_piece_spaces():
    vocab = {"<unk>": 0, "▁the": 1, "▁": 2, "cat": 3, "▁sat": 4, "<0xC3>": 5, "<0xA9>": 6}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(parts)
    tokenizer = Tokenizer(inner)
    for ids in ([1, 2, 3, 4], [2, 1, 4, 5, 6, 4], [3, 5, 3, 2, 2, 1], [2, 2, 3, 5]):
        pieces, rest = streamed(tokenizer, ids)
        assert "".join(pieces) + rest == tokenizer.decode(ids)
    assert streamed(tokenizer, [1, 4]) == (["the", " sat"], "")


def test_tokens_are_readable(trained):
    assert trained["byte"].tokens(trained["byte"].encode("a é\n")) == ["a", " ", "<0xC3>", "<0xA9>", "\n"]
    assert "".join(trained["bpe"].tokens(trained["bpe"].encode(" the cat sat"))) == " the cat sat"
    assert trained["char"].tokens(trained["char"].encode("世 \ufffd")) == ["世", " ", "\ufffd"]
    assert trained["char"].tokens([10**6]) == ["<1000000>"]


def test_end_is_the_first_known_one():
    assert train_tokenizer("char", ["a"], 0, []).end is None
    assert train_tokenizer("char", ["a"], 0, ["[SEP]", "</s>"]).end == 1


def test_bpe_is_gpt2s(tmp_path):
    # No space is added in front, and words keep theirs.
    tokenizer = train_tokenizer("bpe", ["low low low lower lowest low"] * 5, 270, [])
    assert tokenizer.tokens(tokenizer.encode("low low")) == ["low", " low"]


def test_a_megabyte_in_one_string():
    """This would take minutes if the time were quadratic."""
    text = "".join(chr(97 + i * i % 26) + (" \n" if i % 7 == 0 else "") for i in range(800_000))
    tokenizer = train_tokenizer("char", [text], 0, [])
    ids = tokenizer.encode_batch([text])[0]
    assert len(ids) == len(text)


def test_characters_are_looked_up_as_the_library_encodes_them() -> None:
    texts = ["Zoë says <unk>, <s> and 🦊 to 你.\r\n", "", "never seen: Ω", "a" * 3]
    tokenizer = train_tokenizer("char", texts[:1], 0, ["<s>"])
    assert tokenizer.ids_by_character is not None
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert ids.tolist() == tokenizer.inner.encode(text, add_special_tokens=False).ids
        assert ids.dtype == np.int32


def test_only_characters_that_stand_alone_are_looked_up() -> None:
    for kind in ("byte", "bpe", "wordpiece", "unigram", "word"):
        assert train_tokenizer(kind, ["some text, more text"] * 9, 300, []).ids_by_character is None
    inner = train_tokenizer("char", ["abc"], 0, []).inner
    inner.add_tokens(["abc"])  # which is found in texts
    assert Tokenizer(inner).ids_by_character is None
