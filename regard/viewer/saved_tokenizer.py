"""A tokenizer as a saved page describes it: one of the kinds that its JavaScript knows."""

import json
from typing import Any

from regard.errors import UserError
from regard.text.tokenizer import WORDS, Tokenizer
from regard.viewer.saved_pattern import to_javascript

GPT2_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
PLAIN_BYTES = GPT2_BYTES | {"use_regex": False}
EACH_DIGIT = {"type": "Digits", "individual_digits": True}
SPACE = "▁"  # what SentencePiece writes for a space
PIECES = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ],
}
JOINED_PIECES = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT |= {"strip_accents": None, "lowercase": True}
ISOLATED = {"type": "Split", "behavior": "Isolated", "invert": False}
WORD_PATTERN = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Removed", "invert": True}
NORMALIZERS = {"none": None, "lower": {"type": "Lowercase"}, "bert": BERT, "spaces": PIECES}
NORMALIZERS["nfc"] = {"type": "NFC"}
LETTER_BY_LETTER = "none", "lower", "bert"
SPLITS = {
    "all": None,
    "space": {"type": "WhitespaceSplit"},
    "signs": WORD_PATTERN,
    "bert": {"type": "BertPreTokenizer"},
}
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
JOINS = {
    "spaces": None,
    "plain": {"type": "Fuse"},
    "pieces": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "bytes": {"type": "ByteLevel"},
    "fallback": JOINED_PIECES,
}
MODELS = {"BPE": "merges", "WordPiece": "pieces", "Unigram": "scores", "WordLevel": "words"}
ODD = "single_word", "lstrip", "rstrip", "normalized"  # of a token that is found in texts
UNUSED = "end_of_word_suffix", "continuing_subword_prefix", "dropout"  # of a model of merges
# Python's \w and \d in JavaScript, which knows only ASCII; onig's \b is between these, too.
WORD, NOT_WORD = r"\p{L}\p{M}\p{N}\p{Pc}", r"[^\p{L}\p{M}\p{N}\p{Pc}\p{White_Space}]"


def pack_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    content = json.loads(tokenizer.inner.to_str())
    model, vocabulary = content["model"], tokenizer.inner.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * tokenizer.vocab
    for token, id in vocabulary.items():
        tokens[id] = token
    unknown, added = model.get("unk_token"), content["added_tokens"]
    plain = [token for token in added if not token["special"]]
    odd = [token["content"] for token in plain if any(token[key] for key in ODD)]
    settings = [key for key in UNUSED if model["type"] == "BPE" and model.get(key)]
    if odd or settings:
        refuse("added token" if odd else "model", (odd or settings)[0])
    split, patterns = describe_split(content["pre_tokenizer"])
    words = tokenizer.tokens(range(tokenizer.vocab))
    return {
        "model": choose(MODELS, model["type"], "model"),
        "normalizer": find(NORMALIZERS, content["normalizer"], "normalizer"),
        "split": split,
        "patterns": patterns,
        "join": find(JOINS, content["decoder"], "decoder"),
        "tokens": tokens,
        "words": {id: word for id, word in enumerate(words) if word != tokens[id]},
        "merges": [" ".join(pair) for pair in model.get("merges", [])],
        "scores": [score for _, score in model["vocab"]] if model["type"] == "Unigram" else [],
        "whole": bool(model.get("ignore_merges")),
        "bytes": bool(model.get("byte_fallback")),
        "fuse": model["type"] == "BPE" and bool(model.get("fuse_unk")),
        "specials": [token["id"] for token in added if token["special"]],
        "added": [token["id"] for token in plain],
        "unknown": None if unknown is None else vocabulary[unknown],
    }


def check_places(saved: dict[str, Any]) -> None:
    """Raise UserError if a page can't say where in a text the tokens of a tokenizer are."""
    if saved["normalizer"] not in LETTER_BY_LETTER:
        refuse("normalizer", saved["normalizer"])
    if saved["added"]:
        refuse("added token", saved["tokens"][saved["added"][0]])


JAVASCRIPT_WORDS = "|".join(
    [
        "<unk>",
        rf"['’](?:s|t|re|ve|m|ll|d)(?![{WORD}])",
        rf"(?<![{WORD}])(?:[\p{{L}}\p{{M}}\p{{Pc}}\p{{Nl}}\p{{No}}]\.){{2,}}",
        r"\p{Nd}+(?:[.,]\p{Nd}+)+",
        rf"[{WORD}]+(?:-[{WORD}]+)*",
        rf"(?<!\P{{White_Space}}){NOT_WORD}+(?!\P{{White_Space}})",
        NOT_WORD,
    ]
)


def describe_split(part: dict[str, Any] | None) -> tuple[str, list[str]]:
    """The kind of a pre_tokenizer, and its patterns: that of words; or what is split off in turn."""
    if part is None or part["type"] not in ("Sequence", "ByteLevel"):
        return find(SPLITS, part, "pre_tokenizer"), [JAVASCRIPT_WORDS]
    patterns = []
    *steps, last = part["pretokenizers"] if part["type"] == "Sequence" else [part]
    for step in steps:
        pattern = r"\p{N}" if fits(EACH_DIGIT, step) else step.get("pattern", {}).get("Regex")
        if not fits(EACH_DIGIT, step) and not (pattern and fits(ISOLATED, step)):
            refuse("pre_tokenizer", step["type"])
        patterns.append(pattern)
    if fits(GPT2_BYTES, last):
        patterns.append(GPT2)
    elif not fits(PLAIN_BYTES, last):
        refuse("pre_tokenizer", last["type"])
    translated = [to_javascript(pattern) for pattern in patterns]
    for pattern, known in zip(patterns, translated, strict=True):
        if known is None:
            refuse("pre_tokenizer", f"Split by {pattern[:60]}")
    return "bytes", [known for known in translated if known is not None]


def find(known: dict[str, Any], part: dict[str, Any] | None, name: str) -> str:
    """The name of a known part of a tokenizer.json."""
    for key, one in known.items():
        if fits(one, part):
            return key
    return refuse(name, "none" if part is None else part["type"])


def fits(known: Any, part: Any) -> bool:
    """Whether a part of a tokenizer.json says all that a known one says."""
    if isinstance(known, dict) and isinstance(part, dict):
        return all(key in part and fits(value, part[key]) for key, value in known.items())
    if isinstance(known, list) and isinstance(part, list):
        return len(known) == len(part) and all(map(fits, known, part))
    return bool(known == part)


def choose(known: dict[str, str], kind: str, name: str) -> str:
    return known[kind] if kind in known else refuse(name, kind)


def refuse(name: str, kind: str) -> str:
    raise UserError(
        f"the tokenizer's {name} is {kind}, which a page can't run; save the page of an INPUT, or train with "
        "data.tokenizer=word, char, byte, bpe, unigram or wordpiece"
    )
