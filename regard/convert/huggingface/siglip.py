"""SigLIP's image encoder: Zhai et al. 2023. A ViT whose vector for an image is the mean of the patches."""

from typing import Any

from torch import Tensor

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import ACTIVATIONS, Family
from regard.convert.huggingface.vit import image_sizes
from regard.files.tensors import Tensors
from regard.models import ViT

NAMES = {  # our names: theirs, without their `vision_model.`
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
    vision = c.get("vision_config", default={})
    if not isinstance(vision, dict):
        raise c.unknown("vision_config", vision, "an object")
    c.ignore("text_config", "initializer_factor")  # the text encoder is not in the folder
    inner = Config(vision, c.path)
    inner.ignore("vision_use_head")  # for another use
    settings = {
        "size": inner.size("image_size", default=224),
        "channels": inner.size("num_channels", default=3),
        "patch": inner.size("patch_size", default=16),
        "dim": inner.size("hidden_size", default=768),
        "depth": inner.size("num_hidden_layers", default=12),
        "heads": inner.size("num_attention_heads", default=12),
        "hidden": inner.size("intermediate_size", default=3072),
        "eps": inner.number("layer_norm_eps", default=1e-6),
        "ffn": inner.choice("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
        "dropout": inner.number("attention_dropout", default=0.0),
        "pool": "mean",
    }
    inner.finish()
    return settings


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.removeprefix(PREFIX): t for name, t in state.items()}
    state.pop("embeddings.position_ids", None)
    return state


def from_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    return t.flatten(1) if name == "embed.weight" else t


def to_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    square = (config.channels, config.patch, config.patch)
    return t.unflatten(1, square) if name == "embed.weight" else t


def pack(state: Tensors, architecture: str) -> Tensors:
    return {k if k.startswith("classifier.") else PREFIX + k: t for k, t in state.items()}


def describe(model: ViT) -> dict[str, Any]:
    c = model.config
    vision = image_sizes(c, "SigLIP", "mean") | {
        "model_type": "siglip_vision_model",
        "attention_dropout": c.dropout,
        "vision_use_head": False,
    }
    config = {"model_type": "siglip", "architectures": ["SiglipForImageClassification"]}
    return config | {"vision_config": vision}


FAMILY = Family("vit", NAMES, settings, unpack, describe, pack, from_theirs, to_theirs)
