"""Readers, datasets, sampling, shards, augmentation and synthetic data."""

from regard.data.bucketing import Buckets, in_length_order
from regard.data.corpus import Corpus, load_corpus, load_heldout
from regard.data.encoding import DataConfig
from regard.data.pair_dataset import PairConfig, PairDataset
from regard.data.pairs import read_pairs
from regard.data.shards import prepare
from regard.data.streams import Stream, Windows, in_order

__all__ = [
    "Buckets",
    "Corpus",
    "DataConfig",
    "PairConfig",
    "PairDataset",
    "Stream",
    "Windows",
    "in_length_order",
    "in_order",
    "load_corpus",
    "load_heldout",
    "prepare",
    "read_pairs",
]
