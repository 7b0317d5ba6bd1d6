"""ELMo: vectors of words in context, from two language models, forwards and backwards. Peters et al. 2018.

Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import Mask
from regard.core.recurrent import Encoder, init_recurrent
from regard.describe import export, parts
from regard.models.base import LanguageModel, Parts, Presets, TextConfig


@dataclass(frozen=True, kw_only=True)
class ElmoConfig(TextConfig):
    segments: ClassVar[int] = 0
    PRESETS: ClassVar[Presets] = {
        "tiny": {"context": 128, "dim": 128},
        "small": {"context": 256, "dim": 256},
        "base": {"context": 512, "dim": 1024},
    }


class LayerMix(nn.Module):
    """γ Σ_j s_j h_j, s = softmax(w), eq. 1: the layers as a task uses them; the task learns γ and w."""

    def __init__(self, layers: int):
        super().__init__()
        self.w, self.gamma = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(1))

    def forward(self, *layers: Tensor) -> Tensor:
        return self.gamma * sum(s * h for s, h in zip(self.w.softmax(0), layers, strict=True))


class Elmo(LanguageModel):
    """logits[:, t] scores the token at t, given those before it and those after it, but not itself.

    One LSTM layer reads forwards and one backwards, with half of the width each: a second layer on both
    would see the token that it predicts.
    """

    like = "bert"  # has the inputs of a BERT
    output_bias = property(lambda self: self.bias)

    def __init__(self, c: ElmoConfig):
        super().__init__(c)
        self.encoder = Encoder("lstm", c.dim, 1)
        self.encoder.bridge = None  # there is no decoder
        self.sides = nn.Linear(c.dim, c.dim, bias=False)
        self.mix = LayerMix(2)
        self.bias, self.next = nn.Parameter(torch.zeros(c.vocab)), nn.Linear(c.dim, 2)
        self.blocks: list[nn.Module] = [self.encoder]
        init_recurrent(self)

    def layers(self, ids: Tensor, attention_mask: Mask = None) -> tuple[Tensor, Tensor]:
        """The embeddings, and the states [→h; ←h] of both directions."""
        self.check_length(ids)
        x = self.drop(self.embed(ids))  # (B, T, D)
        return x, self.encoder(x, attention_mask)[0]

    def neighbours(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The neighbouring states that have not read the token: →h_{t-1} and ←h_{t+1}; 0 at the ends."""
        left, right = self.drop(states).chunk(2, dim=-1)
        return F.pad(left, (0, 0, 1, -1)), F.pad(right, (0, 0, -1, 1))

    def both_sides(self, states: Tensor) -> Tensor:
        """The logits of the two language models add up, as if their predictions were multiplied."""
        return self.sides(torch.cat(self.neighbours(states), dim=-1))  # (B, T, D)

    def each_side(self, states: Tensor) -> list[Tensor]:
        """The final hidden states of the two language models, before the output layer that they share."""
        before, after = self.neighbours(states)
        zeros = torch.zeros_like(before)
        return [self.sides(torch.cat(pair, dim=-1)) for pair in ((before, zeros), (zeros, after))]

    def hidden(self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None) -> Tensor:
        """The final hidden states of both together, before the output layer."""
        return self.both_sides(self.layers(ids, attention_mask)[1])  # (B, T, D)

    def encode(self, ids: Tensor, attention_mask: Mask = None, segments: Tensor | None = None) -> Tensor:
        """The vectors of the tokens in their context (B, T, D): a mixture of the layers."""
        if segments is not None:
            raise ValueError("segments were given, but the model has segments=0")
        return self.mix(*self.layers(ids, attention_mask))

    def pooled(self, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """The vector of a text: that of its first token, [CLS], which the backward layer reads last."""
        return x[:, 0]

    def next_sentence(self, x: Tensor) -> Tensor:
        return self.next(self.pooled(x))  # (B, 2)

    def unused_by_head(self, pooled: bool) -> Parts:
        return [self.sides, self.bias, self.next]

    describe, describe_pooled, graphs = parts.elmo, parts.pooled_token, export.text_graphs
