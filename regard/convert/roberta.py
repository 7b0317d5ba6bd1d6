"""RoBERTa: Liu et al. 2019. A BERT whose positions are counted from behind the padding's number, and whose
texts have one kind of part. It goes out as the BERT that it then is."""

from typing import Any

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


FAMILY = Family("bert", NAMES, settings, unpack, bert.describe, heads=("pooler.", "next.", "lm_head."))
