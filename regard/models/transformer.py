"""The Transformer: an encoder reads the source, a decoder writes the target. Vaswani et al. 2017.

Shapes: B batch, S source tokens, T target tokens, D width.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.core.cache import Mask, State, next_positions, over_keys
from regard.core.layers import Stack, init_xavier, make_block, make_norm
from regard.core.positions import make_positions
from regard.describe import export
from regard.models.base import BlocksConfig, EncoderDecoder, Presets, TextConfig


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlocksConfig, TextConfig):
    target_vocab: int | None = None  # default: the source's, and all share one embedding
    decoder_depth: int | None = None  # default: depth
    decoder_heads: int | None = None  # default: heads
    kv_heads: int | None = None  # default: heads
    head_dim: int | None = None  # default: dim / heads
    decoder_hidden: int | None = None  # default: hidden
    positions: Literal["none", "sinusoidal", "learned", "rotary", "relative"] = "sinusoidal"
    ffn: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "relu"
    pre: bool = False  # norms before the layers instead of after them, as published
    tied: bool = True  # the output layer has the target embedding's weights
    output_bias: bool = False  # in the output layer

    PRESETS: ClassVar[Presets] = {
        "tiny": {"context": 128, "dim": 128, "depth": 4, "heads": 4},
        "small": {"context": 256, "dim": 256, "depth": 6, "heads": 4},
        # Kasai et al. 2021: a shallow decoder writes much faster, and a deep encoder makes up for it
        "deep": {"context": 512, "dim": 512, "depth": 12, "decoder_depth": 1, "heads": 8},
        "base": {"context": 512, "dim": 512, "depth": 6, "heads": 8},
        "big": {"context": 512, "dim": 1024, "depth": 6, "heads": 16, "dropout": 0.3},
    }


class Transformer(EncoderDecoder):
    """logits[:, t] scores the token that follows target[:, : t + 1], given the whole source."""

    def __init__(self, c: TransformerConfig):
        super().__init__(c)
        d = replace(c, heads=c.decoder_heads or c.heads, hidden=c.decoder_hidden or c.hidden)
        self.encoder_positions, self.decoder_positions = make_positions(c, both_ways=True), make_positions(d)
        self.encoder = Stack(make_block(c) for _ in range(c.depth))
        depth = c.decoder_depth or c.depth
        self.decoder = Stack(make_block(d, causal=True, cross=True) for _ in range(depth))
        last = make_norm(c.norm) if c.pre else nn.Identity  # a post-norm block ends with a norm
        self.encoder_norm, self.decoder_norm = last(c.dim), last(c.dim)
        self.head = None if c.tied else nn.Linear(c.dim, c.target_vocab or c.vocab, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(len(self.output))) if c.output_bias else None
        self.blocks = [*self.encoder, *self.decoder]  # every layer, in the order of computation
        init_xavier(self)

    def encode(self, source: Tensor, attention_mask: Mask = None) -> Tensor:
        """The encoder's hidden states of sources (B, S), padded on the right where not `attention_mask`."""
        self.check_length(source)
        pos, _ = next_positions(None, source.shape[1], source.device)
        x = math.sqrt(self.config.dim) * self.embed(source)  # (B, S, D)
        x = self.drop(self.encoder_positions.add(x, pos))  # (B, S, D)
        x = self.encoder(x, pos, self.encoder_positions, over_keys(attention_mask))  # (B, S, D)
        return self.encoder_norm(x)  # (B, S, D)

    def begin(self, source: Tensor, attention_mask: Mask = None) -> State:
        return self.decoder.new_state(None, self.encode(source, attention_mask), attention_mask)

    def decode(self, target: Tensor, state: State) -> Tensor:
        """The decoder's final hidden states of more target tokens; the state is updated."""
        self.check_length(target, state)
        pos, mask = next_positions(state, target.shape[1], target.device)
        x = math.sqrt(self.config.dim) * (self.target_embed or self.embed)(target)  # (B, T, D)
        x = self.drop(self.decoder_positions.add(x, pos))  # (B, T, D)
        x = self.decoder(x, pos, self.decoder_positions, mask, state)  # (B, T, D)
        return self.decoder_norm(x)  # (B, T, D)

    graphs, stacks = export.transformer_graphs, export.transformer_stacks
