"""Megatron-BERT: Shoeybi et al. 2020. A BERT with norms before the layers and after the last one, and none
after the embeddings."""

from typing import Any

from regard.convert.huggingface import bert
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family
from regard.files.tensors import Tensors
from regard.models import Bert

NAMES = {ours: theirs for ours, theirs in bert.NAMES.items() if ours != "embed_norm"} | {
    "blocks.*.attn.norm": "encoder.layer.*.attention.ln",
    "blocks.*.ffn.norm": "encoder.layer.*.ln",
    "norm": "encoder.ln",
}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    return bert.settings(c, state) | {"pre": True}


def describe(model: Bert) -> dict[str, Any]:
    return bert.describe(model, "Megatron-BERT", pre=True) | {"model_type": "megatron-bert"}


FAMILY = Family("bert", NAMES, settings, bert.unpack, describe, bert.pack, heads=bert.HEADS)
