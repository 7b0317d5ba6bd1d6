"""BERT: an encoder that looks both ways and tells which words are hidden. Devlin et al. 2019.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention
from ..layers import FEED_FORWARDS, NORMS, Block, Norm, init_bert
from ..positions import POSITIONS, ALiBi, Relative
from .sizes import check_sizes


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    vocab: int
    context: int = 128
    dim: int = 128
    depth: int = 2
    heads: int = 2
    hidden: int | None = None  # of the feed-forward: its usual multiple of dim
    segments: int = 2  # kinds of text in a row: the first sentence and the second; 0: all is one
    positions: Literal["none", "sinusoidal", "learned", "rotary", "relative"] = "learned"
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-12  # of the norms
    ffn: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "gelu"
    bias: bool = True  # in the blocks; the heads have theirs anyway
    pre: bool = False  # norms before the layers instead of after them, as published
    pooler: Literal["tanh", "relu"] = "tanh"  # relu: as DistilBERT, Sanh et al. 2019
    dropout: float = 0.1
    window: int | None = None  # how many tokens to each side a token looks at: all
    globals: int = 1  # with a window, the first so many tokens look at all, and all look at them: [CLS]

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "context", "dim", "depth", "heads", "hidden", "window")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must divide by heads={self.heads}")
        if self.segments < 0:
            raise ValueError(f"segments={self.segments} must be 0 or more")
        if self.globals < 0:
            raise ValueError(f"globals={self.globals} must be 0 or more")
        if self.window is not None and self.positions == "relative":
            raise ValueError(f"window={self.window} does not go with positions=relative; rotary ones do")


PRESETS: dict[str, dict[str, Any]] = {  # Turc et al. 2019
    "tiny": {"context": 128, "dim": 128, "depth": 2, "heads": 2},
    "mini": {"context": 256, "dim": 256, "depth": 4, "heads": 4},
    "small": {"context": 512, "dim": 512, "depth": 4, "heads": 8},
    "base": {"context": 512, "dim": 768, "depth": 12, "heads": 12},
}
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {  # the masked-word head's f is the feed-forward's
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swiglu": F.gelu,  # which is no function of one vector
}


WIDER = 8  # what the bias adds to a product's width: GPU matrix units want round sizes


class Bert(nn.Module):
    """logits[:, t] scores the token that stands at t, given all of ids, in which t may be hidden.

    With a `window`, long texts cost as much as their length, Beltagy et al. 2020 (Longformer), but that the
    global tokens have no projections of their own.
    """

    def __init__(self, c: BertConfig):
        super().__init__()
        self.config = c
        kind = POSITIONS[c.positions]
        if kind is ALiBi:
            raise ValueError("alibi has distances but no directions: a text would be as its mirror image")
        both_ways = partial(Relative, both_ways=True) if kind is Relative else kind
        norm = self._norm
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.segments = nn.Embedding(c.segments, c.dim) if c.segments else None
        self.positions = both_ways(c.context, c.dim, c.heads)
        self.embed_norm = nn.Identity() if c.pre else norm(c.dim)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(self.block() for _ in range(c.depth))
        self.norm = norm(c.dim) if c.pre else nn.Identity()  # a post-norm layer ends with its own
        self.transform, self.f = nn.Linear(c.dim, c.dim), TRANSFORMS[c.ffn]
        self.transform_norm, self.bias = norm(c.dim), nn.Parameter(torch.zeros(c.vocab))
        self.pooler, self.next = nn.Linear(c.dim, c.dim), nn.Linear(c.dim, 2)
        init_bert(self)

    @property
    def _norm(self) -> Norm:
        made: Any = NORMS[self.config.norm]
        return partial(made, eps=self.config.eps)

    def block(self) -> Block:
        """A new layer, as this model's are."""
        c = self.config
        attn = Attention(c.dim, c.heads, bias=c.bias, dropout=c.dropout, window=c.window, globals=c.globals)
        ffn = FEED_FORWARDS[c.ffn](c.dim, c.hidden, bias=c.bias)
        return Block(c.dim, attn, ffn, norm=self._norm, pre=c.pre, dropout=c.dropout)

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D + WIDER) that turn a hidden vector into logits: the embedding, the bias."""
        bias = F.pad(self.bias[:, None], (0, WIDER - 1))
        return torch.cat([self.embed.weight, bias], dim=1)

    def encode(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        segments: Tensor | None = None,
        blocks: nn.ModuleList | None = None,
    ) -> Tensor:
        """Read texts (B, T), padded on the right where not `real`: a vector for each token.

        `segments` (B, T) tells what each token is part of; without them, all are of the first. Other `blocks`
        may stand for the model's own.
        """
        T = ids.shape[1]
        if T > self.config.context:
            raise ValueError(f"{T} tokens do not fit context={self.config.context}")
        pos, mask = torch.arange(T, device=ids.device), None if real is None else real[:, None, None, :]
        x = self.embed(ids)  # (B, T, D)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)  # (B, T, D)
        elif segments is not None:
            raise ValueError("segments were given, but the model has segments=0")
        x = self.drop(self.embed_norm(self.positions.add(x, pos)))  # (B, T, D)
        turn, bias = self.positions.turn(pos), self.positions.bias(T, T)
        for block in self.blocks if blocks is None else blocks:
            x = block(x, mask=mask, bias=bias, turn=turn)  # (B, T, D)
        x = self.norm(x)  # (B, T, D)
        return x

    def transformed(self, x: Tensor) -> Tensor:
        """norm(f(W x)) of encoded vectors, all or some, and a 1 that meets the bias: logits are a product."""
        y = self.f(self.transform(x)).to(x.dtype)  # which autocast makes another, and norms want one
        y = self.transform_norm(y)  # (..., D)
        y = F.pad(F.pad(y, (0, 1), value=1.0), (0, WIDER - 1))
        return y

    def hidden(self, ids: Tensor, real: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The masked-word head's vectors, from which the logits are one product away."""
        return self.transformed(self.encode(ids, real, segments))

    def forward(self, ids: Tensor, real: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, vocab)"""
        return F.linear(self.hidden(ids, real, segments), self.output)

    def pooled(self, x: Tensor) -> Tensor:
        """tanh(W x₀): one vector for a text, from that of its first token, which is there for this."""
        y = self.pooler(x[:, 0])  # (B, D)
        y = torch.tanh(y) if self.config.pooler == "tanh" else F.relu(y)  # (B, D)
        return y

    def follows(self, x: Tensor) -> Tensor:
        """Does the second sentence of an encoded text follow the first? Logits of yes and of no."""
        y = self.next(self.pooled(x))  # (B, 2)
        return y
