"""DistilBERT: Sanh et al. 2019. A BERT without kinds of parts, and with relu before its head for classes."""

from typing import Any

from ..checkpoint import Tensors
from . import bert
from .family import ACTIVATIONS, Config, Family, need

NAMES = {  # ours: theirs, without their `distilbert.`
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
    "next": "next",  # which it never has
    "transform": "vocab_transform",
    "transform_norm": "vocab_layer_norm",
    "bias": "vocab_projector.bias",
}
HEADS = ("pre_classifier.", "next.", "vocab_")


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(tie_word_embeddings=True)
    c.left -= {"sinusoidal_pos_embds", "tie_weights_"}  # how the table began; and what they always are
    return {
        "vocab": c.whole("vocab_size"),
        "context": c.whole("max_position_embeddings"),
        "dim": c.whole("dim"),
        "depth": c.whole("n_layers"),
        "heads": c.whole("n_heads"),
        "hidden": c.whole("hidden_dim"),
        "segments": 0,
        "eps": 1e-12,
        "ffn": c.chosen("activation", ACTIVATIONS, "gelu"),
        "pooler": "relu",
        "dropout": c.dropout("dropout"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.removeprefix("distilbert."): t for name, t in state.items()}
    bert.tied(state, "vocab_projector", "vocab_projector.bias", c)
    state.pop("embeddings.position_ids", None)
    return state


def pack(state: Tensors, made: str) -> Tensors:
    kept = {"DistilBertForMaskedLM": "vocab_", "DistilBertForSequenceClassification": "pre_classifier."}
    found = {k: t for k, t in state.items() if not k.startswith(HEADS) or k.startswith(kept.get(made, "-"))}
    heads = (*HEADS, "classifier.", "qa_outputs.")
    bare = made == "DistilBertModel"
    return {k if bare or k.startswith(heads) else f"distilbert.{k}": t for k, t in found.items()}


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    need(c, "DistilBERT", positions="learned", norm="layer", ffn=tuple(acts), bias=True, pre=False)
    need(c, "DistilBERT", window=None, eps=1e-12, segments=0)
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
