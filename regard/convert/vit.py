"""ViT: Dosovitskiy et al. 2021. Its patches are read by a convolution, which is a product, too."""

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoint import Tensors
from ..errors import Mistake
from .family import ACTIVATIONS, Config, Family, need, short
from .files import PREPROCESSOR, read_json

NAMES = {  # ours: theirs, without their `vit.`
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
NEWER = {  # names inside transformers, as of version 5, which some files may have: the usual ones
    "layers.": "encoder.layer.",
    ".attention.q_proj.": ".attention.attention.query.",
    ".attention.k_proj.": ".attention.attention.key.",
    ".attention.v_proj.": ".attention.attention.value.",
    ".attention.o_proj.": ".attention.output.dense.",
    ".mlp.fc1.": ".intermediate.dense.",
    ".mlp.fc2.": ".output.dense.",
}
HALF = [0.5, 0.5, 0.5]  # mean and deviation, if a folder does not tell


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(qkv_bias=True)
    c.left -= {"encoder_stride", "pooler_act", "pooler_output_size"}  # of other heads
    return {
        "size": c.whole("image_size"),
        "channels": c.whole("num_channels", default=3),
        "patch": c.whole("patch_size"),
        "dim": c.whole("hidden_size"),
        "depth": c.whole("num_hidden_layers"),
        "heads": c.whole("num_attention_heads"),
        "hidden": c.whole("intermediate_size"),
        "eps": c.number("layer_norm_eps", default=1e-12),
        "ffn": c.chosen("hidden_act", ACTIVATIONS, "gelu"),
        "dropout": c.dropout("hidden_dropout_prob"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    found: Tensors = {}
    for name, t in state.items():
        name = name.removeprefix("vit.")
        if name.startswith("layers."):
            for newer, usual in NEWER.items():
                name = name.replace(newer, usual)
        found[name] = t
    return found


def inward(name: str, t: Tensor, config: Any) -> Tensor:
    if name in ("first.weight", "positions.weight"):
        return t[0]
    return t.flatten(1) if name == "embed.weight" else t


def outward(name: str, t: Tensor, config: Any) -> Tensor:
    if name in ("first.weight", "positions.weight"):
        return t[None]
    square = (config.channels, config.patch, config.patch)
    return t.unflatten(1, square) if name == "embed.weight" else t


def pack(state: Tensors, made: str) -> Tensors:
    return {k if k.startswith("classifier.") else f"vit.{k}": t for k, t in state.items()}


def sized(c: Any, to: str, pool: str) -> dict[str, Any]:
    """The sizes of a model that sees, by the names of theirs."""
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    need(c, to, pool=pool, positions="learned", norm="layer", ffn=tuple(acts), bias=True)
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


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    return sized(c, "ViT", "first") | {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "qkv_bias": True,
    }


def pictures(folder: Path, size: int, channels: int) -> dict[str, Any]:
    """What the task does to pictures, as preprocessor_config.json tells it."""
    where = folder / PREPROCESSOR
    told = read_json(where) if where.exists() else {}
    sides = told.get("size", size)
    sides = list(sides.values()) if isinstance(sides, dict) else [sides]
    if not sides or any(side != size for side in sides):
        raise Mistake(
            f"{where}: size={short(told.get('size'))}: known is the {size} pixels each way of config.json"
        )
    for name, wanted in (("do_resize", True), ("do_rescale", True), ("do_center_crop", False)):
        if (value := told.get(name, wanted)) not in (wanted, None):
            raise Mistake(f"{where}: {name}={short(value)} is not known; known are {wanted}")
    factor = told.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or not math.isclose(factor, 1 / 255, rel_tol=1e-3):
        raise Mistake(f"{where}: rescale_factor={short(factor)} is not known; known are 1/255")
    found: dict[str, Any] = {"size": size, "channels": channels}
    normal = told.get("do_normalize", True) is not False
    for ours, name, plain in (("mean", "image_mean", 0.0), ("std", "image_std", 1.0)):
        values = told.get(name) or HALF[:1] * channels
        numbers = isinstance(values, list) and all(
            isinstance(v, int | float) and abs(v) < 1e6 for v in values
        )
        if not numbers or len(values) != channels or (name == "image_std" and not min(values) > 0):
            raise Mistake(f"{where}: {name} should be {channels} numbers, one for each channel")
        found[ours] = values if normal else [plain] * channels
    return found


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


FAMILY = Family("vit", NAMES, settings, unpack, describe, pack, inward, outward)
