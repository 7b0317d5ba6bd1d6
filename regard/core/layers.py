"""The parts of a block, how they are wired, the stack of blocks, and initial weights.

Shapes: B batch, T tokens, D width.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import init

from regard.core.attention import Attention
from regard.core.cache import CrossKVCache, KVCache, Mask, State
from regard.core.positions import Positions
from regard.describe import parts

Activation = Callable[[Tensor], Tensor]
Norm = Callable[[int], nn.Module]


def make_norm(kind: str, eps: float | None = None) -> Norm:
    """Make a LayerNorm, Ba et al. 2016, or an RMSNorm, Zhang & Sennrich 2019; ε has the usual default."""
    return partial(nn.LayerNorm, eps=eps or 1e-5) if kind == "layer" else partial(nn.RMSNorm, eps=eps or 1e-6)


class FeedForward(nn.Module):
    """W₂ f(W₁ x), the same at every position, Vaswani et al. 2017, eq. 2."""

    def __init__(self, dim: int, hidden: int | None = None, *, f: Activation = F.relu, bias: bool = True):
        super().__init__()
        hidden = hidden or 4 * dim
        self.up, self.down, self.f = nn.Linear(dim, hidden, bias), nn.Linear(hidden, dim, bias), f

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.f(self.up(x)))

    describe = parts.feed_forward


class SwiGLU(nn.Module):
    """W₂(silu(W₁ x) ⊙ W₃ x), Shazeer 2020, eq. 6; GEGLU with gelu for silu.

    It is two thirds as wide as FeedForward, so it has as many weights.
    """

    def __init__(self, dim: int, hidden: int | None = None, *, f: Activation = F.silu, bias: bool = False):
        super().__init__()
        hidden = hidden or 64 * round(8 * dim / 3 / 64) or 64
        self.gate, self.up = (nn.Linear(dim, hidden, bias) for _ in "13")
        self.down, self.f = nn.Linear(hidden, dim, bias), f

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.f(self.gate(x)) * self.up(x))

    describe = parts.feed_forward


GELU_TANH = partial(F.gelu, approximate="tanh")  # GPT-2's approximation
ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": GELU_TANH, "silu": F.silu}
FEED_FORWARDS: dict[str, Callable[..., nn.Module]]
FEED_FORWARDS = {name: partial(FeedForward, f=f) for name, f in ACTIVATIONS.items()}
FEED_FORWARDS |= {"swiglu": SwiGLU, "geglu": partial(SwiGLU, f=GELU_TANH)}


class StochasticDepth(nn.Module):
    """Skip a share of the rows in training, Huang et al. 2016, eq. 2."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.share
        return x * keep.to(x.dtype) / (1 - self.share)


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) as first published (pre=False)."""

    def __init__(
        self, dim: int, f: nn.Module, norm: Norm = nn.LayerNorm, pre: bool = True,
        dropout: float = 0.0, skip: float = 0.0
    ):  # fmt: skip
        super().__init__()
        self.f, self.norm, self.pre = f, norm(dim), pre
        self.drop = nn.Sequential(nn.Dropout(dropout), StochasticDepth(skip)) if skip else nn.Dropout(dropout)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.pre:
            return x + self.drop(self.f(self.norm(x), *args, **kwargs))
        return self.norm(x + self.drop(self.f(x, *args, **kwargs)))

    describe = parts.residual


class Block(nn.Module):
    """One layer: self-attention, then (in a decoder) cross-attention, then a feed-forward network.

    `how` are the settings of their Residuals: norm, pre, dropout, skip.
    """

    def __init__(self, dim: int, attn: Attention, ffn: nn.Module, cross: Attention | None = None, **how: Any):
        super().__init__()
        self.attn, self.ffn = Residual(dim, attn, **how), Residual(dim, ffn, **how)
        self.cross = Residual(dim, cross, **how) if cross else None

    def forward(
        self, x: Tensor, source: Tensor | None = None, source_mask: Mask = None, *,
        source_cache: KVCache | None = None, **self_attn: Any
    ) -> Tensor:  # fmt: skip
        x = self.attn(x, **self_attn)  # (B, T, D)
        if self.cross is not None:
            x = self.cross(x, source, mask=source_mask, cache=source_cache)  # (B, T, D)
        return self.ffn(x)  # (B, T, D)

    describe = parts.block


SIZES = "dim", "heads", "kv_heads", "head_dim", "window", "globals"
ATTENTION = *SIZES, "bias", "qkv_bias", "global_qkv", "dropout"  # the settings of Attention


def make_block(config: Any, *, causal: bool = False, cross: bool = False, **changes: Any) -> Block:
    """Make a block from a model's configuration, with changes; settings that it lacks have their defaults."""
    c = {"ffn": "gelu", "norm": "layer", "bias": True, "eps": None} | vars(config) | changes
    qk_norm = (c["eps"] or 1e-6) if c.get("qk_norm") else None
    attention = partial(Attention, qk_norm=qk_norm, **{name: c[name] for name in ATTENTION if name in c})
    ffn = FEED_FORWARDS[c["ffn"]](c["dim"], c.get("hidden"), bias=c["bias"])
    how = {name: c[name] for name in ("pre", "dropout", "skip") if name in c}
    how["norm"] = make_norm(c["norm"], c["eps"])
    return Block(c["dim"], attention(causal=causal), ffn, attention() if cross else None, **how)


class Stack(nn.ModuleList):
    """Blocks, one after another. They share the mask and the positions; each has its own caches."""

    def forward(
        self, x: Tensor, pos: Tensor | None = None, positions: Positions | None = None,
        mask: Mask = None, state: State | None = None, **more: Any
    ) -> Tensor:  # fmt: skip
        if state is not None and state.run is not None:
            return state.run(self, x, pos, positions, mask)
        shared: dict[str, Any] = {"mask": mask} | more
        if pos is not None and positions is not None:
            T, past = x.shape[1], state.length if state else 0
            shared |= {"rotary": positions.rotary(pos), "bias": positions.bias(T, past + T)}
        for i, block in enumerate(self):
            x = block(x, **shared, **(state.of_layer(i) if state else {}))  # (B, T, D)
        if state is not None:
            state.encoded = None
        return x

    describe = parts.stack

    def new_state(self, mask: Mask = None, encoded: Tensor | None = None, source_mask: Mask = None) -> State:
        """Return the state before the first step; a decoder with cross-attention needs the encoded source."""
        cross = [] if encoded is None else [CrossKVCache() for _ in self]
        return State([KVCache() for _ in self], mask, cross, source_mask, encoded)


# Initial weights, by family. Norms keep their ones and zeros.


def _zero_biases(model: nn.Module) -> list[nn.Linear | nn.Embedding]:
    """Return every linear layer and embedding, with biases set to zero."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)]
    for m in layers:
        if isinstance(m, nn.Linear) and m.bias is not None:
            init.zeros_(m.bias)
    return layers


def init_gpt2(model: nn.Module, std: float = 0.02) -> None:
    """N(0, 0.02²), and 1/√N of that at the ends of the N residual branches, Radford et al. 2019."""
    ends = [m.out for m in model.modules() if isinstance(m, Attention)]
    ends += [m.down for m in model.modules() if isinstance(m, FeedForward | SwiGLU)]
    for m in _zero_biases(model):
        init.normal_(m.weight, std=std / math.sqrt(len(ends)) if m in ends else std)


def init_xavier(model: nn.Module) -> None:
    """Uniform by fan-in and fan-out; embeddings, which are scaled by √D, N(0, 1/D); Vaswani et al. 2017."""
    for m in _zero_biases(model):
        if isinstance(m, nn.Embedding):
            init.normal_(m.weight, std=m.embedding_dim**-0.5)
        else:
            init.xavier_uniform_(m.weight)


def init_bert(model: nn.Module, std: float = 0.02) -> None:
    """A normal distribution cut off at two deviations, Devlin et al. 2019."""
    for m in _zero_biases(model):
        init.trunc_normal_(m.weight, std=std, a=-2 * std, b=2 * std)
