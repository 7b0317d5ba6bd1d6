"""Texts to batches of token ids: reading, holding out, shuffling; and shards of what is too large to hold."""

from .corpus import Corpus, corpus
from .encoding import DataConfig
from .sampling import Stream, Windows, in_order
from .shards import prepare

__all__ = ["Corpus", "DataConfig", "Stream", "Windows", "corpus", "in_order", "prepare"]
