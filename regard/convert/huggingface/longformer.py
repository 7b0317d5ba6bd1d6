"""Longformer: Beltagy et al. 2020. A RoBERTa with attention in a window, and with global tokens, which have
their own projections."""

from functools import partial
from typing import Any

from regard.convert.huggingface import roberta
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, require_settings
from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.models import Bert

NAMES = roberta.NAMES | {
    f"blocks.*.attn.f.{name[0]}_global": f"encoder.layer.*.attention.self.{name}_global"
    for name in ("query", "key", "value")
}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(attention_mode="longformer", ignore_attention_mask=False)
    c.ignore("onnx_export")
    settings = roberta.settings(c, state) | {"globals": 0, "global_qkv": True}
    windows = read_windows(c, settings["depth"])
    same = len(set(windows)) == 1
    return settings | {"window": max(windows), "windows": None if same else tuple(windows)}


def read_windows(c: Config, depth: int) -> list[int]:
    """The window of each layer on each side: half of the attention_window, one number or a list."""
    value = c.get("attention_window", default=512)
    both = value if isinstance(value, list) else [value]  # of all layers
    if len(both) != depth and both is value:
        raise UserError(f"{c.path}: attention_window has {len(both)} numbers, but there are {depth} layers")
    for size in both:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2:
            raise c.unknown("attention_window", size, "even numbers from 2 up, one for each layer")
    return [size // 2 for size in both]


# Exporting


def describe(model: Bert, pad: int) -> dict[str, Any]:
    c = model.config
    require_settings(c, "Longformer", globals=0)
    windows = c.windows or [c.window] * c.depth
    theirs = {"model_type": "longformer", "attention_window": [2 * window for window in windows]}
    return roberta.describe_encoder(model, pad, "Longformer") | theirs


unpack, pack = (partial(f, prefix="longformer.") for f in (roberta.unpack, roberta.pack))
FAMILY = Family("bert", NAMES, settings, unpack, describe, pack, heads=roberta.HEADS)
