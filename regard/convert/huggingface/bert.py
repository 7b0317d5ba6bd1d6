"""BERT: Devlin et al. 2019."""

from typing import Any

import torch

from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import ACTIVATIONS, Family, encoder_settings, require_settings
from regard.errors import UserError
from regard.files.tensors import Tensors
from regard.models import Bert

LAYER = {  # our names: theirs, also in a RoBERTa
    "blocks.*.attn.f.q": "encoder.layer.*.attention.self.query",
    "blocks.*.attn.f.k": "encoder.layer.*.attention.self.key",
    "blocks.*.attn.f.v": "encoder.layer.*.attention.self.value",
    "blocks.*.attn.f.out": "encoder.layer.*.attention.output.dense",
    "blocks.*.attn.norm": "encoder.layer.*.attention.output.LayerNorm",
    "blocks.*.ffn.f.up": "encoder.layer.*.intermediate.dense",
    "blocks.*.ffn.f.down": "encoder.layer.*.output.dense",
    "blocks.*.ffn.norm": "encoder.layer.*.output.LayerNorm",
    "embed_norm": "embeddings.LayerNorm",
    "embed": "embeddings.word_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "positions.table": "embeddings.position_embeddings",
    "pooler": "pooler.dense",
}
NAMES = LAYER | {
    "next": "cls.seq_relationship",
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "bias": "cls.predictions.bias",
}
EMBEDDING, SEGMENTS = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
DECODER = "cls.predictions.decoder"
HEADS_OF_CLASS = {  # how the name of their class ends: how the names of its heads begin
    "Model": ("pooler.",),
    "ForPreTraining": ("cls.", "pooler."),
    "ForMaskedLM": ("cls.predictions.",),
    "ForNextSentencePrediction": ("cls.seq_relationship.", "pooler."),
    "ForSequenceClassification": ("pooler.",),
}


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    c.require(tie_word_embeddings=True)
    c.ignore(*(key for key in c.unread if key.startswith("pooler_")))  # in the first folders, never used
    return encoder_settings(c) | {
        "vocab": c.size("vocab_size"),
        "context": c.size("max_position_embeddings"),
        "segments": c.size("type_vocab_size", default=2),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    """Remove the prefix, if there is one, and rename norms from TensorFlow."""
    tensors: Tensors = {}
    for name, t in state.items():
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        tensors[name.replace("LayerNorm.beta", "LayerNorm.bias")] = t
    remove_decoder(tensors, DECODER, "cls.predictions.bias", c)
    tensors.pop("embeddings.position_ids", None)
    return tensors


def remove_decoder(state: Tensors, decoder: str, bias: str, c: Config) -> None:
    """Remove the copy of the embedding that a head for masked words may contain, and rename its bias."""
    copy = state.pop(f"{decoder}.weight", None)
    if copy is not None and EMBEDDING in state and not torch.equal(copy, state[EMBEDDING]):
        raise UserError(
            f"{c.weights}: {decoder}.weight is not the embedding; only models that tie them are supported"
        )
    if (t := state.pop(f"{decoder}.bias", None)) is not None:
        state.setdefault(bias, t)


def pack(state: Tensors, architecture: str) -> Tensors:
    """The tensors of Hugging Face's class."""
    if SEGMENTS not in state:  # zeros change nothing
        state[SEGMENTS] = torch.zeros(2, state[EMBEDDING].shape[1])
    own_heads = next((heads for end, heads in HEADS_OF_CLASS.items() if architecture.endswith(end)), ())
    bare = architecture.endswith("Model")  # the only class whose names have no prefix
    tensors: Tensors = {}
    for name, t in state.items():
        if name.startswith(("pooler.", "cls.")) and not name.startswith(own_heads):
            continue
        if bare or name.startswith(("cls.", "classifier.", "qa_outputs.")):
            tensors[name] = t
        else:
            tensors[f"bert.{name}"] = t
    return tensors


def describe(model: Bert, target: str = "BERT", pre: bool = False) -> dict[str, Any]:
    require_settings(model.config, target, window=None, pooler="tanh", embed_dim=None)
    return describe_encoder(model, target, pre)


def describe_encoder(model: Bert, target: str, pre: bool = False) -> dict[str, Any]:
    """The config.json of a BERT, and the keys that related models share with it."""
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    require_settings(c, target, positions="learned", norm="layer", ffn=tuple(acts), bias=True, pre=pre)
    return {
        "model_type": "bert",
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.hidden or 4 * c.dim,
        "type_vocab_size": c.segments or 2,
        "layer_norm_eps": c.eps,
        "hidden_act": acts[c.ffn],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
    }


HEADS = ("pooler.", "cls.seq_relationship.", "cls.predictions.")
FAMILY = Family("bert", NAMES, settings, unpack, describe, pack, heads=HEADS)
