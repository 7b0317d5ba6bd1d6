"""BERT: Devlin et al. 2019."""

from typing import Any

import torch

from ..checkpoint import Tensors
from ..errors import Mistake
from .family import ACTIVATIONS, Config, Family, need

LAYER = {  # ours: theirs, also in a RoBERTa
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
BARE = "BertModel"  # has no prefix before its names


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    c.plain(tie_word_embeddings=True)
    c.left -= {name for name in c.left if name.startswith("pooler_")}  # of the first ones, never used
    return {
        "vocab": c.whole("vocab_size"),
        "context": c.whole("max_position_embeddings"),
        "dim": c.whole("hidden_size"),
        "depth": c.whole("num_hidden_layers"),
        "heads": c.whole("num_attention_heads"),
        "hidden": c.whole("intermediate_size"),
        "segments": c.whole("type_vocab_size", default=2),
        "eps": c.number("layer_norm_eps", default=1e-12),
        "ffn": c.chosen("hidden_act", ACTIVATIONS, "gelu"),
        "dropout": c.dropout("hidden_dropout_prob"),
    }


def unpack(state: Tensors, c: Config) -> Tensors:
    """With or without a prefix, and with the norms' names of TensorFlow or torch."""
    plain: Tensors = {}
    for name, t in state.items():
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        plain[name.replace("LayerNorm.beta", "LayerNorm.bias")] = t
    tied(plain, DECODER, "cls.predictions.bias", c)
    plain.pop("embeddings.position_ids", None)
    return plain


def tied(state: Tensors, decoder: str, bias: str, c: Config) -> None:
    """Removes the copy of the embedding that a head for hidden words may come with."""
    copy = state.pop(f"{decoder}.weight", None)
    if copy is not None and EMBEDDING in state and not torch.equal(copy, state[EMBEDDING]):
        known = "only models that tie them are known"
        raise Mistake(f"{c.weights}: {decoder}.weight is not the embedding; {known}")
    if (t := state.pop(f"{decoder}.bias", None)) is not None:
        state.setdefault(bias, t)


def pack(state: Tensors, made: str) -> Tensors:
    """What their class has, by its names."""
    if SEGMENTS not in state:  # where all of a text is one, the kinds of its parts change nothing
        state[SEGMENTS] = torch.zeros(2, state[EMBEDDING].shape[1])
    heads = {"BertForMaskedLM": ("cls.predictions.",), "BertForPreTraining": ("cls.", "pooler.")}
    kept = heads.get(made, ("pooler.",) if made in (BARE, "BertForSequenceClassification") else ())
    found: Tensors = {}
    for name, t in state.items():
        if name.startswith(("pooler.", "cls.")) and not name.startswith(kept):
            continue
        if made == BARE or name.startswith(("cls.", "classifier.", "qa_outputs.")):
            found[name] = t
        else:
            found[f"bert.{name}"] = t
    return found


def describe(model: Any) -> dict[str, Any]:
    c = model.config
    acts = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    need(c, "BERT", positions="learned", norm="layer", ffn=tuple(acts), bias=True, pre=False, window=None)
    need(c, "BERT", pooler="tanh")
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
