"""ELECTRA: Clark et al. 2020. A BERT that detects replaced words, and a smaller one that fills them in.

Both may have embeddings narrower than their layers.
"""

from dataclasses import replace
from typing import Any

import torch

from regard.convert.huggingface import bert, roberta
from regard.convert.huggingface.bert import EMBEDDING, LAYER, SEGMENTS
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, remove_prefix, require_settings
from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.models import Bert, Electra

NAMES = LAYER | {
    "project": "embeddings_project",
    "next": "next",  # a head that it never has
    "transform": "generator_predictions.dense",
    "transform_norm": "generator_predictions.LayerNorm",
    "bias": "generator_lm_head.bias",
}
GENERATOR = ("generator_predictions.", "generator_lm_head.")
DISCRIMINATOR = {  # their names: ours
    "discriminator_predictions.dense": "transform",
    "discriminator_predictions.dense_prediction": "found",
}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.ignore(*(key for key in c.unread if key.startswith("summary_")))  # of heads that are not supported
    settings = bert.settings(c, state)
    if any(name.startswith(GENERATOR) for name in state):
        c.require(hidden_act="gelu")  # the generator's head has no other, for any activation of the layers
    width = c.size("embedding_size", default=128)
    return settings | {"pooler": "gelu", "embed_dim": None if width == settings["dim"] else width}


def unpack(state: Tensors, c: Config) -> Tensors:
    state = remove_prefix(state, "electra.")
    bert.remove_decoder(state, "generator_lm_head", "generator_lm_head.bias", c)
    state.pop("embeddings.position_ids", None)
    roberta.split_classifier(state)
    return state


def take_discriminator(state: Tensors, c: Config) -> Tensors:
    """Remove the head that detects replaced words, if there is one; returns it by our names."""
    ends = [(theirs, ours, end) for theirs, ours in DISCRIMINATOR.items() for end in ("weight", "bias")]
    head = {f"{b}.{end}": state.pop(f"{a}.{end}") for a, b, end in ends if f"{a}.{end}" in state}
    D = c.size("hidden_size")
    shapes = [(D, D), (D,), (1, D), (1,)]
    if head and [tuple(t.shape) for t in head.values()] != shapes:
        raise UserError(f"{c.weights}: its head does not fit the model of config.json; copy both files again")
    return {name: t.float() for name, t in head.items()}


# Exporting


def describe(model: Bert) -> dict[str, Any]:
    width = model.config.embed_dim or model.config.dim
    require_settings(model.config, "ELECTRA", window=None)
    config = bert.describe_encoder(model, "ELECTRA")
    return config | {"model_type": "electra", "embedding_size": width}


def pack(state: Tensors, architecture: str) -> Tensors:
    if architecture == "ElectraModel":  # has no pooler
        state = {name: t for name, t in state.items() if not name.startswith("pooler.")}
    state.setdefault(SEGMENTS, torch.zeros(2, state[EMBEDDING].shape[1]))
    return roberta.pack(state, architecture, "electra.", GENERATOR)


def discriminator_weights(model: Electra) -> Tensors:
    layers = {theirs: getattr(model, ours) for theirs, ours in DISCRIMINATOR.items()}
    return {f"{name}.{end}": t for name, m in layers.items() for end, t in m.state_dict().items()}


def generator(model: Electra) -> Bert:
    """The small model that fills in words, as a model of its own."""
    blocks = {f"blocks.{name}": t for name, t in model.generator.state_dict().items()}
    shared = {k: t for k, t in model.model.state_dict().items() if not k.startswith("blocks.")}
    require_settings(model.config, "the head of an ELECTRA generator", ffn="gelu")
    own = Bert(replace(model.config, depth=len(model.generator), pooler="gelu"))
    own.load_state_dict(shared | blocks)
    return own


HEADS = ("pooler.", "next.", *GENERATOR)
FAMILY = Family("bert", NAMES, settings, unpack, describe, pack, heads=HEADS)
