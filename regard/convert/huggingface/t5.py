"""T5, also as of version 1.1: Raffel et al. 2020.

It does not divide scores by √d, nor multiply embeddings by √D; so Regard's queries are √d times T5's, and the
embeddings 1/√D times. A tied output layer divides by √D, which is equivalent.
"""

import math
from typing import Any

from torch import Tensor

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, require_settings
from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.models import Transformer

SELF, CROSS, FFN = "layer.0.SelfAttention", "layer.1.EncDecAttention", "DenseReluDense"
NAMES = {  # our names: theirs
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
CONTEXT = 512  # of most models; relative positions have no limit


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(layer_norm_epsilon=1e-6, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    c.require(is_decoder=False)
    c.ignore("dense_act_fn", "is_gated_act")  # feed_forward_proj says the same
    c.ignore("tie_word_embeddings", "scale_decoder_outputs")  # read in `scales_output`
    dim, heads, wide = c.size("d_model"), c.size("num_heads"), c.size("d_kv")
    depth = c.size("num_layers")
    return {
        "vocab": c.size("vocab_size"),
        "context": c.size("n_positions", default=CONTEXT),
        "dim": dim,
        "depth": depth,
        "decoder_depth": c.size("num_decoder_layers", default=depth),
        "heads": heads,
        "head_dim": None if wide * heads == dim else wide,
        "hidden": c.size("d_ff"),
        "ffn": c.choice("feed_forward_proj", FFNS, "relu"),
        "tied": "lm_head.weight" not in state,
        "dropout": c.dropout("dropout_rate"),
    }


def scales_output(c: Config) -> bool:
    """Return whether the output layer divides by √D; in older folders, it does if it is tied."""
    scales = c.values.get("scale_decoder_outputs")
    return c.values.get("tie_word_embeddings") is not False if scales is None else bool(scales)


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.replace(PLAIN, GATED): t.float() for name, t in state.items()}
    dim = math.sqrt(c.size("d_model"))
    shared = state.get("shared.weight")
    for copy in "encoder.embed_tokens.weight", "decoder.embed_tokens.weight":
        t = state.pop(copy, shared)
        if t is not None and (shared is None or t.shape != shared.shape or not t.equal(shared)):
            raise UserError(f"{c.weights}: {copy} is not shared.weight; only shared embeddings are supported")
    head = state.pop("lm_head.weight", None)
    if head is not None and shared is not None and head.shape == shared.shape and head.equal(shared):
        head = None
    if head is not None:
        state["lm_head.weight"] = head / dim if scales_output(c) else head
    elif shared is not None and not scales_output(c):
        state["lm_head.weight"] = shared
    return state


def pack(state: Tensors, architecture: str) -> Tensors:
    if not any(f"{FFN}.wi_0." in name for name in state):
        return {name.replace(GATED, PLAIN): t for name, t in state.items()}
    return state


def factor(name: str, config: Any) -> float:
    if name == "embed.weight":
        return 1 / math.sqrt(config.dim)
    return math.sqrt(config.head_dim or config.dim // config.heads) if name.endswith(".f.q.weight") else 1.0


def from_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    return t if (by := factor(name, config)) == 1 else (t.double() * by).float()


def to_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    return t if (by := factor(name, config)) == 1 else (t.double() / by).float()


def describe(model: Transformer) -> dict[str, Any]:
    c = model.config
    kinds = {ours: name for name, ours in FFNS.items()}
    require_settings(c, "T5", positions="relative", norm="rms", ffn=tuple(kinds), bias=False, pre=True)
    require_settings(c, "T5", kv_heads=(None, c.heads), target_vocab=None, output_bias=False)
    width = len(model.get_parameter("encoder.0.ffn.f.up.weight"))
    require_settings(c, "T5", decoder_heads=(None, c.heads), decoder_hidden=(None, width))
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": c.vocab,
        "n_positions": c.context,
        "d_model": c.dim,
        "d_kv": c.head_dim or c.dim // c.heads,
        "d_ff": width,
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


FAMILY = Family("t5", NAMES, settings, unpack, describe, pack, from_theirs, to_theirs)
