"""ViT: Dosovitskiy et al. 2021. It projects patches by a convolution, here a linear layer."""

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import ACTIVATIONS, Family, encoder_settings, require_settings
from regard.convert.huggingface.files import PREPROCESSOR
from regard.errors import UserError, shorten
from regard.files.tensors import Tensors
from regard.files.untrusted import read_json
from regard.models import ViT

NAMES = {  # our names: theirs, without their `vit.`
    "first.weight": "embeddings.cls_token",
    "positions.weight": "embeddings.position_embeddings",
    "embed": "embeddings.patch_embeddings.projection",
    "blocks.*.attn.norm": "encoder.layer.*.layernorm_before",
    "blocks.*.attn.f.q": "encoder.layer.*.attention.attention.query",
    "blocks.*.attn.f.k": "encoder.layer.*.attention.attention.key",
    "blocks.*.attn.f.v": "encoder.layer.*.attention.attention.value",
    "blocks.*.attn.f.out": "encoder.layer.*.attention.output.dense",
    "blocks.*.ffn.norm": "encoder.layer.*.layernorm_after",
    "blocks.*.ffn.f.up": "encoder.layer.*.intermediate.dense",
    "blocks.*.ffn.f.down": "encoder.layer.*.output.dense",
    "norm": "layernorm",
}
NEWER = {  # names of transformers 5, which some files have: the usual ones
    "layers.": "encoder.layer.",
    ".attention.q_proj.": ".attention.attention.query.",
    ".attention.k_proj.": ".attention.attention.key.",
    ".attention.v_proj.": ".attention.attention.value.",
    ".attention.o_proj.": ".attention.output.dense.",
    ".mlp.fc1.": ".intermediate.dense.",
    ".mlp.fc2.": ".output.dense.",
}
MEAN_STD = 0.5  # of each channel, by default


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(qkv_bias=True)
    c.ignore("encoder_stride", "pooler_act", "pooler_output_size")  # of other heads
    return encoder_settings(c) | {
        "size": c.size("image_size"),
        "channels": c.size("num_channels", default=3),
        "patch": c.size("patch_size"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    tensors: Tensors = {}
    for name, t in state.items():
        name = name.removeprefix("vit.")
        if name.startswith("layers."):
            for newer, usual in NEWER.items():
                name = name.replace(newer, usual)
        tensors[name] = t
    return tensors


def from_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    if name in ("first.weight", "positions.weight"):
        return t[0]
    return t.flatten(1) if name == "embed.weight" else t


def to_theirs(name: str, t: Tensor, config: Any) -> Tensor:
    if name in ("first.weight", "positions.weight"):
        return t[None]
    square = (config.channels, config.patch, config.patch)
    return t.unflatten(1, square) if name == "embed.weight" else t


def pack(state: Tensors, architecture: str) -> Tensors:
    return {k if k.startswith("classifier.") else f"vit.{k}": t for k, t in state.items()}


def image_sizes(c: Any, target: str, pool: str) -> dict[str, Any]:
    """The sizes of a ViT, by their names."""
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    require_settings(c, target, pool=pool, positions="learned", norm="layer", ffn=tuple(acts), bias=True)
    return {
        "image_size": c.size,
        "num_channels": c.channels,
        "patch_size": c.patch,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.hidden or 4 * c.dim,
        "layer_norm_eps": c.eps,
        "hidden_act": acts[c.ffn],
    }


def describe(model: ViT) -> dict[str, Any]:
    c = model.config
    return image_sizes(c, "ViT", "first") | {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "qkv_bias": True,
    }


def read_preprocessor(folder: Path, size: int, channels: int) -> dict[str, Any]:
    """Read the task's preparation of images from preprocessor_config.json."""
    path = folder / PREPROCESSOR
    config = read_json(path) if path.exists() else {}
    sides = config.get("size", size)
    sides = list(sides.values()) if isinstance(sides, dict) else [sides]
    if not sides or any(side != size for side in sides):
        raise UserError(
            f"{path}: size={shorten(config.get('size'))} is not supported; supported: {size} (config.json)"
        )
    for key, supported in (("do_resize", True), ("do_rescale", True), ("do_center_crop", False)):
        if (value := config.get(key, supported)) not in (supported, None):
            raise UserError(f"{path}: {key}={shorten(value)} is not supported; supported: {supported}")
    factor = config.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or not math.isclose(factor, 1 / 255, rel_tol=1e-3):
        raise UserError(f"{path}: rescale_factor={shorten(factor)} is not supported; supported: 1/255")
    task: dict[str, Any] = {"size": size, "channels": channels}
    normalizes = config.get("do_normalize", True) is not False
    for name, key, neutral in (("mean", "image_mean", 0.0), ("std", "image_std", 1.0)):
        values = config.get(key) or [MEAN_STD] * channels
        numbers = isinstance(values, list) and all(
            isinstance(v, int | float) and abs(v) < 1e6 for v in values
        )
        if not numbers or len(values) != channels or (name == "std" and not min(values) > 0):
            raise UserError(f"{path}: {key} should be {channels} numbers, one for each channel")
        task[name] = values if normalizes else [neutral] * channels
    return task


def preprocessor(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": task["size"], "width": task["size"]},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(task["mean"]),
        "image_std": list(task["std"]),
    }


FAMILY = Family("vit", NAMES, settings, unpack, describe, pack, from_theirs, to_theirs)
