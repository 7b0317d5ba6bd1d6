"""The tokenizer in a GGUF file, by the keys of tokenizer.ggml."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from regard.convert.gguf.reader import Gguf
from regard.errors import UserError, shorten

CONTROL, USER_DEFINED, BYTE = 3, 4, 6  # types of tokens
MAX_LENGTH = 1024  # characters of a token
SPACE = "▁"  # in sentencepiece's tokens
LLAMA_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {  # tokenizer.ggml.pre: how a text is split before its words are encoded
    **dict.fromkeys(("gpt-2", "gpt2", "olmo", "mpt", "phi-2", "jais", "granite"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "falcon3"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), "qwen2"),
}
ROLES = {"unknown": "unk", "padding": "pad"}  # llama.cpp's: Hugging Face's, where they differ


@dataclass(frozen=True)
class GgufTokenizer:
    tokenizer: tokenizers.Tokenizer
    first: list[int]  # tokens before every text
    ends: list[int]  # tokens that end a text
    special_tokens: dict[str, str]  # by role


def read_tokenizer(file: Gguf) -> GgufTokenizer:
    pieces = read_strings(file, "tokenizer.ggml.tokens")
    if len(max(pieces, key=len)) > MAX_LENGTH:
        raise UserError(f"{file.path}: tokenizer.ggml.tokens: one has more than {MAX_LENGTH} characters")
    kind = file.values.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UserError(
            f"{file.path}: tokenizer.ggml.model={shorten(kind)} is not supported; supported: gpt2, llama"
        )
    types = read_numbers(file, "tokenizer.ggml.token_type", len(pieces), 1)
    try:
        tokenizer = build_bpe(file, pieces) if kind == "gpt2" else build_sentencepiece(file, pieces, types)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as e:  # the library raises no specific errors, and may panic
        raise UserError(f"{file.path}: tokenizer.ggml: {shorten(e)}") from None
    of_type = {
        t: [p for p, type in zip(pieces, types, strict=True) if type == t] for t in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens([AddedToken(p, normalized=False, special=True) for p in of_type[CONTROL]])
    tokenizer.add_tokens([AddedToken(p, normalized=False, special=False) for p in of_type[USER_DEFINED]])
    ids = {
        role: id
        for role in ("bos", "eos", "eot", "eom", "unknown", "padding")
        if (id := read_token_id(file, role, len(pieces))) is not None
    }
    adds_first = file.values.get(
        "tokenizer.ggml.add_bos_token", kind == "llama" or pre_tokenizer(file) == "llama3"
    )
    return GgufTokenizer(
        tokenizer,
        first=[ids["bos"]] if "bos" in ids and adds_first else [],
        ends=list(dict.fromkeys(ids[role] for role in ("eos", "eot", "eom") if role in ids)),
        special_tokens={f"{ROLES.get(role, role)}_token": pieces[id] for role, id in ids.items()},
    )


def read_strings(file: Gguf, key: str) -> list[str]:
    values = file.values.get(key)
    if not isinstance(values, list) or not values:
        raise UserError(f"{file.path}: {key} should be a list of strings")
    return values


def read_numbers(file: Gguf, key: str, count: int, default: float) -> list[Any]:
    """Read a list with a number for each token."""
    values = file.values.get(key)
    if values is None:
        return [default] * count
    if not isinstance(values, np.ndarray) or len(values) != count or not np.isfinite(values).all():
        raise UserError(f"{file.path}: {key} should be a list of numbers, one for each of {count} tokens")
    return values.tolist()


def read_token_id(file: Gguf, role: str, vocab: int) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    id = file.values.get(key)
    if id is not None and (not isinstance(id, int) or not 0 <= id < vocab):
        raise UserError(
            f"{file.path}: {key}={shorten(id)} is not a token; give a number from 0 to {vocab - 1}"
        )
    return id


def pre_tokenizer(file: Gguf) -> str:
    name = file.values.get("tokenizer.ggml.pre")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        supported = ", ".join(PRE_TOKENIZERS)
        raise UserError(
            f"{file.path}: tokenizer.ggml.pre={shorten(name)} is not supported; supported: {supported}"
        )
    return PRE_TOKENIZERS[name]


def build_bpe(file: Gguf, pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-pair encoding of bytes, as in GPT-2."""
    pairs = [merge.split(" ") for merge in read_strings(file, "tokenizer.ggml.merges")]
    if any(len(pair) != 2 for pair in pairs):
        raise UserError(
            f"{file.path}: tokenizer.ggml.merges: a merge should be two pieces with a space between"
        )
    pre = pre_tokenizer(file)
    vocab = {piece: id for id, piece in enumerate(pieces)}
    merges = [(pair[0], pair[1]) for pair in pairs]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama3"))
    tokenizer.decoder = decoders.ByteLevel()
    steps, normalizer = byte_level_steps(pre)
    tokenizer.pre_tokenizer = steps
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def byte_level_steps(pre: str) -> tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None]:
    """The normalisation and splitting of texts, by a name of PRE_TOKENIZERS."""
    if pre in ("llama3", "qwen2"):
        pattern = LLAMA_PATTERN if pre == "llama3" else LLAMA_PATTERN.replace("{1,3}", "")
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        steps = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "digits" else []
        steps = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(steps), normalizers.NFC() if pre == "qwen2" else None


def build_sentencepiece(file: Gguf, pieces: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Sentencepiece's byte-pair encoding: pairs with the best score are merged first, and characters without
    a token become bytes."""
    scores = read_numbers(file, "tokenizer.ggml.scores", len(pieces), 0.0)
    vocab = {piece: id for id, piece in enumerate(pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score, kind in zip(pieces, scores, types, strict=True):
        for i in range(1, len(piece)) if kind not in (CONTROL, BYTE) else ():
            left, right = piece[:i], piece[i:]
            if left in vocab and right in vocab:
                merges.append((-score, vocab[left], vocab[right], left, right))
    merges.sort()
    id = file.values.get("tokenizer.ggml.unknown_token_id", 0)
    unknown = pieces[id] if isinstance(id, int) and 0 <= id < len(pieces) else None
    bpe = models.BPE(vocab, [m[3:] for m in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(bpe)
    prepends = file.values.get("tokenizer.ggml.add_space_prefix", True)
    spaces = [normalizers.Prepend(SPACE)] if prepends else []
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prepends else steps)
    return tokenizer
