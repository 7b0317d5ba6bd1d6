"""GPT: a stack of causal blocks that predicts the next token. Radford et al. 2019; Touvron et al. 2023.

Shapes: B batch, T tokens, S tokens read so far, D width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention, joined
from ..cache import Growing, State, onward
from ..layers import FEED_FORWARDS, NORMS, Block, Norm, init_gpt2
from ..positions import POSITIONS, Positions, Rotary, distances
from .sizes import check_sizes


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    vocab: int
    context: int = 64
    dim: int = 128
    depth: int = 4
    heads: int = 4
    kv_heads: int | None = None  # as many as heads
    head_dim: int | None = None  # of a head: dim / heads
    hidden: int | None = None  # of the feed-forward: its usual multiple of dim
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = "rotary"
    base: float = 10_000.0  # of rotary positions
    stretch: tuple[float, float, float, float] | None = None  # of rotary positions: see `stretched`
    window: int | None = None  # how many tokens a token looks at, the last of which it is itself: all
    norm: Literal["layer", "rms"] = "rms"
    eps: float | None = None  # of the norms: their usual one
    qk_norm: bool = False  # queries and keys are normed, too
    ffn: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "swiglu"
    bias: bool = False
    qkv_bias: bool | None = None  # of queries, keys and values: as all others
    tied: bool = True  # the output layer is the embedding, transposed
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(
            self, "vocab", "context", "dim", "depth", "heads", "kv_heads", "head_dim", "hidden", "window"
        )
        if self.dim % self.heads and self.head_dim is None:
            raise ValueError(f"dim={self.dim} must divide by heads={self.heads}")


GPT2: dict[str, Any] = {
    "positions": "learned",
    "norm": "layer",
    "ffn": "gelu_tanh",
    "bias": True,
    "context": 1024,
}
PRESETS: dict[str, dict[str, Any]] = {
    "pico": {"context": 32, "dim": 16, "depth": 2, "heads": 2},
    "tiny": {"context": 64, "dim": 128, "depth": 4, "heads": 4},
    "mini": {"context": 256, "dim": 384, "depth": 6, "heads": 6},
    "small": {"context": 1024, "dim": 768, "depth": 12, "heads": 12, "kv_heads": 4},
    "medium": {"context": 2048, "dim": 1024, "depth": 24, "heads": 16, "kv_heads": 4},
    "large": {"context": 2048, "dim": 2048, "depth": 28, "heads": 16, "kv_heads": 8, "tied": False},
    "gpt2": {**GPT2, "dim": 768, "depth": 12, "heads": 12},
    "gpt2-medium": {**GPT2, "dim": 1024, "depth": 24, "heads": 16},
    "gpt2-large": {**GPT2, "dim": 1280, "depth": 36, "heads": 20},
    "gpt2-xl": {**GPT2, "dim": 1600, "depth": 48, "heads": 25},
}


class GPT(nn.Module):
    """logits[:, t] scores the token that follows ids[:, : t + 1]."""

    def __init__(self, c: GPTConfig):
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c.vocab, c.dim)
        turned = c.heads * (c.head_dim or c.dim // c.heads)
        self.positions: Positions = (
            Rotary(c.context, turned, c.heads, c.base, c.stretch)
            if c.positions == "rotary"
            else POSITIONS[c.positions](c.context, c.dim, c.heads)
        )
        self.drop = nn.Dropout(c.dropout)
        any_norm: Any = NORMS[c.norm]
        norm: Norm = any_norm if c.eps is None else partial(any_norm, eps=c.eps)
        more: dict[str, Any] = {"head_dim": c.head_dim, "bias": c.bias, "qkv_bias": c.qkv_bias}
        more |= {"qk_norm": (c.eps or 1e-6) if c.qk_norm else None, "dropout": c.dropout}
        self.blocks = nn.ModuleList(
            Block(
                c.dim,
                Attention(c.dim, c.heads, c.kv_heads, causal=True, **more),
                FEED_FORWARDS[c.ffn](c.dim, c.hidden, bias=c.bias),
                norm=norm,
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )
        self.norm = norm(c.dim)
        self.head = None if c.tied else nn.Linear(c.dim, c.vocab, bias=False)
        init_gpt2(self)

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D) that turn a hidden vector into logits."""
        return self.embed.weight if self.head is None else self.head.weight

    def hidden(self, ids: Tensor, state: State | None = None) -> Tensor:
        """The last layer's vectors, from which the logits are one product away."""
        past, T = state.length if state else 0, ids.shape[1]
        S = past + T
        if S > self.config.context:
            raise ValueError(f"{S} tokens do not fit context={self.config.context}")
        pos, mask = onward(state, T, ids.device)
        if self.config.window is not None:
            mask = joined(mask, distances(T, S, ids.device) > -self.config.window)
        x = self.drop(self.positions.add(self.embed(ids), pos))  # (B, T, D)
        turn, bias = self.positions.turn(pos), self.positions.bias(T, S)
        for i, block in enumerate(self.blocks):
            cache = state.layers[i] if state else None
            x = block(x, mask=mask, bias=bias, turn=turn, cache=cache)  # (B, T, D)
        x = self.norm(x)  # (B, T, D)
        return x

    def forward(self, ids: Tensor, state: State | None = None) -> Tensor:
        """(B, T) -> (B, T, vocab)"""
        return F.linear(self.hidden(ids, state), self.output)

    def start(self, prompt: Tensor, real: Tensor | None = None) -> tuple[Tensor, State]:
        """Read prompts (B, T), padded on the left where not `real`; the next token's logits (B, vocab)."""
        if real is not None and not real[:, -1].all():
            raise ValueError("prompts of unequal length are padded on the left; the last column must be real")
        state = State([Growing() for _ in self.blocks], real)
        return F.linear(self.hidden(prompt, state)[:, -1], self.output), state

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one more token (B, 1) of each row; the next one's logits (B, vocab)."""
        return F.linear(self.hidden(ids, state)[:, -1], self.output), state
