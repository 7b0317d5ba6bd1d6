"""GPT-2: Radford et al. 2019. Its files hold linear layers transposed, and q, k and v as one."""

import re
from typing import Any

import torch

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import (
    ACTIVATIONS,
    Family,
    remove_prefix,
    remove_tied_copy,
    require_settings,
)
from regard.files.tensors import Tensors
from regard.models import GPT

NAMES = {  # our names: theirs, without their `transformer.`
    "embed": "wte",
    "positions.table": "wpe",
    "blocks.*.attn.norm": "h.*.ln_1",
    "blocks.*.attn.f.q": "h.*.attn.q",
    "blocks.*.attn.f.k": "h.*.attn.k",
    "blocks.*.attn.f.v": "h.*.attn.v",
    "blocks.*.attn.f.out": "h.*.attn.c_proj",
    "blocks.*.ffn.norm": "h.*.ln_2",
    "blocks.*.ffn.f.up": "h.*.mlp.c_fc",
    "blocks.*.ffn.f.down": "h.*.mlp.c_proj",
    "norm": "ln_f",
    "head": "lm_head",
}
TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
MASKS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")  # causal masks, in old files


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    c.ignore("reorder_and_upcast_attn", *(key for key in c.unread if key.startswith("summary_")))
    return {
        "vocab": c.size("vocab_size"),
        "context": c.size("n_positions", "n_ctx"),
        "dim": c.size("n_embd"),
        "depth": c.size("n_layer"),
        "heads": c.size("n_head"),
        "hidden": c.size("n_inner", default=None),
        "positions": "learned",
        "norm": "layer",
        "eps": c.number("layer_norm_epsilon", default=1e-5),
        "ffn": c.choice("activation_function", ACTIVATIONS, "gelu_new"),
        "bias": True,
        "tied": c.get("tie_word_embeddings", default=True) is True,
        "dropout": c.dropout("resid_pdrop"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {k: t for k, t in remove_prefix(state, "transformer.").items() if not MASKS.match(k)}
    state = {k: t.T if TRANSPOSED.search(k) and t.ndim == 2 else t for k, t in state.items()}
    for name in [name for name in state if ".attn.c_attn." in name and state[name].ndim]:
        for part, t in zip("qkv", state.pop(name).chunk(3), strict=False):
            state[name.replace("c_attn", part)] = t
    if c.get("tie_word_embeddings", default=True):
        remove_tied_copy(state, "lm_head.weight", "wte.weight", c.weights)
    return state


def pack(state: Tensors, architecture: str) -> Tensors:
    for name in [name for name in state if ".attn.q." in name]:
        parts = [state.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
        state[name.replace(".q.", ".c_attn.")] = torch.cat(parts)
    state = {k: t.T if TRANSPOSED.search(k) else t for k, t in state.items()}
    return {k if k.startswith("lm_head") else f"transformer.{k}": t for k, t in state.items()}


def describe(model: GPT) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    require_settings(
        c, "GPT-2", positions="learned", norm="layer", ffn=tuple(acts), bias=True, kv_heads=(None, c.heads)
    )
    require_settings(c, "GPT-2", head_dim=None, qk_norm=False, qkv_bias=(None, True), sliding_window=None)
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": c.vocab,
        "n_positions": c.context,
        "n_embd": c.dim,
        "n_layer": c.depth,
        "n_head": c.heads,
        "n_inner": c.hidden,
        "layer_norm_epsilon": 1e-5 if c.eps is None else c.eps,
        "activation_function": acts[c.ffn],
        "tie_word_embeddings": c.tied,
        **{f"{part}_pdrop": c.dropout for part in ("resid", "embd", "attn")},
    }


FAMILY = Family("gpt", NAMES, settings, unpack, describe, pack)
