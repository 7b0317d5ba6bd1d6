"""Tokenizers of untrusted files: usual ones run here, others in a child process, hostile ones are refused."""

import json
from pathlib import Path

import pytest
import tokenizers

from helpers.errors import user_error
from regard.convert.gguf.tokenizer import LLAMA_PATTERN
from regard.text import tokenizer_sandbox
from regard.text.tokenizer import Decoder, Tokenizer
from regard.text.tokenizer_kinds import KINDS, WORDS, train_tokenizer
from regard.text.tokenizer_limits import PATTERNS

FILE = Path("some/tokenizer.json")
TEXTS = ["the cat sat on the mat", "", " Grüße 中文 😀 ", "a" * 99, "<s>cat</s>", "12\n\n3  4"]
TRAINED = train_tokenizer("bpe", ["the cat sat on the mat; " * 9], 300, ["<s>", "</s>"]).inner.to_str()
SAFE = "[a-z]+|[^a-z]"  # linear, but nobody knows
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
START = {"SpecialToken": {"id": "<s>", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def changed(**parts: object) -> str:
    return json.dumps(json.loads(TRAINED) | parts)


def replace(old: str, new: str, kind: str = "String") -> dict:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def several(name: str, steps: list) -> dict:
    return {"type": "Sequence", name: steps}


def split(pattern: str) -> dict:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return several("pretokenizers", [step, BYTES])


def processed(single: list, ids: int = 1) -> dict:
    special = {"<s>": {"id": "<s>", "ids": [0] * ids, "tokens": ["<s>"] * ids}}
    pair = [SEQUENCE, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def unigram(pieces: list[str]) -> dict:
    return {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [[piece, -1.0] for piece in pieces],
        "byte_fallback": False,
    }


@pytest.fixture(scope="module")
def unusual() -> Tokenizer:
    return Tokenizer.read(
        changed(pre_tokenizer=split(SAFE), post_processor=processed([START, SEQUENCE])), FILE
    )


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_are_usual(kind):
    text = train_tokenizer(kind, ["The cat sat, 1.5 times."], 400, ["[MASK]"]).inner.to_str()
    assert Tokenizer.read(text, FILE).sandbox is None


def test_patterns_of_models_are_usual():
    assert {WORDS, LLAMA_PATTERN} & PATTERNS == {LLAMA_PATTERN}
    for pattern in (LLAMA_PATTERN, LLAMA_PATTERN.replace("{1,3}", ""), WORDS, r" {2,}"):
        assert Tokenizer.read(changed(pre_tokenizer=split(pattern)), FILE).sandbox is None
    for pattern in PATTERNS:  # with no match, nothing changes; and none matches an empty text
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        tokenizer = Tokenizer.read(changed(normalizer=replace(pattern, "", "Regex")), FILE)
        assert tokenizer.sandbox is None
        assert tokenizer.inner.normalizer.normalize_str("") == ""


def test_legacy_files_without_a_type_are_usual():
    content = json.loads(TRAINED)
    del content["model"]["type"]
    assert Tokenizer.read(json.dumps(content), FILE).sandbox is None


def test_the_child_encodes_as_this_process_does(unusual):
    same = Tokenizer(unusual.inner)
    assert unusual.sandbox is not None
    assert unusual.encode_batch([]) == []
    for ids, expected in zip(unusual.encode_batch(TEXTS), same.encode_batch(TEXTS), strict=True):
        assert ids.tolist() == expected.tolist()
        ids += 1  # others may write into it
    assert unusual.encode_offsets(TEXTS) == same.encode_offsets(TEXTS)
    assert [unusual.encode_spelling(t) for t in TEXTS] == [same.encode_spelling(t) for t in TEXTS]
    assert unusual.default_specials() == same.default_specials() == [0]
    assert 0 in unusual.encode_spelling("<s>cat")
    assert 0 not in unusual.encode("<s>cat")
    assert unusual.decode(unusual.encode(TEXTS[0])) == TEXTS[0]


def test_long_texts_go_in_several_calls(unusual, monkeypatch):
    monkeypatch.setattr(tokenizer_sandbox, "AT_ONCE", 7)
    assert [len(ids) for ids in unusual.encode_batch(TEXTS)] == [
        len(ids) for ids in Tokenizer(unusual.inner).encode_batch(TEXTS)
    ]


HOSTILE = {
    "ten-times-nine": ({"normalizer": several("normalizers", [replace("a", "a" * 10)] * 9)}, "1000000000"),
    "twice-nine-times": ({"normalizer": several("normalizers", [replace("a", "aa")] * 9)}, "512 times"),
    "prepends": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, "normalizer"),
    "backtracks": ({"pre_tokenizer": split("a*a*c")}, "a*a*c"),
    "backtracks-to-replace": ({"normalizer": replace("a*a*c", "a", "Regex")}, "a*a*c"),
    "many-steps": ({"normalizer": several("normalizers", [{"type": "Lowercase"}] * 9999)}, "steps"),
    "repeats-the-text": ({"post_processor": processed([SEQUENCE] * 9999)}, "post_processor"),
    "decodes-by-regex": ({"decoder": replace("a*a*c", "a", "Regex")}, "decoder"),
    "decodes-to-much": ({"decoder": replace("a", "a" * 999)}, "decoder: it makes texts 999 times"),
    "an-unknown-decoder": ({"decoder": {"pattern": {"String": "a"}, "content": "a" * 999}}, "decoder"),
    "a-long-token": ({"model": unigram(["<unk>", "a" * 70000])}, "70000"),
    "a-regex-that-is-none": ({"pre_tokenizer": split("((")}, "tokenizers library"),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "word"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_tokenizers_are_refused(monkeypatch, parts, word):
    monkeypatch.setattr(tokenizer_sandbox, "MEMORY", 2**29)
    monkeypatch.setattr(tokenizer_sandbox, "TRIAL_SECONDS", 0.1)
    user_error(lambda: Tokenizer.read(changed(**parts), FILE), FILE, word)


def test_a_key_that_appears_twice_is_refused():
    text = TRAINED[:-1] + ', "decoder": null}'
    user_error(lambda: Tokenizer.read(text, FILE), FILE, "twice")


UNUSUAL = {
    "long-pieces": {"model": unigram(["<unk>", *("a" * n for n in range(1, 300))])},
    "long-words": {"model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                             "max_input_chars_per_word": 10**9, "vocab": {"a": 0, "##a": 1}}},
    "a-long-suffix": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [],
                                "end_of_word_suffix": "#" * 300}},
    "many-special-tokens": {"post_processor": processed([START, SEQUENCE], 2000)},
    "a-hundred-times": {"normalizer": replace("a", "a" * 100)},
}  # fmt: skip


@pytest.mark.parametrize("parts", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_sizes_go_to_the_child(monkeypatch, parts):
    monkeypatch.setattr(tokenizer_sandbox, "trial_texts", lambda content: [])
    tokenizer = Tokenizer.read(changed(added_tokens=[], **parts), FILE)
    assert tokenizer.sandbox is not None
    assert tokenizer.encode("aaaa") == Tokenizer(tokenizer.inner).encode("aaaa")


def test_a_text_that_takes_too_long(monkeypatch):
    """The trial does not find every pattern; each call has a limit."""
    tokenizer = Tokenizer.read(changed(pre_tokenizer=split(r"\x{436}*\x{436}*\x{446}")), FILE)
    monkeypatch.setattr(tokenizer_sandbox, "SECONDS", 0.1)
    user_error(lambda: tokenizer.encode("\u0436" * 4000 + "!\u0446"), FILE, "takes more than 0.1 s")
    assert tokenizer.decode(tokenizer.encode(TEXTS[2])) == TEXTS[2]


def test_decoded_texts_are_bounded(monkeypatch):
    tokenizer = train_tokenizer("word", ["a " + "b" * 100], 9, [])
    monkeypatch.setattr("regard.text.tokenizer.MAX_DECODED", 150)
    assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
    user_error(lambda: tokenizer.decode(tokenizer.encode("b" * 100) * 2), "200")


def test_tokens_without_text_do_not_pile_up():
    """Decoding all of them anew for each one takes quadratic time."""
    tokenizer = train_tokenizer("byte", [], 1, ["<s>"])
    decoder, ids = Decoder(tokenizer), [0] * 500 + [1 + 0x80] * 500 + [1 + ord("a")]
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == tokenizer.decode(ids)
    assert len(decoder.pending) + len(decoder.context) < 200


@pytest.mark.parametrize("value", [7, True, "a", [7], [[]], [None], {"a": []}, [["a"]]], ids=str)
@pytest.mark.parametrize("part", ["added_tokens", "model", "vocab", "normalizer", "decoder"])
def test_a_part_of_another_kind_is_refused_in_one_line(part, value):
    parts = {"model": json.loads(TRAINED)["model"] | {"vocab": value}} if part == "vocab" else {part: value}
    if (part, value) == ("normalizer", [[]]):  # an empty sequence, for the library
        assert Tokenizer.read(changed(**parts), FILE).encode("a")
    else:
        user_error(lambda: Tokenizer.read(changed(**parts), FILE), FILE)


def test_an_unknown_token_that_is_in_no_vocabulary():
    """Every character is looked up in a table, but not these."""
    content = json.loads(train_tokenizer("char", ["the cat"], 30, ["<s>"]).inner.to_str())
    content["model"]["unk_token"] = "<uink>"
    tokenizer = Tokenizer.read(json.dumps(content), Path("w"))
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    user_error(lambda: tokenizer.encode("x"), "<uink>")
