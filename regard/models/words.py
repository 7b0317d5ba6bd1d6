"""Word vectors learned from neighbouring words: word2vec. Mikolov et al. 2013.

Shapes: B batch, T words, D width.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard.describe import export, parts
from regard.models.base import Config, LanguageModel, Presets


@dataclass(frozen=True, kw_only=True)
class WordsConfig(Config):
    vocab: int
    context: int = 5  # the largest number of neighbours on each side: the window, c in the paper
    dim: int = 100

    PRESETS: ClassVar[Presets] = {"tiny": {"dim": 50}, "small": {"dim": 100}, "base": {"dim": 300}}


class Word2Vec(LanguageModel):
    """Two vectors for each word: its own, and one as a neighbour (v and v' in the paper).

    The logits of word i, v'_jᵀ v_i for all j, are large where words are neighbours.
    """

    output_bias = None
    output = property(lambda self: self.near.weight)

    def __init__(self, c: WordsConfig):
        super().__init__(c)
        self.near = nn.Embedding(c.vocab, c.dim)
        self.blocks = nn.ModuleList()  # no layers to distribute over processes
        nn.init.uniform_(self.embed.weight, -0.5 / c.dim, 0.5 / c.dim)  # as word2vec.c
        nn.init.zeros_(self.near.weight)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.embed(ids)  # (B, T, D)

    describe, graphs = parts.word_vectors, export.word_graphs
