"""Marian, the translators of OPUS-MT: Junczys-Dowmunt et al. 2018, Tiedemann & Thottingal 2020.

There, positions are all sines and then all cosines, here each sine has its cosine beside it. The vectors that
layers hand on have no order of their own, so theirs are put in ours.
"""

from typing import Any

import torch
from torch import Tensor

from ..checkpoint import Tensors
from ..errors import Mistake
from ..positions import sinusoids
from .family import ACTIVATIONS, Config, Family, need, without

SIDES = ("encoder", "decoder")
NAMES = {"embed": "shared", "output_bias": "final_logits_bias"}  # ours: theirs, without their `model.`
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
    c.plain(scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    c.plain(normalize_before=pre, normalize_embedding=False, add_final_layer_norm=pre)
    c.plain(decoder_vocab_size=c.whole("vocab_size"), is_decoder=False)
    c.plain(static_position_embeddings=True, extra_pos_embeddings=0)
    heads, hidden = c.whole("encoder_attention_heads"), c.whole("encoder_ffn_dim")
    c.plain(
        decoder_attention_heads=heads, decoder_ffn_dim=hidden, num_hidden_layers=c.whole("encoder_layers")
    )
    c.left -= {"add_bias_logits", "classif_dropout", "max_source_positions"}  # of their ancestors, never used
    return {
        "vocab": c.whole("vocab_size"),
        "context": c.whole("max_position_embeddings"),
        "dim": c.whole("d_model"),
        "depth": c.whole("encoder_layers"),
        "decoder_depth": c.whole("decoder_layers"),
        "heads": heads,
        "hidden": hidden,
        "ffn": c.chosen("activation_function", ACTS, "gelu"),
        "output_bias": "final_logits_bias" in state,
        "dropout": c.dropout("dropout"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    state = without(state, "model.")
    shared = state.get("shared.weight")
    for copy in COPIES:
        t = state.pop(copy, None)
        if t is not None and (shared is None or t.shape != shared.shape or not t.equal(shared)):
            raise Mistake(f"{c.weights}: {copy} is not shared.weight; only models that share are known")
    for side in SIDES:
        t = state.pop(f"{side}.embed_positions.weight", None)
        if t is not None and (t.ndim != 2 or not near(t.float())):
            raise Mistake(f"{c.weights}: {side}.embed_positions.weight are no sines; only these are known")
    bias = state.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        state["final_logits_bias"] = bias.flatten()
    return state


def near(table: Tensor) -> bool:
    T, D = table.shape
    return torch.allclose(sinusoids(torch.arange(T), D), table[:, order(D)], atol=1e-3)


def order(dim: int) -> Tensor:
    """For each number of our vectors, where it stands in theirs."""
    half = (dim + 1) // 2
    return torch.stack([torch.arange(half), half + torch.arange(half)], dim=1).flatten()[:dim]


def axis(name: str) -> int | None:
    """Along which axis a tensor of ours meets the vectors that layers hand on."""
    end = name.rpartition(".f.")[2]
    if end in ("out.weight", "out.bias", "down.weight", "down.bias") or "norm." in name:
        return 0
    return 1 if name.endswith(".weight") else None


def inward(name: str, t: Tensor, config: Any) -> Tensor:
    return t if (at := axis(name)) is None else t.index_select(at, order(config.dim))


def outward(name: str, t: Tensor, config: Any) -> Tensor:
    if name == "output_bias":
        return t[None]
    return t if (at := axis(name)) is None else t.index_select(at, order(config.dim).argsort())


def pack(state: Tensors, made: str) -> Tensors:
    state.setdefault("final_logits_bias", torch.zeros(1, len(state["shared.weight"])))
    return {k if k == "final_logits_bias" else f"model.{k}": t for k, t in state.items()}


def describe(model: Any, to: str = "Marian", pre: bool = False) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTS.items())}
    need(c, to, positions="sinusoidal", norm="layer", ffn=tuple(acts), bias=True, pre=pre, tied=True)
    need(c, to, kv_heads=(None, c.heads), head_dim=None)
    if c.target_vocab is not None:
        raise Mistake(
            f"two tokenizers have no place in {to}'s tokenizer.json; train with a recipe without "
            "data.target_tokenizer, or use --to ctranslate2 or --to onnx"
        )
    found = {
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
    for side, depth in (("encoder", c.depth), ("decoder", c.decoder_depth or c.depth)):
        found[f"{side}_layers"], found[f"{side}_attention_heads"] = depth, c.heads
        found[f"{side}_ffn_dim"] = c.hidden or 4 * c.dim
    return found


FAMILY = Family("transformer", NAMES, settings, unpack, describe, pack, inward, outward)
