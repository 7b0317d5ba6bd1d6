"""Pegasus: Zhang et al. 2020. A Marian with norms before the layers, and one more after the last."""

from typing import Any

import torch

from ..checkpoint import Tensors
from ..positions import sinusoids
from . import marian
from .family import Config, Family

NAMES = marian.NAMES | {"encoder_norm": "encoder.layer_norm", "decoder_norm": "decoder.layer_norm"}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.left -= {"extra_pos_embeddings", "force_bos_token_to_be_generated"}  # of their ancestors, never used
    return marian.settings(c, state, pre=True) | {"pre": True}


def describe(model: Any) -> dict[str, Any]:
    found = marian.describe(model, "Pegasus", pre=True)
    mine = {"model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"]}
    left = ("decoder_vocab_size", "share_encoder_decoder_embeddings")
    return {key: value for key, value in found.items() if key not in left} | mine


def waves(model: Any) -> Tensors:
    """Its positions, which their files have."""
    c = model.config
    table = sinusoids(torch.arange(c.context), c.dim)[:, marian.order(c.dim).argsort()]
    return {f"{side}.embed_positions.weight": table.clone() for side in marian.SIDES}


FAMILY = Family(
    "transformer",
    NAMES,
    settings,
    marian.unpack,
    describe,
    marian.pack,
    marian.inward,
    marian.outward,
    more=waves,
)
