"""Llama (Touvron et al. 2023) and its relatives: SmolLM, Mistral, Qwen2 and Qwen3."""

from typing import Any

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, remove_prefix, remove_tied_copy, require_settings
from regard.files.tensors import Tensors
from regard.models import GPT

NAMES = {  # our names: theirs, without their `model.`
    "embed": "embed_tokens",
    "blocks.*.attn.norm": "layers.*.input_layernorm",
    "blocks.*.attn.f.q": "layers.*.self_attn.q_proj",
    "blocks.*.attn.f.k": "layers.*.self_attn.k_proj",
    "blocks.*.attn.f.v": "layers.*.self_attn.v_proj",
    "blocks.*.attn.f.q_norm": "layers.*.self_attn.q_norm",
    "blocks.*.attn.f.k_norm": "layers.*.self_attn.k_norm",
    "blocks.*.attn.f.out": "layers.*.self_attn.o_proj",
    "blocks.*.ffn.norm": "layers.*.post_attention_layernorm",
    "blocks.*.ffn.f.gate": "layers.*.mlp.gate_proj",
    "blocks.*.ffn.f.up": "layers.*.mlp.up_proj",
    "blocks.*.ffn.f.down": "layers.*.mlp.down_proj",
    "norm": "norm",
    "head": "lm_head",
}
ROPE_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(hidden_act="silu", attention_bias=False, mlp_bias=False, pretraining_tp=1)
    c.require(use_sliding_window=False, partial_rotary_factor=1.0, rope_interleaved=False)
    dim, heads = c.size("hidden_size"), c.size("num_attention_heads")
    wide = c.size("head_dim", default=None)
    window = c.size("sliding_window", default=None) if c.kind == "mistral" else None
    attention = "full_attention" if window is None else "sliding_attention"
    types = c.get("layer_types", default=[attention])
    if not isinstance(types, list) or any(kind != attention for kind in types):
        raise c.unknown("layer_types", types, attention)
    c.ignore("sliding_window", "max_window_layers")  # off in a Qwen
    c.ignore("is_llama_config", "transformers.js_config")  # of SmolLM
    settings = {
        "vocab": c.size("vocab_size"),
        "context": c.size("max_position_embeddings"),
        "dim": dim,
        "depth": c.size("num_hidden_layers"),
        "heads": heads,
        "kv_heads": c.size("num_key_value_heads", default=heads),
        "head_dim": None if wide is None or wide * heads == dim else wide,
        "hidden": c.size("intermediate_size"),
        "eps": c.number("rms_norm_eps", default=1e-6),
        "tied": c.get("tie_word_embeddings", default=False) is True,
        "sliding_window": window,
        "qk_norm": c.kind == "qwen3",
        "qkv_bias": True if c.kind == "qwen2" else None,
        "dropout": c.number("attention_dropout", default=0.0),
    }
    return settings | rotary_settings(c)


def rotary_settings(c: Config) -> dict[str, Any]:
    """The settings of rotary positions, by their old or new names."""
    rope = c.get("rope_parameters", "rope_scaling", default={})
    if not isinstance(rope, dict):
        raise c.unknown("rope_parameters", rope, "an object with rope_type")
    theta = c.number("rope_theta", default=10_000.0)
    inner = Config(rope, c.path)
    inner.require(partial_rotary_factor=1.0)
    theta = inner.number("rope_theta", default=theta)
    if (kind := inner.get("rope_type", "type", default="default")) not in ("default", "llama3"):
        raise c.unknown("rope_type", kind, "default, llama3")
    settings: dict[str, Any] = {"base": float(theta)}
    if kind == "llama3":
        context = c.get("max_position_embeddings")
        factor, low, high, original = (
            float(inner.number(key, default=context if key == ROPE_SCALING[-1] else 1.0))
            for key in ROPE_SCALING
        )
        settings["rope_scaling"] = factor, low, high, original
        if high <= low or factor <= 0:
            raise c.unknown(
                "rope_parameters", rope, "a factor above 0, and high_freq_factor above low_freq_factor"
            )
    inner.finish()
    if theta <= 0:
        raise c.unknown("rope_theta", theta, "numbers above 0")
    return settings


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {k: t for k, t in remove_prefix(state, "model.").items() if not k.endswith("rotary_emb.inv_freq")}
    if c.get("tie_word_embeddings", default=False):
        remove_tied_copy(state, "lm_head.weight", "embed_tokens.weight", c.weights)
    return state


def pack(state: Tensors, architecture: str) -> Tensors:
    return {k if k.startswith("lm_head") else f"model.{k}": t for k, t in state.items()}


def describe(model: GPT) -> dict[str, Any]:
    c = model.config
    require_settings(c, "Llama", positions="rotary", norm="rms", ffn="swiglu", bias=False)
    kind = "qwen3" if c.qk_norm else "qwen2" if c.qkv_bias else "mistral" if c.sliding_window else "llama"
    require_settings(
        c,
        CLASSES[kind],
        sliding_window=c.sliding_window if kind == "mistral" else None,
        qkv_bias=(None, kind == "qwen2"),
    )
    if kind == "qwen2":
        require_settings(c, CLASSES[kind], head_dim=None)
    d = c.head_dim or c.dim // c.heads
    rope: dict[str, Any] = {"rope_theta": c.base, "rope_type": "default"}
    if c.rope_scaling:
        rope |= {"rope_type": "llama3"} | dict(zip(ROPE_SCALING, c.rope_scaling, strict=True))
        rope[ROPE_SCALING[-1]] = int(c.rope_scaling[-1])
    config = {
        "model_type": kind,
        "architectures": [f"{CLASSES[kind]}ForCausalLM"],
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads or c.heads,
        "intermediate_size": len(model.get_parameter("blocks.0.ffn.f.gate.weight")),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6 if c.eps is None else c.eps,
        "rope_parameters": rope,
        "rope_theta": c.base,  # for older readers
        "tie_word_embeddings": c.tied,
        "attention_dropout": c.dropout,
    }
    config |= {} if kind == "qwen2" else {"head_dim": d}
    config |= {"rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}} if c.rope_scaling else {}
    return config | ({"sliding_window": c.sliding_window} if kind == "mistral" else {})


FAMILY = Family("gpt", NAMES, settings, unpack, describe, pack)
