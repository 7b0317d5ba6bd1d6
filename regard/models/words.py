"""Words as vectors, learnt from the company they keep: word2vec. Mikolov et al. 2013.

Shapes: B batch, T words, D width.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    vocab: int
    context: int = 5  # how many words on each side a word is learnt with, at most: the window, c in the paper
    dim: int = 100

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be more than 0")


PRESETS: dict[str, dict[str, Any]] = {"tiny": {"dim": 50}, "small": {"dim": 100}, "base": {"dim": 300}}


class Words(nn.Module):
    """Two vectors a word: what it means, and what it is like to be near it (v and v' in the paper)."""

    def __init__(self, c: WordsConfig):
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.near = nn.Embedding(c.vocab, c.dim)
        self.blocks = nn.ModuleList()  # it has no layers to spread over processes
        with torch.no_grad():
            self.embed.weight.uniform_(-0.5 / c.dim, 0.5 / c.dim)  # as word2vec.c
            self.near.weight.zero_()

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D) that turn a word's vector into logits."""
        return self.near.weight

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)  # (B, T, D)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, vocab): v'ᵀ v of every word and each of these, large where they are neighbours."""
        return F.linear(self.hidden(ids), self.output)
