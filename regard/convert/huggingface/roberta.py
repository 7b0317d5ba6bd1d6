"""RoBERTa: Liu et al. 2019. A BERT whose positions are counted from after the padding token's id, and whose
texts have one segment."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.convert.huggingface import bert
from regard.convert.huggingface.bert import LAYER, SEGMENTS
from regard.convert.huggingface.config import Config
from regard.convert.huggingface.family import Family, remove_prefix, require_settings
from regard.files.tensors import Tensors
from regard.models import Bert

NAMES = LAYER | {
    "next": "next",  # a head that it never has
    "transform": "lm_head.dense",
    "transform_norm": "lm_head.layer_norm",
    "bias": "lm_head.bias",
}
POSITIONS = "embeddings.position_embeddings.weight"
TOKEN_NAMES = {  # theirs: ours
    "<s>": "[CLS]",
    "</s>": "[SEP]",
    "<pad>": "[PAD]",
    "<mask>": "[MASK]",
    "<unk>": "[UNK]",
}
ROLES = {
    "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>",
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
}  # fmt: skip
HEADS = ("pooler.", "next.", "lm_head.")


def unused_positions(c: Config) -> int:
    """The number of positions before the first token's."""
    return int(c.number("pad_token_id", default=1)) + 1


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.require(type_vocab_size=1)
    settings = bert.settings(c, state) | {"segments": 0}
    if any(name.startswith("lm_head.") for name in state):
        c.require(hidden_act="gelu")  # its head has no other activation, for any of the layers
    return settings | {"context": settings["context"] - unused_positions(c)}


def unpack(state: Tensors, c: Config, prefix: str = "roberta.") -> Tensors:
    state = remove_prefix(state, prefix)
    bert.remove_decoder(state, "lm_head.decoder", "lm_head.bias", c)
    state.pop("embeddings.position_ids", None)
    split_classifier(state)
    if POSITIONS in state:
        state[POSITIONS] = state[POSITIONS].float()[unused_positions(c) :]
        if SEGMENTS in state and state[SEGMENTS].shape == (1, state[POSITIONS].shape[-1]):
            state[POSITIONS] = state[POSITIONS] + state.pop(SEGMENTS).float()
    return state


def split_classifier(state: Tensors) -> None:
    """Rename the parts of a head for classes that contains the pooler."""
    for end in "weight", "bias":
        for a, b in {"classifier.dense": "pooler.dense", "classifier.out_proj": "classifier"}.items():
            if f"{a}.{end}" in state:
                state[f"{b}.{end}"] = state.pop(f"{a}.{end}")


# Exporting


def padding_id(tokenizer: str | None, config: Any) -> int | None:
    """The id of the padding token, if a BERT can be a RoBERTa: with byte pairs, and without segments."""
    content = json.loads(tokenizer or "{}")
    ids = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    byte_pairs = content.get("model", {}).get("type") == "BPE" and {"[PAD]", "[CLS]", "[SEP]"} <= ids.keys()
    same_parts = (config.segments, config.pooler, config.ffn) == (0, "tanh", "gelu")
    return ids["[PAD]"] if byte_pairs and same_parts else None


def with_padding(family: Family, pad: int) -> Family:
    """A RoBERTa or Longformer, with positions counted from after this id."""
    shift, describe = partial(shift_positions, pad=pad), partial(family.describe, pad=pad)
    return replace(family, describe=describe, to_theirs=shift)


def shift_positions(name: str, t: Tensor, config: Any, pad: int) -> Tensor:
    return torch.cat([torch.zeros(pad + 1, t.shape[1]), t]) if name == "positions.table.weight" else t


def pack(
    state: Tensors, architecture: str, prefix: str = "roberta.", words: tuple[str, ...] = ("lm_head.",)
) -> Tensors:
    """The tensors of Hugging Face's class, where `words` begins the names of its head for masked words; a
    head for classes contains the pooler."""
    state.setdefault(SEGMENTS, torch.zeros(1, state[POSITIONS].shape[1]))
    classifies, bare = architecture.endswith("ForSequenceClassification"), architecture.endswith("Model")
    tensors = Tensors()
    for name, t in state.items():
        if name.startswith("next.") or (name.startswith(words) and not architecture.endswith("ForMaskedLM")):
            continue
        if name.startswith("pooler.") and not bare:
            if classifies:
                tensors[name.replace("pooler", "classifier")] = t
        elif name.startswith("classifier."):
            tensors[name.replace("classifier", "classifier.out_proj") if classifies else name] = t
        elif bare or name.startswith((*words, "qa_outputs.", "discriminator_predictions.")):
            tensors[name] = t
        else:
            tensors[f"{prefix}{name}"] = t
    return tensors


def describe(model: Bert, pad: int) -> dict[str, Any]:
    require_settings(model.config, "RoBERTa", window=None)
    return describe_encoder(model, pad, "RoBERTa")


def describe_encoder(model: Bert, pad: int, target: str) -> dict[str, Any]:
    config = bert.describe_encoder(model, target)
    positions = config["max_position_embeddings"] + pad + 1
    return config | {"model_type": "roberta", "type_vocab_size": 1, "max_position_embeddings": positions}


FAMILY = Family("bert", NAMES, settings, unpack, describe, pack, heads=HEADS)
