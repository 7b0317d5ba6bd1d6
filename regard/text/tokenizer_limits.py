"""Decide by the parts in a `tokenizer.json` whether it takes linear time and little memory for any text.

The usual ones do, and run in this process. A tokenizer with other parts, such as an unknown regular
expression, which may backtrack forever, is tested, and runs in a child process with limits.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import UserError, first_line
from regard.files.untrusted import unique_keys

MAX_GROWTH = 2**16  # growth of a text: parts that exceed it are refused
USUAL_GROWTH = 64  # parts that exceed this growth run in a child process
MAX_STEPS = 32  # normalizers, pre-tokenizers, processors or decoders
MAX_AFFIX = 256  # characters of a text to replace, or of a prefix or suffix of tokens
MAX_WORD = 200  # characters of a word that is split into word pieces, in cubic time
MAX_PIECE = 128  # characters of a unigram model's piece: the number of steps at each character
MAX_TRIE = 2**23  # characters of all its pieces: each may take some hundred bytes
MAX_ADDED = 2**20  # characters of all added tokens
MAX_TOKEN = 2**16  # characters of a token: longer ones are refused, since a model may write them often
MAX_SPECIAL = 1024  # tokens around a text


CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
# Regular expressions that take linear time for every text, and match one character or more.
GPT2_PATTERN = rf"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def _later_patterns() -> set[str]:
    """The patterns of later models, which join punctuation with the newlines after it."""
    spaces = r"\s*[\r\n]+|\s+(?!\S)|\s+"
    letters, signs = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    patterns = set()
    for digits in (r"\p{N}", r"\p{N}{1,3}"):
        # GPT-4, Llama 3, Qwen 2
        patterns.add(rf"(?i:{CONTRACTIONS})|{letters}\p{{L}}+|{digits}|{signs}[\r\n]*|{spaces}")
        for end in ("", f"(?i:{CONTRACTIONS})?"):  # Mistral, GPT-4o
            words = rf"{letters}{upper}*{lower}+{end}|{letters}{upper}+{lower}*{end}"
            patterns.add(rf"{words}|{digits}|{signs}[\r\n/]*|{spaces}")
    return patterns


LATER_PATTERNS = _later_patterns()
PATTERNS = {GPT2_PATTERN, *LATER_PATTERNS}
PATTERNS |= {r"\s+", r" {2,}", r"\n", r"[\n\r\t]", r"\s{2,}|[\n\r\t]"}  # sentencepiece, CLIP
NORMALIZERS = {  # the largest number of characters that each makes of one
    "BertNormalizer": 12,
    "ByteLevel": 4,
    "Lowercase": 3,
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Nmt": 1,
    "Strip": 1,
    "StripAccents": 1,
}
PRE_TOKENIZERS = {
    *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace"),
    *("Punctuation", "UnicodeScripts", "Whitespace", "WhitespaceSplit"),
}
PROCESSORS = {"BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"}
DECODERS = {"BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Strip", "WordPiece"}

Json = dict[str, Any]


FORMAT_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)  # errors of unexpected contents


class Unusual(Exception):
    """A part of a tokenizer that may take much time or memory."""


def read_content(text: str, file: Path) -> Json:
    """Parse a tokenizer.json; `file` is named in errors."""
    try:
        content = json.loads(text, object_pairs_hook=unique_keys)
        if isinstance(content, dict):
            return content
        reason = "it should hold one JSON object"
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
    raise UserError(f"{file}: not a tokenizer.json of the tokenizers library ({reason})")


def find_unusual(content: Json, file: Path, patterns: set[str]) -> str | None:
    """Return the part of a tokenizer.json that may take much time or memory for some text, if there is one.

    Besides PATTERNS, `patterns` are regular expressions that take linear time. Raise UserError if the decoder
    is not one of these, since it runs in this process, or if texts become much longer.
    """
    try:
        growth = decoder_growth(content)
    except (*FORMAT_ERRORS, Unusual):
        raise UserError(f"{file}: decoder: unknown, or one that may take much time; use another") from None
    if growth > USUAL_GROWTH:
        raise UserError(f"{file}: decoder: it makes texts {growth:.0f} times as long; use another")
    if (longest := longest_token(content)) > MAX_TOKEN:
        raise UserError(f"{file}: a token has {longest} characters; up to {MAX_TOKEN} are allowed")
    try:
        growth = normalizer_growth(content)
        if growth > MAX_GROWTH:
            raise UserError(f"{file}: normalizer: it makes texts {growth:.0f} times as long; use another")
        check_patterns(content, PATTERNS | patterns)
        check_sizes(content)
        if growth > USUAL_GROWTH:
            raise Unusual(f"normalizers that make texts {growth:.0f} times as long")
    except Unusual as part:
        return str(part)
    except UserError:
        raise
    except FORMAT_ERRORS:
        return "an unknown format"  # the library will refuse it
    return None


def steps(content: Json, name: str, key: str) -> Iterator[Json]:
    """The steps of a part: a sequence's, or the only one."""
    pending = [content[name]] if content.get(name) else []
    for _ in range(MAX_STEPS):
        if not pending:
            return
        step, *pending = pending
        if step["type"] == "Sequence":
            pending = [*step[key], *pending]
        else:
            yield step
    if pending:
        raise Unusual(f"{name}: more than {MAX_STEPS} steps")


def normalizer_growth(content: Json) -> float:
    """The factor by which the normalizers may lengthen a text."""
    growth = 1.0
    for step in steps(content, "normalizer", "normalizers"):
        if step["type"] == "Prepend":
            growth *= 1 + len(step["prepend"])  # before each part of the text
        elif step["type"] == "Precompiled":  # a trie after its size, then texts that end with a zero
            data = base64.b64decode(step["precompiled_charsmap"])
            growth *= max(1, *map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))
        else:
            growth *= replace_growth(step) if step["type"] == "Replace" else NORMALIZERS[step["type"]]
    return growth


def decoder_growth(content: Json) -> float:
    """The factor by which the decoders may lengthen the text of tokens."""
    growth = 1.0
    for step in steps(content, "decoder", "decoders"):
        if step["type"] == "Replace" and "String" in step["pattern"]:
            growth *= replace_growth(step)
        elif step["type"] not in DECODERS:
            raise Unusual(step["type"])
    return growth


def longest_token(content: Json) -> int:
    """The number of characters of the longest token, if the format is as expected."""
    model = content.get("model")
    vocab, added = model.get("vocab") if isinstance(model, dict) else None, content.get("added_tokens")
    tokens: list[Any] = list(vocab) if isinstance(vocab, dict) else []
    if isinstance(vocab, list):
        tokens += [pair[0] for pair in vocab if isinstance(pair, list) and pair]
    if isinstance(added, list):
        tokens += [token.get("content") for token in added if isinstance(token, dict)]
    return max((len(token) for token in tokens if isinstance(token, str)), default=0)


def replace_growth(step: Json) -> float:
    ((kind, pattern),) = step["pattern"].items()
    length = len(pattern) if kind == "String" else 1
    if not 0 < length <= MAX_AFFIX:
        raise Unusual("the length of a pattern")
    return max(1.0, len(step["content"]) / length)


def check_patterns(content: Json, patterns: set[str]) -> None:
    """Raise Unusual for a step that is unknown, or that has an unknown regular expression."""
    for step in steps(content, "pre_tokenizer", "pretokenizers"):
        if step["type"] not in PRE_TOKENIZERS | {"Split"}:
            raise Unusual(f"pre_tokenizer: {step['type']}")
    both = [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")]
    for step in (step for names in both for step in steps(content, *names)):
        ((kind, pattern),) = step["pattern"].items() if "pattern" in step else [("String", " ")]
        if kind == "Regex" and pattern not in patterns:
            raise Unusual(f"the regular expression {pattern[:40]!r}")
        if kind == "String" and not 0 < len(pattern) <= MAX_AFFIX:
            raise Unusual("the length of a pattern")


def check_sizes(content: Json) -> None:
    """Raise Unusual for a model with very long tokens or words, or a processor that adds many tokens."""
    model = content["model"]
    affixes = [model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    if max(map(len, affixes)) > MAX_AFFIX:
        raise Unusual("model: the length of its prefix or suffix")
    if (model.get("max_input_chars_per_word") or 0) > MAX_WORD:
        raise Unusual("model: max_input_chars_per_word")
    if isinstance(model["vocab"], list):  # a unigram model
        lengths = [len(piece) for piece, _ in model["vocab"]]
        if max(lengths) > MAX_PIECE or sum(lengths) > MAX_TRIE:
            raise Unusual("model: the length of its pieces")
    if sum(len(token["content"]) for token in content.get("added_tokens") or []) > MAX_ADDED:
        raise Unusual("added_tokens: their length")
    for step in steps(content, "post_processor", "processors"):
        if step["type"] not in PROCESSORS:
            raise Unusual(f"post_processor: {step['type']}")
        tokens = sum(len(token["ids"]) for token in (step.get("special_tokens") or {}).values())
        places = step.get("single") or []
        if max(tokens, len(places)) > MAX_SPECIAL or sum("Sequence" in place for place in places) > 1:
            raise Unusual("post_processor: its length")
