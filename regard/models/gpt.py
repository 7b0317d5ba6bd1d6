"""GPT: a stack of causal blocks that predicts the next token. Radford et al. 2019; Touvron et al. 2023.

Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from regard.core.cache import Mask, State, next_positions
from regard.core.layers import Stack, init_gpt2, make_block, make_norm
from regard.core.positions import RopeScaling, make_positions
from regard.describe import export
from regard.models.base import BlocksConfig, CausalLM, Presets, TextConfig

GPT2 = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True, "context": 1024}


@dataclass(frozen=True, kw_only=True)
class GPTConfig(BlocksConfig, TextConfig):
    context: int = 64
    kv_heads: int | None = None  # default: heads
    head_dim: int | None = None  # default: dim / heads
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi", "relative"] = "rotary"
    base: float = 10_000.0  # of rotary positions
    rope_scaling: RopeScaling | None = None  # of rotary positions: see `scale_frequencies`
    sliding_window: int | None = None  # how many tokens a token attends to, itself included; default: all
    norm: Literal["layer", "rms"] = "rms"
    eps: float | None = None  # of the norms; default: their usual one
    qk_norm: bool = False  # normalise queries and keys, too
    ffn: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "swiglu"
    bias: bool = False
    qkv_bias: bool | None = None  # of queries, keys and values; default: bias
    tied: bool = True  # the output layer has the embedding's weights
    dropout: float = 0.0

    ALIASES: ClassVar[dict[str, str]] = {"window": "sliding_window", "stretch": "rope_scaling"}
    PRESETS: ClassVar[Presets] = {
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


class GPT(CausalLM):
    """logits[:, t] scores the token that follows ids[:, : t + 1]."""

    def __init__(self, c: GPTConfig):
        super().__init__(c)
        self.positions = make_positions(c)
        window = None if c.sliding_window is None else c.sliding_window - 1
        self.blocks = Stack(make_block(c, causal=True, window=window, globals=0) for _ in range(c.depth))
        self.norm = make_norm(c.norm, c.eps)(c.dim)
        self.head = None if c.tied else nn.Linear(c.dim, c.vocab, bias=False)
        init_gpt2(self)

    def hidden(self, ids: Tensor, state: State | None = None) -> Tensor:
        """The final hidden states, before the output layer; given a state, the tokens continue it."""
        self.check_length(ids, state)
        pos, mask = next_positions(state, ids.shape[1], ids.device)
        x = self.drop(self.positions.add(self.embed(ids), pos))  # (B, T, D)
        x = self.blocks(x, pos, self.positions, mask, state)  # (B, T, D)
        return self.norm(x)  # (B, T, D)

    decode = hidden

    def start(self, prompt: Tensor, attention_mask: Mask = None) -> tuple[Tensor, State]:
        """Read prompts (B, T), padded on the left where the mask is False; the last logits (B, vocab)."""
        if attention_mask is not None and not attention_mask[:, -1].all():
            raise ValueError("prompts of unequal length are padded on the left; the last column must be real")
        return super().step(prompt, self.blocks.new_state(attention_mask))

    def encode(self, ids: Tensor, attention_mask: Mask = None) -> Tensor:
        """The hidden states of texts padded on the right, where causal attention needs no mask."""
        return self.hidden(ids)

    graphs, stacks = export.text_graphs, export.decoder_stacks
