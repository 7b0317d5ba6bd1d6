"""The Transformer: an encoder reads the source, a decoder writes the target. Vaswani et al. 2017.

Shapes: B batch, S source tokens, T target tokens, D width.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention
from ..cache import Fixed, Growing, State, onward
from ..layers import FEED_FORWARDS, NORMS, Block, init_xavier
from ..positions import POSITIONS, ALiBi, Relative, Rotary
from .sizes import check_sizes


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    vocab: int  # of the source
    target_vocab: int | None = None  # the source's, and all share one embedding
    context: int = 128  # the longest source, and the longest target
    dim: int = 128
    depth: int = 4  # of the encoder
    decoder_depth: int | None = None  # as the encoder's
    heads: int = 4
    kv_heads: int | None = None  # as many as heads
    head_dim: int | None = None  # of a head: dim / heads
    hidden: int | None = None  # of the feed-forward: its usual multiple of dim
    positions: Literal["none", "sinusoidal", "learned", "rotary", "relative"] = "sinusoidal"
    norm: Literal["layer", "rms"] = "layer"
    ffn: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = "relu"
    bias: bool = True
    pre: bool = False  # norms before the layers instead of after them, as published
    tied: bool = True  # the output layer is the target's embedding, transposed
    output_bias: bool = False  # in the output layer
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "target_vocab", "context", "dim", "depth", "decoder_depth")
        check_sizes(self, "heads", "kv_heads", "head_dim", "hidden")
        if self.dim % self.heads and self.head_dim is None:
            raise ValueError(f"dim={self.dim} must divide by heads={self.heads}")


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"context": 128, "dim": 128, "depth": 4, "heads": 4},
    "small": {"context": 256, "dim": 256, "depth": 6, "heads": 4},
    "base": {"context": 512, "dim": 512, "depth": 6, "heads": 8},
    "big": {"context": 512, "dim": 1024, "depth": 6, "heads": 16, "dropout": 0.3},
}


class Transformer(nn.Module):
    """logits[:, t] scores the token that follows target[:, : t + 1], given the whole source."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.target_embed = None if c.target_vocab is None else nn.Embedding(c.target_vocab, c.dim)
        kind = POSITIONS[c.positions]
        if kind is ALiBi:
            raise ValueError("alibi has distances but no directions: a source would be as its mirror image")
        both_ways = partial(Relative, both_ways=True) if kind is Relative else kind
        width = c.heads * c.head_dim if kind is Rotary and c.head_dim else c.dim  # of what is turned
        self.encoder_positions = both_ways(c.context, width, c.heads)
        self.decoder_positions = kind(c.context, width, c.heads)
        self.drop = nn.Dropout(c.dropout)
        more: dict[str, Any] = {"head_dim": c.head_dim, "bias": c.bias, "dropout": c.dropout}
        attention = partial(Attention, c.dim, c.heads, c.kv_heads, **more)

        def block(cross: Attention | None = None) -> Block:
            ffn = FEED_FORWARDS[c.ffn](c.dim, c.hidden, bias=c.bias)
            attn = attention(causal=cross is not None)
            return Block(c.dim, attn, ffn, cross, norm=NORMS[c.norm], pre=c.pre, dropout=c.dropout)

        self.encoder = nn.ModuleList(block() for _ in range(c.depth))
        self.decoder = nn.ModuleList(block(attention()) for _ in range(c.decoder_depth or c.depth))
        last = NORMS[c.norm] if c.pre else nn.Identity  # a post-norm layer ends with its own
        self.encoder_norm, self.decoder_norm = last(c.dim), last(c.dim)
        vocab = c.target_vocab or c.vocab
        self.head = None if c.tied else nn.Linear(c.dim, vocab, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(vocab)) if c.output_bias else None
        init_xavier(self)

    @property
    def blocks(self) -> list[nn.Module]:
        """Every layer, in the order of computing."""
        return [*self.encoder, *self.decoder]

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D) that turn a hidden vector into logits; a bias is one more column."""
        W = self._output
        return W if self.output_bias is None else torch.cat([W, self.output_bias[:, None]], dim=1)

    @property
    def _output(self) -> Tensor:
        return (self.target_embed or self.embed).weight if self.head is None else self.head.weight

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) of the decoder's last vectors -> (..., vocab)"""
        return F.linear(x, self._output, self.output_bias)

    def encode(self, source: Tensor, real: Tensor | None = None) -> Tensor:
        """Read sources (B, S), padded on the right where not `real`: the encoder's vectors."""
        S = self._fits(source.shape[1])
        pos, mask = torch.arange(S, device=source.device), _over_keys(real)
        x = math.sqrt(self.config.dim) * self.embed(source)  # (B, S, D)
        x = self.drop(self.encoder_positions.add(x, pos))  # (B, S, D)
        turn, bias = self.encoder_positions.turn(pos), self.encoder_positions.bias(S, S)
        for block in self.encoder:
            x = block(x, mask=mask, bias=bias, turn=turn)  # (B, S, D)
        x = self.encoder_norm(x)  # (B, S, D)
        return x

    def decode(
        self,
        target: Tensor,
        encoded: Tensor | None = None,
        real: Tensor | None = None,
        state: State | None = None,
    ) -> Tensor:
        """The decoder's last vectors, given the encoder's; a state that has seen these stands for them."""
        past, T = state.length if state else 0, target.shape[1]
        end = self._fits(past + T)
        pos, mask = onward(state, T, target.device)
        look = _over_keys(state.source_real if state else real)
        x = math.sqrt(self.config.dim) * (self.target_embed or self.embed)(target)  # (B, T, D)
        x = self.drop(self.decoder_positions.add(x, pos))  # (B, T, D)
        turn, bias = self.decoder_positions.turn(pos), self.decoder_positions.bias(T, end)
        for i, block in enumerate(self.decoder):
            own, cross = (state.layers[i], state.source[i]) if state else (None, None)
            caches: dict[str, Any] = {"cache": own, "source_cache": cross}
            x = block(x, encoded, look, mask=mask, bias=bias, turn=turn, **caches)  # (B, T, D)
        x = self.decoder_norm(x)  # (B, T, D)
        return x

    def hidden(self, source: Tensor, target: Tensor, real: Tensor | None = None) -> Tensor:
        """The last layer's vectors, from which the logits are one product away."""
        x = self.decode(target, self.encode(source, real), real)
        return x if self.output_bias is None else F.pad(x, (0, 1), value=1.0)  # meets the bias

    def forward(self, source: Tensor, target: Tensor, real: Tensor | None = None) -> Tensor:
        """(B, S), (B, T) -> (B, T, vocab)"""
        return self.logits(self.decode(target, self.encode(source, real), real))

    def start(self, source: Tensor, prompt: Tensor, real: Tensor | None = None) -> tuple[Tensor, State]:
        """Read sources (B, S) once and how targets begin (B, T); the next token's logits (B, vocab)."""
        if real is not None and not real[:, 0].all():
            raise ValueError("sources of unequal length are padded on the right; each begins with a real one")
        layers = [Growing() for _ in self.decoder]
        state = State(layers, source=[Fixed() for _ in self.decoder], source_real=real)
        x = self.decode(prompt, self.encode(source, real), state=state)  # (B, T, D)
        return self.logits(x[:, -1]), state

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one more token (B, 1) of each row; the next one's logits (B, vocab)."""
        x = self.decode(ids, state=state)  # (B, T, D)
        return self.logits(x[:, -1]), state

    def _fits(self, length: int) -> int:
        if length > self.config.context:
            raise ValueError(f"{length} tokens do not fit context={self.config.context}")
        return length


def _over_keys(real: Tensor | None) -> Tensor | None:
    return None if real is None else real[:, None, None, :]
