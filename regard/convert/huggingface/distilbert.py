"""DistilBERT: Sanh et al. 2019. A BERT without segments, and with relu in its pooler."""

from typing import Any

from regard.convert.huggingface import bert
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import ACTIVATIONS, Family, require_settings
from regard.files.tensors import Tensors
from regard.models import Bert

NAMES = {  # our names: theirs, without their `distilbert.`
    "embed": "embeddings.word_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "positions.table": "embeddings.position_embeddings",
    "blocks.*.attn.f.q": "transformer.layer.*.attention.q_lin",
    "blocks.*.attn.f.k": "transformer.layer.*.attention.k_lin",
    "blocks.*.attn.f.v": "transformer.layer.*.attention.v_lin",
    "blocks.*.attn.f.out": "transformer.layer.*.attention.out_lin",
    "blocks.*.attn.norm": "transformer.layer.*.sa_layer_norm",
    "blocks.*.ffn.f.up": "transformer.layer.*.ffn.lin1",
    "blocks.*.ffn.f.down": "transformer.layer.*.ffn.lin2",
    "blocks.*.ffn.norm": "transformer.layer.*.output_layer_norm",
    "pooler": "pre_classifier",
    "next": "next",  # a head that it never has
    "transform": "vocab_transform",
    "transform_norm": "vocab_layer_norm",
    "bias": "vocab_projector.bias",
}
HEADS = ("pre_classifier.", "next.", "vocab_")


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(tie_word_embeddings=True)
    c.ignore(
        "sinusoidal_pos_embds", "tie_weights_"
    )  # how positions were initialised; weights are always tied
    return {
        "vocab": c.size("vocab_size"),
        "context": c.size("max_position_embeddings"),
        "dim": c.size("dim"),
        "depth": c.size("n_layers"),
        "heads": c.size("n_heads"),
        "hidden": c.size("hidden_dim"),
        "segments": 0,
        "eps": 1e-12,
        "ffn": c.choice("activation", ACTIVATIONS, "gelu"),
        "pooler": "relu",
        "dropout": c.dropout("dropout"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.removeprefix("distilbert."): t for name, t in state.items()}
    bert.remove_decoder(state, "vocab_projector", "vocab_projector.bias", c)
    state.pop("embeddings.position_ids", None)
    return state


def pack(state: Tensors, architecture: str) -> Tensors:
    heads = {"DistilBertForMaskedLM": "vocab_", "DistilBertForSequenceClassification": "pre_classifier."}
    own_head = heads.get(architecture, "-")
    tensors = {k: t for k, t in state.items() if not k.startswith(HEADS) or k.startswith(own_head)}
    if architecture == "DistilBertModel":
        return tensors
    bare = (*HEADS, "classifier.", "qa_outputs.")
    return {k if k.startswith(bare) else f"distilbert.{k}": t for k, t in tensors.items()}


def describe(model: Bert) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    require_settings(
        c, "DistilBERT", positions="learned", norm="layer", ffn=tuple(acts), bias=True, pre=False
    )
    require_settings(c, "DistilBERT", window=None, eps=1e-12, segments=0)
    return {
        "model_type": "distilbert",
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "dim": c.dim,
        "n_layers": c.depth,
        "n_heads": c.heads,
        "hidden_dim": c.hidden or 4 * c.dim,
        "activation": acts[c.ffn],
        "dropout": c.dropout,
        "attention_dropout": c.dropout,
    }


FAMILY = Family("bert", NAMES, settings, unpack, describe, pack, heads=HEADS)
