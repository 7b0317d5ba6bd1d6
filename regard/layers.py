"""The parts of a block, its wiring, and the weights a model starts from.

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

from .attention import Attention
from .cache import Cache

Norm = Callable[[int], nn.Module]
NORMS: dict[str, Norm] = {"layer": nn.LayerNorm, "rms": partial(nn.RMSNorm, eps=1e-6)}


class FeedForward(nn.Module):
    """W₂ f(W₁ x), the same at every position, Vaswani et al. 2017, eq. 2."""

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        f: Callable[[Tensor], Tensor] = F.relu,
        bias: bool = True,
    ):
        super().__init__()
        hidden = hidden or 4 * dim
        self.up, self.down, self.f = nn.Linear(dim, hidden, bias), nn.Linear(hidden, dim, bias), f

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.f(self.up(x)))


class SwiGLU(nn.Module):
    """W₂(silu(W₁ x) ⊙ W₃ x), Shazeer 2020, eq. 6; two thirds as wide, so as many weights as FeedForward.

    With gelu for silu it is GEGLU.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        f: Callable[[Tensor], Tensor] = F.silu,
        bias: bool = False,
    ):
        super().__init__()
        hidden = hidden or 64 * round(8 * dim / 3 / 64) or 64
        self.gate, self.up = (nn.Linear(dim, hidden, bias) for _ in "13")
        self.down, self.f = nn.Linear(hidden, dim, bias), f

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.f(self.gate(x)) * self.up(x))


GELU_TANH = partial(F.gelu, approximate="tanh")  # GPT-2's approximation
FEED_FORWARDS: dict[str, Callable[..., nn.Module]] = {
    "relu": FeedForward,
    "gelu": partial(FeedForward, f=F.gelu),
    "gelu_tanh": partial(FeedForward, f=GELU_TANH),
    "silu": partial(FeedForward, f=F.silu),
    "swiglu": SwiGLU,
    "geglu": partial(SwiGLU, f=GELU_TANH),
}


class Skip(nn.Module):
    """A share of the rows is left out in training, whole: stochastic depth, Huang et al. 2016, eq. 2."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(len(x), 1, 1, device=x.device) >= self.share
        return x * kept.to(x.dtype) / (1 - self.share)


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) as first published (pre=False)."""

    def __init__(self, dim: int, f: nn.Module, norm: Norm, pre: bool, dropout: float, skip: float = 0.0):
        super().__init__()
        self.f, self.norm, self.pre = f, norm(dim), pre
        self.drop = nn.Sequential(nn.Dropout(dropout), Skip(skip)) if skip else nn.Dropout(dropout)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.pre:
            return x + self.drop(self.f(self.norm(x), *args, **kwargs))
        return self.norm(x + self.drop(self.f(x, *args, **kwargs)))


class Block(nn.Module):
    """One layer: attend to yourself, then (a decoder) to the source, then think."""

    def __init__(
        self,
        dim: int,
        attn: Attention,
        ffn: nn.Module,
        cross: Attention | None = None,
        *,
        norm: Norm = nn.LayerNorm,
        pre: bool = True,
        dropout: float = 0.0,
        skip: float = 0.0,
    ):
        super().__init__()
        wrap = partial(Residual, norm=norm, pre=pre, dropout=dropout, skip=skip)
        self.attn, self.ffn = wrap(dim, attn), wrap(dim, ffn)
        self.cross = wrap(dim, cross) if cross else None

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        source_cache: Cache | None = None,
        **self_attn: Any,
    ) -> Tensor:
        x = self.attn(x, cache=cache, **self_attn)  # (B, T, D)
        if self.cross is not None:
            x = self.cross(x, source, mask=source_mask, cache=source_cache)  # (B, T, D)
        x = self.ffn(x)  # (B, T, D)
        return x


# Where training starts, family by family. Each walks over a whole model; norms keep their ones and zeros.


def _weights(model: nn.Module) -> list[nn.Linear | nn.Embedding]:
    """Every linear layer and embedding, with biases set to zero."""
    found = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)]
    for m in found:
        if isinstance(m, nn.Linear) and m.bias is not None:
            init.zeros_(m.bias)
    return found


def init_gpt2(model: nn.Module, std: float = 0.02) -> None:
    """N(0, 0.02²), and 1/√N of that where a residual branch ends, N such branches; Radford et al. 2019."""
    ends = [m.out if isinstance(m, Attention) else m.down for m in model.modules() if _is_branch(m)]
    for m in _weights(model):
        init.normal_(m.weight, std=std / math.sqrt(len(ends)) if m in ends else std)


def init_xavier(model: nn.Module) -> None:
    """Uniform by fan-in and fan-out; embeddings N(0, 1/D), for they are scaled by √D; Vaswani et al. 2017."""
    for m in _weights(model):
        if isinstance(m, nn.Embedding):
            init.normal_(m.weight, std=m.embedding_dim**-0.5)
        else:
            init.xavier_uniform_(m.weight)


def init_bert(model: nn.Module, std: float = 0.02) -> None:
    """A normal distribution cut off at two deviations, Devlin et al. 2019."""
    for m in _weights(model):
        init.trunc_normal_(m.weight, std=std, a=-2 * std, b=2 * std)


def _is_branch(m: nn.Module) -> bool:
    return isinstance(m, Attention | FeedForward | SwiGLU)
