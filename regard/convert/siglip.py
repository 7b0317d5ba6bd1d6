"""SigLIP's eyes: Zhai et al. 2023. A ViT without a token of its own: the mean of the patches."""

from typing import Any

from torch import Tensor

from ..checkpoint import Tensors
from .family import ACTIVATIONS, Config, Family
from .vit import sized

NAMES = {  # ours: theirs, without their `vision_model.`
    "positions": "embeddings.position_embedding",
    "embed": "embeddings.patch_embedding",
    "blocks.*.attn.norm": "encoder.layers.*.layer_norm1",
    "blocks.*.attn.f.q": "encoder.layers.*.self_attn.q_proj",
    "blocks.*.attn.f.k": "encoder.layers.*.self_attn.k_proj",
    "blocks.*.attn.f.v": "encoder.layers.*.self_attn.v_proj",
    "blocks.*.attn.f.out": "encoder.layers.*.self_attn.out_proj",
    "blocks.*.ffn.norm": "encoder.layers.*.layer_norm2",
    "blocks.*.ffn.f.up": "encoder.layers.*.mlp.fc1",
    "blocks.*.ffn.f.down": "encoder.layers.*.mlp.fc2",
    "norm": "post_layernorm",
}
PREFIX = "vision_model."


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    told = c.take("vision_config", default={})
    if not isinstance(told, dict):
        raise c.wrong("vision_config", told, "an object")
    c.left -= {"text_config", "initializer_factor"}  # what reads is not there
    inner = Config(told, c.where)
    inner.left -= {"vision_use_head"}  # of another use
    made = {
        "size": inner.whole("image_size", default=224),
        "channels": inner.whole("num_channels", default=3),
        "patch": inner.whole("patch_size", default=16),
        "dim": inner.whole("hidden_size", default=768),
        "depth": inner.whole("num_hidden_layers", default=12),
        "heads": inner.whole("num_attention_heads", default=12),
        "hidden": inner.whole("intermediate_size", default=3072),
        "eps": inner.number("layer_norm_eps", default=1e-6),
        "ffn": inner.chosen("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
        "dropout": inner.number("attention_dropout", default=0.0),
        "pool": "mean",
    }
    inner.finish()
    return made


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.removeprefix(PREFIX): t for name, t in state.items()}
    state.pop("embeddings.position_ids", None)
    return state


def inward(name: str, t: Tensor, config: Any) -> Tensor:
    return t.flatten(1) if name == "embed.weight" else t


def outward(name: str, t: Tensor, config: Any) -> Tensor:
    square = (config.channels, config.patch, config.patch)
    return t.unflatten(1, square) if name == "embed.weight" else t


def pack(state: Tensors, made: str) -> Tensors:
    return {k if k.startswith("classifier.") else PREFIX + k: t for k, t in state.items()}


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    vision = sized(c, "SigLIP", "mean") | {
        "model_type": "siglip_vision_model",
        "attention_dropout": c.dropout,
        "vision_use_head": False,
    }
    made = {"model_type": "siglip", "architectures": ["SiglipForImageClassification"]}
    return made | {"vision_config": vision}


FAMILY = Family("vit", NAMES, settings, unpack, describe, pack, inward, outward)
