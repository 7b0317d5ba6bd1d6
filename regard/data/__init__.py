"""Texts, and pairs of them, to batches of token ids: reading, holding out, shuffling; and shards of what is
too large to hold."""

from .corpus import Corpus, corpus, held_out
from .encoding import DataConfig
from .pairs import Buckets, PairConfig, Pairs, in_length_order, text_pairs
from .sampling import Stream, Windows, in_order
from .shards import prepare

__all__ = [
    "Buckets",
    "Corpus",
    "DataConfig",
    "PairConfig",
    "Pairs",
    "Stream",
    "Windows",
    "corpus",
    "held_out",
    "in_length_order",
    "in_order",
    "prepare",
    "text_pairs",
]
