"""A family that is not in the package, in one file: a language model with gated attention.

y = σ(W_g x) ⊙ Attention(x): a gate for each number that attention adds, Qiu et al. 2025. It is written like a
file of `regard/models/`, from the parts of the core.

Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.cache import State, next_positions
from regard.core.layers import Block, FeedForward, Stack, init_gpt2
from regard.core.positions import Rotary
from regard.describe.export import TEXT, Graph, StackParts
from regard.describe.texts import Text
from regard.describe.values import Description
from regard.models.base import Config, LanguageModel, Presets


@dataclass(frozen=True, kw_only=True)
class GatedConfig(Config):
    vocab: int
    context: int = 64
    dim: int = 32
    depth: int = 2
    heads: int = 2
    dropout: float = 0.0

    PRESETS: ClassVar[Presets] = {"tiny": {"dim": 32, "depth": 2, "heads": 2}}


class GatedAttention(Attention):
    """σ(W_g x) ⊙ Attention(x)"""

    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__(dim, heads, causal=True, dropout=dropout)
        self.gate = nn.Linear(dim, dim)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.gate(x).sigmoid() * super().forward(x, *args, **kwargs)

    def describe(self, d: Description, x: str, *args: Any, **kwargs: Any) -> str:
        y, gate = super().describe(d, x, *args, **kwargs), d.linear("gate", self.gate, x)
        text = Text("Gated output", "What attention adds, as far as its gate is open.", "σ(W_g x + b_g) ⊙ y")
        return d.activate("gated", torch.sigmoid, gate, y, self, text=text)


class GatedLM(LanguageModel):
    """logits[:, t] scores the token that follows ids[:, : t + 1]."""

    like = "gpt"  # it suits the tasks that a GPT suits
    output_bias = None

    def __init__(self, c: GatedConfig):
        super().__init__(c)
        self.embed, self.drop = nn.Embedding(c.vocab, c.dim), nn.Dropout(c.dropout)
        self.positions = Rotary(c.context, c.dim, c.heads)
        self.blocks = Stack(
            Block(c.dim, GatedAttention(c.dim, c.heads, c.dropout), FeedForward(c.dim), dropout=c.dropout)
            for _ in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.dim)
        init_gpt2(self)

    @property
    def output(self) -> Tensor:
        return self.embed.weight

    def hidden(self, ids: Tensor, state: State | None = None) -> Tensor:
        self.check_length(ids, state)
        pos, mask = next_positions(state, ids.shape[1], ids.device)
        x = self.drop(self.positions.add(self.embed(ids), pos))  # (B, T, D)
        return self.norm(self.blocks(x, pos, self.positions, mask, state))

    decode = hidden

    def start(self, prompt: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, State]:
        return self.step(prompt, self.blocks.new_state(attention_mask))

    def graphs(self) -> list[Graph]:
        return [Graph("model", self.forward, {"input_ids": TEXT})]

    def stacks(self) -> list[StackParts]:
        return [StackParts("decoder", self.embed, self.positions, self.blocks, self.norm, output=self.output)]
