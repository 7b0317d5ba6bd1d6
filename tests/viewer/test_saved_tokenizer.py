"""Tokenizers of a saved model: the page reads and writes the same tokens."""

import json

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers

from helpers.looking import TEXT, reader
from helpers.saved import HARD, open_saved, prompts
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import KINDS, train_tokenizer
from regard.viewer.saved_tokenizer import pack_tokenizer


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


SPECIALS = ["<pad>", "</s>", "[UNK]"]
TOKENIZERS = {kind: lambda k=kind: train_tokenizer(k, [TEXT, *HARD[:4]], 320, SPECIALS) for kind in KINDS}
TOKENIZERS |= {"pieces": pieces_and_bytes, "fused": lambda: no_bytes(pieces_and_bytes())}
TOKENIZERS |= {
    change.__name__: lambda c=change: bytes_as_loaded(c) for change in (digits_alone, words_unmerged)
}


def no_bytes(tokenizer):
    content = json.loads(tokenizer.inner.to_str())
    content["model"]["byte_fallback"] = False
    return Tokenizer(Inner.from_str(json.dumps(content)))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizers(kind, opened):
    tokenizer = TOKENIZERS[kind]()
    texts = [*HARD, *prompts(20)]
    ids = [tokenizer.encode(text) for text in texts]
    cut = [row[1::2] for row in ids]  # bytes that are no character
    script = """([saved, texts, ids]) => {
      const tokenizer = new regard.model.reader.constructor(saved);
      return [texts.map((text) => tokenizer.encode(text)), ids.map((row) => tokenizer.decode(row)),
        ids.map((row) => tokenizer.words(row))];
    }"""
    saved = json.loads(json.dumps(pack_tokenizer(tokenizer)))
    encoded, decoded, words = opened.evaluate(script, [saved, texts, [*ids, *cut]])
    assert encoded == ids
    assert decoded == [tokenizer.decode(row) for row in (*ids, *cut)]
    assert words == [tokenizer.tokens(row) for row in (*ids, *cut)]


@pytest.mark.parametrize(
    ("part", "value", "word"),
    [
        ("normalizer", {"type": "NFC"}, "normalizer is NFC"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer is Whitespace"),
        ("decoder", {"type": "BPEDecoder", "suffix": "</w>"}, "decoder is BPEDecoder"),
    ],
)
def test_tokenizers_that_do_not_run_in_a_page(part, value, word):
    with pytest.raises(UserError, match=word):
        pack_tokenizer(bytes_as_loaded(lambda content: content.update({part: value})))
