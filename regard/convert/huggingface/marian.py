"""Marian, the translators of OPUS-MT: Junczys-Dowmunt et al. 2018, Tiedemann & Thottingal 2020.

Its positions have all sines before all cosines, Regard's alternate. The order of hidden dimensions is
arbitrary, so the weights are permuted instead.
"""

from typing import Any

import torch
from torch import Tensor

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import ACTIVATIONS, Family, remove_prefix, require_settings
from regard.core.positions import sinusoids
from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.models import Transformer

SIDES = ("encoder", "decoder")
NAMES = {"embed": "shared", "output_bias": "final_logits_bias"}  # our names: theirs, without their `model.`
for side in SIDES:
    NAMES[f"{side}.*.attn.norm"] = f"{side}.layers.*.self_attn_layer_norm"
    NAMES[f"{side}.*.ffn.norm"] = f"{side}.layers.*.final_layer_norm"
    NAMES[f"{side}.*.ffn.f.up"] = f"{side}.layers.*.fc1"
    NAMES[f"{side}.*.ffn.f.down"] = f"{side}.layers.*.fc2"
    for ours, name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}.items():
        NAMES[f"{side}.*.attn.f.{ours}"] = f"{side}.layers.*.self_attn.{name}"
        NAMES[f"decoder.*.cross.f.{ours}"] = f"decoder.layers.*.encoder_attn.{name}"
NAMES["decoder.*.cross.norm"] = "decoder.layers.*.encoder_attn_layer_norm"
ACTS = ACTIVATIONS | {"swish": "silu", "silu": "silu"}
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


def settings(c: Config, state: Tensors, pre: bool = False) -> dict[str, Any]:
    c.require(scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    c.require(normalize_before=pre, normalize_embedding=False, add_final_layer_norm=pre)
    c.require(decoder_vocab_size=c.size("vocab_size"), is_decoder=False)
    c.require(static_position_embeddings=True, extra_pos_embeddings=0)
    c.require(num_hidden_layers=c.size("encoder_layers"))
    c.ignore("add_bias_logits", "classif_dropout", "max_source_positions")  # of their ancestors, never used
    heads, hidden = c.size("encoder_attention_heads"), c.size("encoder_ffn_dim")
    decoder_heads = c.size("decoder_attention_heads", default=heads)
    decoder_hidden = c.size("decoder_ffn_dim", default=hidden)
    return {
        "vocab": c.size("vocab_size"),
        "context": c.size("max_position_embeddings"),
        "dim": c.size("d_model"),
        "depth": c.size("encoder_layers"),
        "decoder_depth": c.size("decoder_layers"),
        "heads": heads,
        "decoder_heads": None if decoder_heads == heads else decoder_heads,
        "hidden": hidden,
        "decoder_hidden": None if decoder_hidden == hidden else decoder_hidden,
        "ffn": c.choice("activation_function", ACTS, "gelu"),
        "output_bias": "final_logits_bias" in state,
        "dropout": c.dropout("dropout"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    state = remove_prefix(state, "model.")
    shared = state.get("shared.weight")
    for copy in COPIES:
        t = state.pop(copy, None)
        if t is not None and (shared is None or t.shape != shared.shape or not t.equal(shared)):
            raise UserError(f"{c.weights}: {copy} is not shared.weight; only shared embeddings are supported")
    for side in SIDES:
        t = state.pop(f"{side}.embed_positions.weight", None)
        if t is not None and (t.ndim != 2 or not is_sinusoidal(t.float())):
            raise UserError(
                f"{c.weights}: {side}.embed_positions.weight is not sinusoidal; no others are supported"
            )
    bias = state.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        state["final_logits_bias"] = bias.flatten()
    return state


def is_sinusoidal(table: Tensor) -> bool:
    T, D = table.shape
    return torch.allclose(sinusoids(torch.arange(T), D), table[:, dimension_order(D)], atol=1e-3)


def dimension_order(dim: int) -> Tensor:
    """For each dimension of Regard's hidden states, its index in Marian's."""
    half = (dim + 1) // 2
    return torch.stack([torch.arange(half), half + torch.arange(half)], dim=1).flatten()[:dim]


def hidden_axis(name: str) -> int | None:
    """The axis of a tensor that is a hidden state's."""
    end = name.rpartition(".f.")[2]
    if end in ("out.weight", "out.bias", "down.weight", "down.bias") or "norm." in name:
        return 0
    return 1 if name.endswith(".weight") else None


def from_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    return t if (axis := hidden_axis(name)) is None else t.index_select(axis, dimension_order(config.dim))


def to_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    if name == "output_bias":
        return t[None]
    return (
        t
        if (axis := hidden_axis(name)) is None
        else t.index_select(axis, dimension_order(config.dim).argsort())
    )


def pack(state: Tensors, architecture: str) -> Tensors:
    state.setdefault("final_logits_bias", torch.zeros(1, len(state["shared.weight"])))
    return {k if k == "final_logits_bias" else f"model.{k}": t for k, t in state.items()}


def describe(model: Transformer, target: str = "Marian", pre: bool = False) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTS.items())}
    require_settings(
        c, target, positions="sinusoidal", norm="layer", ffn=tuple(acts), bias=True, pre=pre, tied=True
    )
    require_settings(c, target, kv_heads=(None, c.heads), head_dim=None)
    if c.target_vocab is not None:
        raise UserError(
            f"{target}'s tokenizer.json cannot hold two tokenizers; train with a recipe without "
            "data.target_tokenizer, or use --to ctranslate2 or --to onnx"
        )
    config = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": c.vocab,
        "decoder_vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "d_model": c.dim,
        "activation_function": acts[c.ffn],
        "dropout": c.dropout,
        "attention_dropout": c.dropout,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "forced_eos_token_id": None,
        "num_hidden_layers": c.depth,
    }
    for side in SIDES:
        blocks = getattr(model, side)
        config[f"{side}_layers"], config[f"{side}_attention_heads"] = len(blocks), blocks[0].attn.f.heads
        config[f"{side}_ffn_dim"] = blocks[0].ffn.f.up.out_features
    return config


FAMILY = Family("transformer", NAMES, settings, unpack, describe, pack, from_theirs, to_theirs)
