"""GPT-2: Radford et al. 2019. Its linear layers keep their weights transposed, and q, k and v in one."""

import re
from typing import Any

import torch

from ..checkpoint import Tensors
from .family import ACTIVATIONS, Config, Family, need, untie, without

NAMES = {  # ours: theirs, without their `transformer.`
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
TURNED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
MASKS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")  # which old files keep


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    c.left -= {name for name in c.left if name.startswith("summary_")} | {"reorder_and_upcast_attn"}
    return {
        "vocab": c.whole("vocab_size"),
        "context": c.whole("n_positions", "n_ctx"),
        "dim": c.whole("n_embd"),
        "depth": c.whole("n_layer"),
        "heads": c.whole("n_head"),
        "hidden": c.whole("n_inner", default=None),
        "positions": "learned",
        "norm": "layer",
        "eps": c.number("layer_norm_epsilon", default=1e-5),
        "ffn": c.chosen("activation_function", ACTIVATIONS, "gelu_new"),
        "bias": True,
        "tied": c.take("tie_word_embeddings", default=True) is True,
        "dropout": c.dropout("resid_pdrop"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {k: t for k, t in without(state, "transformer.").items() if not MASKS.match(k)}
    state = {k: t.T if TURNED.search(k) and t.ndim == 2 else t for k, t in state.items()}
    for name in [name for name in state if ".attn.c_attn." in name and state[name].ndim]:
        for part, t in zip("qkv", state.pop(name).chunk(3), strict=False):
            state[name.replace("c_attn", part)] = t
    if c.take("tie_word_embeddings", default=True):
        untie(state, "lm_head.weight", "wte.weight", c.weights)
    return state


def pack(state: Tensors, made: str) -> Tensors:
    for name in [name for name in state if ".attn.q." in name]:
        parts = [state.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
        state[name.replace(".q.", ".c_attn.")] = torch.cat(parts)
    state = {k: t.T if TURNED.search(k) else t for k, t in state.items()}
    return {k if k.startswith("lm_head") else f"transformer.{k}": t for k, t in state.items()}


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    need(c, "GPT-2", positions="learned", norm="layer", ffn=tuple(acts), bias=True, kv_heads=(None, c.heads))
    need(c, "GPT-2", head_dim=None, qk_norm=False, qkv_bias=(None, True), window=None)
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
