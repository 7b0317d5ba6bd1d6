"""Tokenizers of a saved model: the page reads and writes the same tokens."""

import functools
import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from helpers.looking import TEXT, reader
from helpers.saved import HARD, open_saved, prompts
from regard.errors import UserError
from regard.tasks.span import strip_offsets
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import KINDS, train_tokenizer
from regard.viewer.saved_tokenizer import LETTER_BY_LETTER, pack_tokenizer


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    yield from open_saved(browser, reader("write", "gpt"), tmp_path_factory)


def pieces_and_bytes(letters="abcdefghijklmnopqrstuvwxyz▁TQ"):
    """As Llama's: spaces are written as a character, and what is no token is written in bytes."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *letters,
        "▁t",
        "▁th",
        "he",
    ]
    merges = [("▁", "t"), ("▁t", "h"), ("h", "e")]
    model = models.BPE({token: id for id, token in enumerate(tokens)}, merges, unk_token="<unk>",
                       fuse_unk=True, byte_fallback=True)  # fmt: skip
    inner = Inner(model)
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    inner.decoder = decoders.Sequence(list(steps))
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner)


def bytes_as_loaded(change):
    """A tokenizer of merged bytes whose tokenizer.json was changed."""
    content = json.loads(train_tokenizer("bpe", [TEXT, *HARD[:4]], 320, ["</s>"]).inner.to_str())
    change(content)
    return Tokenizer(Inner.from_str(json.dumps(content)))


def digits_alone(content):
    """As SmolLM2's."""
    parts = [{"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}


def words_unmerged(content):
    """As Llama 3's, where a token that is a word needs no merges."""
    content["model"] |= {"ignore_merges": True, "merges": content["model"]["merges"][:9]}


LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def strange_texts(count=100):
    """Pieces of many scripts, digits, signs and spaces, as tokenizers split them in different ways."""
    pieces = [
        *("the", "Fox", "fOX", "ÜBER", "ǅ", "naïve", "e\u0301", "क्षि", "日本", "한국", "שלום", "ا\u0651"),
        *("🙂", "👩\u200d🚀", "'s", "'S", "'\u017f", "'LL", "'Ve", "’s", "'d", "it's", "1", "23", "4567"),
        *("١٢٣", "Ⅳ", "½", "x2", "3.14", " ", "  ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0"),
        *("\u2003", "\u0085", "\u200b", "\ufeff", "\x1c", ".", "...", "!?", "-", "_", "/", "(", ")]"),
        *("@#", "<b>", "</s>", "<tool>", "“", "—", "€", "\x07", "\ufffd"),
    ]
    rng = np.random.default_rng(11)
    return ["".join(rng.choice(pieces, rng.integers(2, 14))) for _ in range(count)]


@functools.cache
def merges_across():
    """The tokenizer.json of bytes that were merged across words, digits and spaces: ids show every split."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["</s>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    inner.train_from_iterator([text[at : at + 9] for text in strange_texts() for at in range(9)], trainer)
    return inner.to_str()


def split_by(*patterns, normalizer=None, added=()):
    """As Llama 3's, Qwen's and GPT-4o's: patterns, then bytes."""
    content = json.loads(merges_across())
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    steps.append(content["pre_tokenizer"])
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    content["normalizer"] = normalizer
    for n, token in enumerate(added):
        settings = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        content["added_tokens"].append(settings | {"id": 900 + n, "content": token})
    return Tokenizer(Inner.from_str(json.dumps(content)))


SPECIALS = ["<pad>", "</s>", "[UNK]"]
TOKENIZERS = {kind: lambda k=kind: train_tokenizer(k, [TEXT, *HARD[:4]], 320, SPECIALS) for kind in KINDS}
TOKENIZERS |= {"pieces": pieces_and_bytes, "fused": lambda: no_bytes(pieces_and_bytes())}
TOKENIZERS |= {
    change.__name__: lambda c=change: bytes_as_loaded(c) for change in (digits_alone, words_unmerged)
}


TOKENIZERS |= {
    "llama3": lambda: split_by(LLAMA),
    "qwen": lambda: split_by(
        LLAMA.replace("{1,3}", ""), normalizer={"type": "NFC"}, added=["<tool>", "<tool>s"]
    ),
    "gpt4o": lambda: split_by(GPT4O),
    "smol": lambda: split_by(r"\p{N}", r"[A-Z]+|\p{Lo}+"),
}


def no_bytes(tokenizer):
    content = json.loads(tokenizer.inner.to_str())
    content["model"]["byte_fallback"] = False
    return Tokenizer(Inner.from_str(json.dumps(content)))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizers(kind, opened):
    tokenizer = TOKENIZERS[kind]()
    texts = [*HARD, *prompts(20), *strange_texts()]
    ids = [tokenizer.encode(text) for text in texts]
    cut = [row[1::2] for row in ids]  # bytes that are no character
    script = """([saved, texts, ids]) => {
      const tokenizer = new regard.model.reader.constructor(saved);
      const places = saved.placed ? texts.map((text) => tokenizer.encodePlaces(text)) : [];
      return [places, texts.map((text) => tokenizer.encode(text)), ids.map((row) => tokenizer.decode(row)),
        ids.map((row) => tokenizer.words(row))];
    }"""
    saved = json.loads(json.dumps(pack_tokenizer(tokenizer)))
    saved["placed"] = saved["normalizer"] in LETTER_BY_LETTER and not saved["added"]
    placed, encoded, decoded, words = opened.evaluate(script, [saved, texts, [*ids, *cut]])
    assert len(placed) == saved["placed"] * len(texts)
    for text, one, (want, offsets) in zip(texts, placed, tokenizer.encode_offsets(texts), strict=False):
        assert one["ids"] == want
        have = [
            tuple(len(text.encode("utf-16-le")[: 2 * x].decode("utf-16-le")) for x in place)
            for place in one["places"]
        ]  # in characters
        assert have == [strip_offsets(text, *offset) for offset in offsets]
    assert encoded == ids
    assert decoded == [tokenizer.decode(row) for row in (*ids, *cut)]
    assert words == [tokenizer.tokens(row) for row in (*ids, *cut)]


@pytest.mark.parametrize(
    ("part", "value", "word"),
    [
        ("normalizer", {"type": "NFKC"}, "normalizer is NFKC"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer is Whitespace"),
        ("decoder", {"type": "BPEDecoder", "suffix": "</w>"}, "decoder is BPEDecoder"),
    ],
)
def test_tokenizers_that_do_not_run_in_a_page(part, value, word):
    with pytest.raises(UserError, match=word):
        pack_tokenizer(bytes_as_loaded(lambda content: content.update({part: value})))


@pytest.mark.parametrize(
    "pattern", [r"\p{L}++", r"\p{Han}", r"\w+", "(?<=a)b", "[a[bc]]", "(?i:é)", "a&&b", "."]
)
def test_patterns_that_may_mean_something_else_in_javascript(pattern):
    with pytest.raises(UserError, match="Split by"):
        pack_tokenizer(split_by(pattern))
