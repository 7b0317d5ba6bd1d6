"""Llama and its relatives from a GGUF file, by llama.cpp's names of settings and weights."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor, nn

from regard.convert.gguf.reader import Gguf
from regard.convert.gguf.tokenizer import read_tokenizer
from regard.convert.gguf.weights import read_weight
from regard.convert.huggingface import llama
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import build_model
from regard.core.positions import scale_frequencies
from regard.errors import UserError, shorten
from regard.files.regular import regular_stat
from regard.files.tensors import Tensors

NAMES = {  # Regard's names: llama.cpp's
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
KEYS = {  # their keys, after the architecture's name: Hugging Face's
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
INTERLEAVED = ("llama", "mistral")  # rotary positions turn neighbouring dimensions
FREQUENCIES = "rope_freqs.weight"  # divisors of the rotary frequencies
LLAMA3 = (1.0, 4.0, 8192.0)  # the scaling of Llama 3.1 and later, except for the factor


@dataclass(frozen=True)
class GgufModel:
    """The content of a GGUF file."""

    model: nn.Module
    tokenizer: tokenizers.Tokenizer
    generation: dict[str, Any]  # `first`: the tokens before every text; `ends`: those that end one
    chat_template: str | None
    special_tokens: dict[str, str]  # by role


def read_gguf(path: Path, small: bool = False) -> GgufModel:
    """Read the model of a file; its quantised weights stay quantised if `small`, or become float32."""
    regular_stat(path)
    with path.open("rb") as file:
        return read_model(Gguf(path, file), small)


def read_model(file: Gguf, small: bool) -> GgufModel:
    path = file.path
    kind = file.values.get("general.architecture")
    if kind not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UserError(
            f"{path}: general.architecture={shorten(kind)} is not supported; supported: {supported}"
        )
    tokens = read_tokenizer(file)
    c = read_config(file, kind)
    c.weights = path
    settings = llama.settings(c, {}) | rope_scaling(file, c)
    c.finish()
    if settings["depth"] > len(file.entries):
        raise UserError(f"{path}: {kind}.block_count={settings['depth']} is more than it has tensors")
    family = replace(
        llama.FAMILY,
        names=NAMES,
        from_theirs=deinterleave if kind in INTERLEAVED else llama.FAMILY.from_theirs,
    )
    read = partial(read_weight, file) if small else file.tensor
    state: Tensors = {name: read(name) for name in file.entries if name != FREQUENCIES}
    model = build_model(family, settings, state, path, path)
    template = file.values.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise UserError(f"{path}: tokenizer.chat_template should be a string")
    generation = {"first": tokens.first, "ends": tokens.ends}
    return GgufModel(model, tokens.tokenizer, generation, template, tokens.special_tokens)


def read_config(file: Gguf, kind: str) -> Config:
    """The settings by Hugging Face's keys; a key without one keeps its name, and is refused."""
    start = f"{kind}."
    values = {key.removeprefix(start): v for key, v in file.values.items() if key.startswith(start)}
    rotary, scaling = values.pop("rope.dimension_count", None), values.pop("rope.scaling.type", "none")
    if scaling != "none":
        raise UserError(
            f"{file.path}: {start}rope.scaling.type={shorten(scaling)} is not supported; supported: none"
        )
    heads, dim = values.get("attention.head_count"), values.get("embedding_length")
    if not isinstance(heads, int) or not isinstance(dim, int) or heads < 1:
        raise UserError(
            f"{file.path}: {start}attention.head_count and {start}embedding_length should be whole numbers"
        )
    own_width = rotary is not None and kind in INTERLEAVED
    head_dim = values.setdefault("attention.key_length", rotary if own_width else dim // heads)
    for key, value in (
        ("rope.dimension_count", rotary),
        ("attention.value_length", values.pop("attention.value_length", None)),
    ):
        if value not in (None, head_dim):
            raise UserError(
                f"{file.path}: {start}{key}={shorten(value)} is not supported; supported: the width of a head"
            )
    if "token_embd.weight" in file.entries:
        values["vocab_size"] = file.entries["token_embd.weight"].shape[0]
    if kind == "qwen2":
        values.pop("attention.key_length")
    by_key = {KEYS.get(key, shorten(start + key)): value for key, value in values.items()}
    tied = "output.weight" not in file.entries
    return Config(by_key | {"model_type": kind, "tie_word_embeddings": tied}, file.path)


def rope_scaling(file: Gguf, c: Config) -> dict[str, Any]:
    """The setting rope_scaling, if the file's divisors of rotary frequencies are Llama 3.1's."""
    if FREQUENCIES not in file.entries:
        return {}
    divisors = file.tensor(FREQUENCIES).flatten()
    d = 2 * len(divisors)
    frequencies = c.number("rope_theta", default=10_000.0) ** (-torch.arange(0, d, 2) / d)
    scaling = (float(divisors.max()), *LLAMA3)
    if not torch.allclose(frequencies / scale_frequencies(frequencies, *scaling), divisors, rtol=1e-4):
        raise UserError(f"{file.path}: {FREQUENCIES} is not as in Llama 3.1 to 3.3; no others are supported")
    return {"rope_scaling": scaling}


def deinterleave(name: str, t: Tensor, config: Any) -> Tensor:
    """Queries and keys whose rotary pairs are neighbours, with the pairs half a head apart instead."""
    if not name.rpartition(".")[0].endswith(("attn.f.q", "attn.f.k")):
        return t
    heads = config.heads if ".q." in name else config.kv_heads or config.heads
    return t.reshape(heads, -1, 2, *t.shape[1:]).transpose(1, 2).reshape(t.shape)
