"""RoBERTa: Liu et al. 2019. A BERT whose positions are counted from behind the padding's number, and whose
texts have one kind of part."""

import json
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import Tensors
from . import bert
from .bert import LAYER, SEGMENTS
from .family import Config, Family

NAMES = LAYER | {
    "next": "next",  # which it never has
    "transform": "lm_head.dense",
    "transform_norm": "lm_head.layer_norm",
    "bias": "lm_head.bias",
}
POSITIONS = "embeddings.position_embeddings.weight"
SPECIALS = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<mask>": "[MASK]", "<unk>": "[UNK]"}
ROLES = {
    "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>",
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
}  # fmt: skip
HEADS = ("pooler.", "next.", "lm_head.")


def skipped(c: Config) -> int:
    """How many positions no word has."""
    return int(c.number("pad_token_id", default=1)) + 1


def settings(c: Config, state: Tensors) -> dict[str, Any]:
    c.plain(type_vocab_size=1)
    made = bert.settings(c, state) | {"segments": 0}
    if any(name.startswith("lm_head.") for name in state):
        c.plain(hidden_act="gelu")  # as its head has it, whatever the layers have
    return made | {"context": made["context"] - skipped(c)}


def unpack(state: Tensors, c: Config) -> Tensors:
    state = {name.removeprefix("roberta."): t for name, t in state.items()}
    bert.tied(state, "lm_head.decoder", "lm_head.bias", c)
    state.pop("embeddings.position_ids", None)
    for end in "weight", "bias":  # a head for classes has the pooler in it
        for a, b in {"classifier.dense": "pooler.dense", "classifier.out_proj": "classifier"}.items():
            if f"{a}.{end}" in state:
                state[f"{b}.{end}"] = state.pop(f"{a}.{end}")
    if POSITIONS in state:
        state[POSITIONS] = state[POSITIONS].float()[skipped(c) :]
        if SEGMENTS in state and state[SEGMENTS].shape == (1, state[POSITIONS].shape[-1]):
            state[POSITIONS] = state[POSITIONS] + state.pop(SEGMENTS).float()
    return state


# Out


def pads(tokenizer: str | None, config: Any) -> int | None:
    """The padding's number, if a BERT of ours is one of these: its texts are one, and spelt in byte pairs."""
    told = json.loads(tokenizer or "{}")
    named = {token["content"]: token["id"] for token in told.get("added_tokens") or []}
    spelt = told.get("model", {}).get("type") == "BPE" and {"[PAD]", "[CLS]", "[SEP]"} <= named.keys()
    own = (config.segments, config.pooler, config.ffn) == (0, "tanh", "gelu")
    return named["[PAD]"] if spelt and own else None


def leaving(pad: int) -> Family:
    """The family, with positions counted from behind this number."""
    return Family(
        "bert", NAMES, settings, unpack, partial(describe, pad=pad), pack, outward=partial(spaced, pad=pad)
    )


def spaced(name: str, t: Tensor, config: Any, pad: int) -> Tensor:
    return torch.cat([torch.zeros(pad + 1, t.shape[1]), t]) if name == "positions.table.weight" else t


def pack(state: Tensors, made: str) -> Tensors:
    """What their class has, by its names; the pooler is in a head for classes."""
    state[SEGMENTS] = torch.zeros(1, state[POSITIONS].shape[1])
    classes, found = made.endswith("ForSequenceClassification"), Tensors()
    for name, t in state.items():
        if name.startswith("next.") or (name.startswith("lm_head.") and not made.endswith("ForMaskedLM")):
            continue
        if name.startswith("pooler.") and not made.endswith("Model"):
            if classes:
                found[name.replace("pooler", "classifier")] = t
        elif name.startswith("classifier."):
            found[name.replace("classifier", "classifier.out_proj") if classes else name] = t
        elif made.endswith("Model") or name.startswith(("lm_head.", "qa_outputs.")):
            found[name] = t
        else:
            found[f"roberta.{name}"] = t
    return found


def describe(model: Any, pad: int) -> dict[str, Any]:
    found = bert.describe(model)
    positions = found["max_position_embeddings"] + pad + 1
    return found | {"model_type": "roberta", "type_vocab_size": 1, "max_position_embeddings": positions}


FAMILY = Family("bert", NAMES, settings, unpack, bert.describe, heads=HEADS)
