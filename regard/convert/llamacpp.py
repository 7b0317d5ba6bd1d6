"""Llama and its like out of a GGUF file: settings, weights, tokenizer, chat template by llama.cpp's names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn

from ..checkpoint import Tensors
from ..errors import Mistake
from ..positions import stretched
from . import llama
from .family import Config, fitted, short
from .gguf import Gguf

NAMES = {  # ours: theirs
    "embed": "token_embd",
    "blocks.*.attn.norm": "blk.*.attn_norm",
    "blocks.*.attn.f.q": "blk.*.attn_q",
    "blocks.*.attn.f.k": "blk.*.attn_k",
    "blocks.*.attn.f.v": "blk.*.attn_v",
    "blocks.*.attn.f.q_norm": "blk.*.attn_q_norm",
    "blocks.*.attn.f.k_norm": "blk.*.attn_k_norm",
    "blocks.*.attn.f.out": "blk.*.attn_output",
    "blocks.*.ffn.norm": "blk.*.ffn_norm",
    "blocks.*.ffn.f.gate": "blk.*.ffn_gate",
    "blocks.*.ffn.f.up": "blk.*.ffn_up",
    "blocks.*.ffn.f.down": "blk.*.ffn_down",
    "norm": "output_norm",
    "head": "output",
}
KEYS = {  # of theirs, after the kind's name: Hugging Face's
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
TURNED = ("llama", "mistral")  # whose queries and keys have other neighbours there
FREQUENCIES = "rope_freqs.weight"  # by what rotary speeds are divided
LLAMA3 = (1.0, 4.0, 8192.0)  # how Llama 3.1 and later reckon them
CONTROL, USERS, BYTE = 3, 4, 6  # types of tokens
LONGEST = 1024  # characters of a token
SPACE = "▁"  # of sentencepiece
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {  # tokenizer.ggml.pre: how it parts words
    **dict.fromkeys(("gpt-2", "gpt2", "olmo", "mpt", "phi-2", "jais", "granite"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "falcon3"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), "qwen2"),
}


@dataclass(frozen=True)
class File:
    """What a GGUF file holds."""

    model: nn.Module
    tokenizer: tokenizers.Tokenizer
    generation: dict[str, Any]  # `first`: the tokens before every text; `ends`: those that end one
    template: str | None
    specials: dict[str, str]


def read_gguf(path: Path) -> File:
    file = Gguf(path)
    kind = file.told.get("general.architecture")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise Mistake(f"{path}: general.architecture={short(kind)} is not known; known are {known}")
    tokenizer, generation, specials = tokens(file)
    c = config(file, kind)
    c.weights = path
    settings = llama.settings(c, {}) | frequencies(file, c)
    c.finish()
    if settings["depth"] > len(file.entries):
        raise Mistake(f"{path}: {kind}.block_count={settings['depth']} is more than it has tensors")
    names = [name for name in file.entries if name != FREQUENCIES]
    family = replace(llama.FAMILY, names=NAMES, inward=unturned if kind in TURNED else llama.FAMILY.inward)
    state: Tensors = {name: file.tensor(name) for name in names}
    model = fitted(family, settings, state, path, path)
    template = file.told.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise Mistake(f"{path}: tokenizer.chat_template should be a text")
    return File(model, tokenizer, generation, template, specials)


def config(file: Gguf, kind: str) -> Config:
    """The settings by Hugging Face's names; a key without one there is left as it is, and told of."""
    start = f"{kind}."
    own = {key.removeprefix(start): v for key, v in file.told.items() if key.startswith(start)}
    wide, scaling = own.pop("rope.dimension_count", None), own.pop("rope.scaling.type", "none")
    if scaling != "none":
        raise Mistake(f"{file.path}: {start}rope.scaling.type={short(scaling)} is not known; known is none")
    heads, dim = own.get("attention.head_count"), own.get("embedding_length")
    if not isinstance(heads, int) or not isinstance(dim, int) or heads < 1:
        raise Mistake(
            f"{file.path}: {start}attention.head_count and {start}embedding_length should be whole numbers"
        )
    own.setdefault("attention.key_length", wide if wide is not None and kind in TURNED else dim // heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        value = wide if key.startswith("rope") else own.pop(key, None)
        if value not in (None, own["attention.key_length"]):
            raise Mistake(f"{file.path}: {start}{key}={short(value)} is not known; known is the heads' width")
    if "token_embd.weight" in file.entries:
        own["vocab_size"] = file.entries["token_embd.weight"].shape[0]
    if kind == "qwen2":
        own.pop("attention.key_length")
    told = {KEYS.get(key, short(start + key)): value for key, value in own.items()}
    tied = "output.weight" not in file.entries
    return Config(told | {"model_type": kind, "tie_word_embeddings": tied}, file.path)


def frequencies(file: Gguf, c: Config) -> dict[str, Any]:
    """Rotary speeds are told as numbers; ours are reckoned, and must be the same."""
    if FREQUENCIES not in file.entries:
        return {}
    divided = file.tensor(FREQUENCIES).flatten()
    d = 2 * len(divided)
    speed = c.number("rope_theta", default=10_000.0) ** (-torch.arange(0, d, 2) / d)
    stretch = (float(divided.max()), *LLAMA3)
    if not torch.allclose(speed / stretched(speed, *stretch), divided, rtol=1e-4):
        raise Mistake(f"{file.path}: {FREQUENCIES} is not as in Llama 3.1 to 3.3; no others are known")
    return {"stretch": stretch}


def unturned(name: str, t: Tensor, config: Any) -> Tensor:
    """There, the two numbers that turn together stand side by side; here, half a head apart."""
    if not name.rpartition(".")[0].endswith(("attn.f.q", "attn.f.k")):
        return t
    heads = config.heads if ".q." in name else config.kv_heads or config.heads
    return t.reshape(heads, -1, 2, *t.shape[1:]).transpose(1, 2).reshape(t.shape)


# The tokenizer


def tokens(file: Gguf) -> tuple[tokenizers.Tokenizer, dict[str, Any], dict[str, str]]:
    """The tokenizer, the tokens that stand around texts, and the names of those with a part to play."""
    pieces = strings(file, "tokenizer.ggml.tokens")
    if len(max(pieces, key=len)) > LONGEST:
        raise Mistake(f"{file.path}: tokenizer.ggml.tokens: one has more than {LONGEST} characters")
    kind = file.told.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise Mistake(f"{file.path}: tokenizer.ggml.model={short(kind)} is not known; known are gpt2, llama")
    types = numbers(file, "tokenizer.ggml.token_type", len(pieces), 1)
    try:
        made = by_merges(file, pieces) if kind == "gpt2" else by_scores(file, pieces, types)
    except (Mistake, KeyboardInterrupt):
        raise
    except BaseException as e:  # the library raises nothing more special, and may panic
        raise Mistake(f"{file.path}: tokenizer.ggml: {short(e)}") from None
    made.add_special_tokens([special(p, True) for p, t in zip(pieces, types, strict=True) if t == CONTROL])
    made.add_tokens([special(p, False) for p, t in zip(pieces, types, strict=True) if t == USERS])

    def named(role: str) -> int | None:
        id = file.told.get(f"tokenizer.ggml.{role}_token_id")
        if id is not None and (not isinstance(id, int) or not 0 <= id < len(pieces)):
            raise Mistake(f"{file.path}: tokenizer.ggml.{role}_token_id={short(id)} is no token")
        return id

    ids = {role: named(role) for role in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    before = file.told.get("tokenizer.ggml.add_bos_token", kind == "llama" or words_of(file) == "llama3")
    first = [] if ids["bos"] is None or not before else [ids["bos"]]
    ends = list(dict.fromkeys(ids[role] for role in ("eos", "eot", "eom") if ids[role] is not None))
    roles = {"unknown": "unk", "padding": "pad"}
    specials = {f"{roles.get(role, role)}_token": pieces[id] for role, id in ids.items() if id is not None}
    return made, {"first": first, "ends": ends}, specials


def special(piece: str, special: bool) -> AddedToken:
    return AddedToken(piece, normalized=False, special=special)


def strings(file: Gguf, key: str) -> list[str]:
    found = file.told.get(key)
    if not isinstance(found, list) or not found:
        raise Mistake(f"{file.path}: {key} should be a list of texts")
    return found


def numbers(file: Gguf, key: str, many: int, usual: float) -> list[Any]:
    """One for each token."""
    found = file.told.get(key)
    if found is None:
        return [usual] * many
    if not isinstance(found, np.ndarray) or len(found) != many or not np.isfinite(found).all():
        raise Mistake(f"{file.path}: {key} should be a list of numbers, one for each of {many} tokens")
    return found.tolist()


def words_of(file: Gguf) -> str:
    pre = file.told.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in WORDS:
        known = ", ".join(WORDS)
        raise Mistake(f"{file.path}: tokenizer.ggml.pre={short(pre)} is not known; known are {known}")
    return WORDS[pre]


def by_merges(file: Gguf, pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-pair encoding over bytes, as of GPT-2."""
    told = [merge.split(" ") for merge in strings(file, "tokenizer.ggml.merges")]
    merges = [(merge[0], merge[-1]) for merge in told]
    if any(len(merge) != 2 for merge in told):
        raise Mistake(
            f"{file.path}: tokenizer.ggml.merges: a merge should be two pieces with a space between"
        )
    words = words_of(file)
    vocab = {piece: id for id, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=words == "llama3"))
    made.decoder = decoders.ByteLevel()
    if words in ("llama3", "qwen2"):
        pattern = LLAMA_WORDS if words == "llama3" else LLAMA_WORDS.replace("{1,3}", "")
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        parts = [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if words == "digits" else []
        parts = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if words == "qwen2":
        made.normalizer = normalizers.NFC()
    return made


def by_scores(file: Gguf, pieces: Sequence[str], types: Sequence[int]) -> tokenizers.Tokenizer:
    """Sentencepiece's byte-pair encoding: of two neighbours that make a piece, those of the best come first;
    what has no piece becomes its bytes."""
    scores = numbers(file, "tokenizer.ggml.scores", len(pieces), 0.0)
    vocab = {piece: id for id, piece in enumerate(pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score, kind in zip(pieces, scores, types, strict=True):
        for i in range(1, len(piece)) if kind not in (CONTROL, BYTE) else ():
            left, right = piece[:i], piece[i:]
            if left in vocab and right in vocab:
                merges.append((-score, vocab[left], vocab[right], left, right))
    merges.sort()
    unknown = file.told.get("tokenizer.ggml.unknown_token_id", 0)
    unknown = pieces[unknown] if isinstance(unknown, int) and 0 <= unknown < len(pieces) else None
    bpe = models.BPE(vocab, [m[3:] for m in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True)
    made = tokenizers.Tokenizer(bpe)
    before = file.told.get("tokenizer.ggml.add_space_prefix", True)
    spaces = [normalizers.Prepend(SPACE)] if before else []
    made.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if before else back)
    return made
