"""Pegasus: Zhang et al. 2020. A Marian with norms before the layers, and one after the last."""

from typing import Any

import torch

from regard.convert.huggingface import marian
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family
from regard.core.positions import sinusoids
from regard.files.tensors import Tensors
from regard.models import Transformer

NAMES = marian.NAMES | {"encoder_norm": "encoder.layer_norm", "decoder_norm": "decoder.layer_norm"}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.ignore("extra_pos_embeddings", "force_bos_token_to_be_generated")  # of their ancestors, never used
    return marian.settings(c, state, pre=True) | {"pre": True}


def describe(model: Transformer) -> dict[str, Any]:
    config = marian.describe(model, "Pegasus", pre=True)
    own = {"model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"]}
    not_theirs = ("decoder_vocab_size", "share_encoder_decoder_embeddings")
    return {key: value for key, value in config.items() if key not in not_theirs} | own


def position_tables(model: Transformer) -> Tensors:
    """Tables of sinusoidal positions, which Pegasus' files contain."""
    c = model.config
    table = sinusoids(torch.arange(c.context), c.dim)[:, marian.dimension_order(c.dim).argsort()]
    return {f"{side}.embed_positions.weight": table.clone() for side in marian.SIDES}


FAMILY = Family(
    "transformer",
    NAMES,
    settings,
    marian.unpack,
    describe,
    marian.pack,
    marian.from_theirs,
    marian.to_theirs,
    extra_tensors=position_tables,
)
