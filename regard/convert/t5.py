"""T5, also as of version 1.1: Raffel et al. 2020.

It does not divide scores by √d, nor multiply embeddings by √D; so our queries are √d as large as theirs, our
embeddings 1/√D. Where the output layer is the embedding, it divides by √D, and all is the same.
"""

import math
from typing import Any

from torch import Tensor

from ..checkpoint import Tensors
from ..errors import Mistake
from .family import Config, Family, need

SELF, CROSS, FFN = "layer.0.SelfAttention", "layer.1.EncDecAttention", "DenseReluDense"
NAMES = {  # ours: theirs
    "embed": "shared",
    "encoder_positions.table": f"encoder.block.0.{SELF}.relative_attention_bias",
    "decoder_positions.table": f"decoder.block.0.{SELF}.relative_attention_bias",
    "encoder_norm": "encoder.final_layer_norm",
    "decoder_norm": "decoder.final_layer_norm",
    "head": "lm_head",
    "decoder.*.cross.norm": "decoder.block.*.layer.1.layer_norm",
    **{f"{side}.*.attn.norm": f"{side}.block.*.layer.0.layer_norm" for side in ("encoder", "decoder")},
}
for ours, name in {"q": "q", "k": "k", "v": "v", "out": "o"}.items():
    NAMES[f"decoder.*.cross.f.{ours}"] = f"decoder.block.*.{CROSS}.{name}"
    for side in "encoder", "decoder":
        NAMES[f"{side}.*.attn.f.{ours}"] = f"{side}.block.*.{SELF}.{name}"
for side, at in ("encoder", 1), ("decoder", 2):
    NAMES[f"{side}.*.ffn.norm"] = f"{side}.block.*.layer.{at}.layer_norm"
    for ours, name in {"gate": "wi_0", "up": "wi_1", "down": "wo"}.items():
        NAMES[f"{side}.*.ffn.f.{ours}"] = f"{side}.block.*.layer.{at}.{FFN}.{name}"
PLAIN, GATED = f"{FFN}.wi.", f"{FFN}.wi_1."
FFNS = {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu"}  # theirs: ours
CONTEXT = 512  # for which most were made; their positions have no end


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(layer_norm_epsilon=1e-6, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    c.plain(is_decoder=False)
    c.left -= {
        "dense_act_fn",
        "is_gated_act",
        "tie_word_embeddings",
        "scale_decoder_outputs",
    }  # told otherwise
    dim, heads, wide = c.whole("d_model"), c.whole("num_heads"), c.whole("d_kv")
    depth = c.whole("num_layers")
    return {
        "vocab": c.whole("vocab_size"),
        "context": c.whole("n_positions", default=CONTEXT),
        "dim": dim,
        "depth": depth,
        "decoder_depth": c.whole("num_decoder_layers", default=depth),
        "heads": heads,
        "head_dim": None if wide * heads == dim else wide,
        "hidden": c.whole("d_ff"),
        "ffn": c.chosen("feed_forward_proj", FFNS, "relu"),
        "tied": "lm_head.weight" not in state,
        "dropout": c.dropout("dropout_rate"),
    }


def scaled(c: Config) -> bool:
    """Whether the output layer divides by √D; once, this was told by its being tied."""
    told = c.told.get("scale_decoder_outputs")
    return c.told.get("tie_word_embeddings") is not False if told is None else bool(told)


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.replace(PLAIN, GATED): t.float() for name, t in state.items()}
    dim = math.sqrt(c.whole("d_model"))
    shared = state.get("shared.weight")
    for copy in "encoder.embed_tokens.weight", "decoder.embed_tokens.weight":
        t = state.pop(copy, shared)
        if t is not None and (shared is None or t.shape != shared.shape or not t.equal(shared)):
            raise Mistake(f"{c.weights}: {copy} is not shared.weight; only models that share are known")
    head = state.pop("lm_head.weight", None)
    if head is not None and shared is not None and head.shape == shared.shape and head.equal(shared):
        head = None
    if head is not None:
        state["lm_head.weight"] = head / dim if scaled(c) else head
    elif shared is not None and not scaled(c):
        state["lm_head.weight"] = shared
    return state


def pack(state: Tensors, made: str) -> Tensors:
    if not any(f"{FFN}.wi_0." in name for name in state):
        return {name.replace(GATED, PLAIN): t for name, t in state.items()}
    return state


def factor(name: str, config: Any) -> float:
    if name == "embed.weight":
        return 1 / math.sqrt(config.dim)
    return math.sqrt(config.head_dim or config.dim // config.heads) if name.endswith(".f.q.weight") else 1.0


def inward(name: str, t: Tensor, config: Any) -> Tensor:
    return t if (by := factor(name, config)) == 1 else (t.double() * by).float()


def outward(name: str, t: Tensor, config: Any) -> Tensor:
    return t if (by := factor(name, config)) == 1 else (t.double() / by).float()


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    kinds = {ours: name for name, ours in FFNS.items()}
    need(c, "T5", positions="relative", norm="rms", ffn=tuple(kinds), bias=False, pre=True)
    need(c, "T5", kv_heads=(None, c.heads), target_vocab=None, output_bias=False)
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": c.vocab,
        "n_positions": c.context,
        "d_model": c.dim,
        "d_kv": c.head_dim or c.dim // c.heads,
        "d_ff": model.encoder[0].ffn.f.up.out_features,
        "num_layers": c.depth,
        "num_decoder_layers": c.decoder_depth or c.depth,
        "num_heads": c.heads,
        "feed_forward_proj": kinds[c.ffn],
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": c.dropout,
        "is_encoder_decoder": True,
        "tie_word_embeddings": c.tied,
    }


FAMILY = Family("t5", NAMES, settings, unpack, describe, pack, inward, outward)
