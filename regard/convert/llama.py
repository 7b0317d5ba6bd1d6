"""Llama (Touvron et al. 2023) and what is made like it: SmolLM, Mistral, Qwen2 and Qwen3."""

from typing import Any

from ..checkpoint import Tensors
from .family import Config, Family, need, untie, without

NAMES = {  # ours: theirs, without their `model.`
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
STRETCH = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(hidden_act="silu", attention_bias=False, mlp_bias=False, pretraining_tp=1)
    c.plain(use_sliding_window=False, partial_rotary_factor=1.0, rope_interleaved=False)
    dim, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    wide = c.whole("head_dim", default=None)
    window = c.whole("sliding_window", default=None) if c.kind == "mistral" else None
    looks = "full_attention" if window is None else "sliding_attention"
    types = c.take("layer_types", default=[looks])
    if not isinstance(types, list) or any(kind != looks for kind in types):
        raise c.wrong("layer_types", types, looks)
    c.left -= {"sliding_window", "max_window_layers"}  # off in a Qwen
    c.left -= {"is_llama_config", "transformers.js_config"}  # of SmolLM
    made = {
        "vocab": c.whole("vocab_size"),
        "context": c.whole("max_position_embeddings"),
        "dim": dim,
        "depth": c.whole("num_hidden_layers"),
        "heads": heads,
        "kv_heads": c.whole("num_key_value_heads", default=heads),
        "head_dim": None if wide is None or wide * heads == dim else wide,
        "hidden": c.whole("intermediate_size"),
        "eps": c.number("rms_norm_eps", default=1e-6),
        "tied": c.take("tie_word_embeddings", default=False) is True,
        "window": window,
        "qk_norm": c.kind == "qwen3",
        "qkv_bias": True if c.kind == "qwen2" else None,
        "dropout": c.number("attention_dropout", default=0.0),
    }
    return made | rotary(c)


def rotary(c: Config) -> dict[str, Any]:
    """Rotary positions by their old names or the new ones."""
    told = c.take("rope_parameters", "rope_scaling", default={})
    if not isinstance(told, dict):
        raise c.wrong("rope_parameters", told, "an object with rope_type")
    theta = c.number("rope_theta", default=10_000.0)
    inner = Config(told, c.where)
    inner.plain(partial_rotary_factor=1.0)
    theta = inner.number("rope_theta", default=theta)
    if (kind := inner.take("rope_type", "type", default="default")) not in ("default", "llama3"):
        raise c.wrong("rope_type", kind, "default, llama3")
    found: dict[str, Any] = {"base": float(theta)}
    if kind == "llama3":
        learnt = c.take("max_position_embeddings")
        found["stretch"] = tuple(
            float(inner.number(name, default=learnt if name == STRETCH[-1] else 1.0)) for name in STRETCH
        )
        if found["stretch"][2] <= found["stretch"][1] or found["stretch"][0] <= 0:
            raise c.wrong(
                "rope_parameters", told, "a factor above 0, and high_freq_factor above low_freq_factor"
            )
    inner.finish()
    if theta <= 0:
        raise c.wrong("rope_theta", theta, "numbers above 0")
    return found


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {k: t for k, t in without(state, "model.").items() if not k.endswith("rotary_emb.inv_freq")}
    if c.take("tie_word_embeddings", default=False):
        untie(state, "lm_head.weight", "embed_tokens.weight", c.weights)
    return state


def pack(state: Tensors, made: str) -> Tensors:
    return {k if k.startswith("lm_head") else f"model.{k}": t for k, t in state.items()}


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    need(c, "Llama", positions="rotary", norm="rms", ffn="swiglu", bias=False)
    kind = "qwen3" if c.qk_norm else "qwen2" if c.qkv_bias else "mistral" if c.window else "llama"
    need(c, CLASSES[kind], window=c.window if kind == "mistral" else None, qkv_bias=(None, kind == "qwen2"))
    if kind == "qwen2":
        need(c, CLASSES[kind], head_dim=None)
    d = c.head_dim or c.dim // c.heads
    rope: dict[str, Any] = {"rope_theta": c.base, "rope_type": "default"}
    if c.stretch:
        rope |= {"rope_type": "llama3"} | dict(zip(STRETCH, c.stretch, strict=True))
        rope[STRETCH[-1]] = int(c.stretch[-1])
    gate = model.blocks[0].ffn.f.gate
    found = {
        "model_type": kind,
        "architectures": [f"{CLASSES[kind]}ForCausalLM"],
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads or c.heads,
        "intermediate_size": gate.out_features,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6 if c.eps is None else c.eps,
        "rope_parameters": rope,
        "rope_theta": c.base,  # as older readers look for it
        "tie_word_embeddings": c.tied,
        "attention_dropout": c.dropout,
    }
    found |= {} if kind == "qwen2" else {"head_dim": d}
    found |= {"rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}} if c.stretch else {}
    return found | ({"sliding_window": c.window} if kind == "mistral" else {})


FAMILY = Family("gpt", NAMES, settings, unpack, describe, pack)
