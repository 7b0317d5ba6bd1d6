"""Captions for pictures: an encoder makes vectors of regions, a decoder looks at them for every word.

Shapes: B batch, C channels, N pixels each way, S regions, T words, D width.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention
from ..cache import Fixed, Growing, State, onward
from ..layers import FEED_FORWARDS, Block, init_xavier
from ..positions import Learned, Sinusoidal
from ..recurrent import Decoder, Look, RecurrentState, init_recurrent
from .cnn import Convs, EfficientNet
from .sizes import check_sizes
from .vit import ViT, ViTConfig


@dataclass(frozen=True, kw_only=True)
class CaptionerConfig:
    vocab: int
    size: int = 32  # pixels of a picture, each way
    channels: int = 3
    context: int = 64  # the longest caption
    encoder: Literal["cnn", "vit", "efficientnet"] = "cnn"
    decoder: Literal["lstm", "transformer"] = "lstm"
    patch: int = 4  # pixels of a region, each way; EfficientNet has its own
    zoom: int = 1  # how many times larger the picture is made before it is looked at
    dim: int = 128
    depth: int = 1  # of the encoder: blocks, of a CNN at each size
    decoder_depth: int = 1
    heads: int = 4  # of Transformers
    dropout: float = 0.1

    def __post_init__(self) -> None:
        sizes = "vocab", "size", "channels", "context", "patch", "zoom", "dim", "depth", "decoder_depth"
        check_sizes(self, *sizes, "heads")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must divide by heads={self.heads}")
        if self.encoder == "cnn" and (self.patch < 2 or self.patch & (self.patch - 1)):
            raise ValueError(f"patch={self.patch}: a CNN halves pictures; give 2, 4, 8, ...")

    @property
    def side(self) -> int:
        """Regions each way."""
        region = EfficientNet.stride if self.encoder == "efficientnet" else self.patch
        return -(-self.size * self.zoom // region)


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"context": 64, "dim": 64, "depth": 1, "decoder_depth": 1, "heads": 4},
    "small": {"context": 64, "dim": 256, "depth": 2, "decoder_depth": 2, "heads": 4},
    "base": {"context": 64, "dim": 512, "depth": 2, "decoder_depth": 3, "heads": 8},
}


class Regions(nn.Module):
    """A picture's regions, row by row; each knows where it is: what is averaged later has lost its place."""

    def __init__(self, c: CaptionerConfig):
        super().__init__()
        if c.encoder == "efficientnet" and c.channels != 3:
            raise ValueError(f"channels={c.channels}: EfficientNet reads pictures in colour; give 3")
        sizes = {name: getattr(c, name) for name in ("channels", "patch", "dim", "depth", "heads", "dropout")}
        self.net: nn.Module = (
            EfficientNet()
            if c.encoder == "efficientnet"
            else ViT(ViTConfig(size=c.size * c.zoom, pool="mean", **sizes))
            if c.encoder == "vit"
            else Convs(c.channels, c.dim, c.patch.bit_length() - 1, c.depth)
        )
        self.project = nn.Linear(EfficientNet.width if c.encoder == "efficientnet" else c.dim, c.dim)
        self.zoom = c.zoom
        self.norm, self.drop = nn.LayerNorm(c.dim), nn.Dropout(c.dropout)
        self.positions = Learned(c.side**2, c.dim, c.heads)

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels if pixels.is_floating_point() else pixels / 255  # (B, C, N, N)
        x = ((255 * x - 127) / 128).to(self.project.weight.dtype)  # (B, C, N, N)
        if self.zoom > 1:
            x = F.interpolate(x, scale_factor=self.zoom, mode="bilinear")
        x = self.project(self.net(x))  # (B, S, D)
        pos = torch.arange(x.shape[1], device=x.device)
        x = self.drop(self.norm(self.positions.add(x, pos)))  # (B, S, D)
        return x


class Gated(Look):
    """β c, where β = σ(W h) says how much the picture counts for this word, Xu et al. 2015, 4.2.1."""

    def __init__(self, dim: int):
        super().__init__("additive", dim)
        self.gate = nn.Linear(dim, 1)

    def forward(self, q: Tensor, state: RecurrentState) -> Tensor:
        return self.gate(q).sigmoid() * super().forward(q, state)


class Soft(Decoder):
    """LSTM with soft attention over regions, Xu et al. 2015; it starts from their mean, section 3.1.2."""

    def __init__(self, c: CaptionerConfig):
        super().__init__("lstm", "additive", c.dim, c.decoder_depth, dropout=c.dropout)
        self.look = Gated(c.dim)
        self.first = nn.Linear(c.dim, 2 * c.decoder_depth * c.dim)

    def begin(self, regions: Tensor) -> RecurrentState:
        return RecurrentState((), regions)

    def forward(self, y: Tensor, state: RecurrentState) -> Tensor:
        if not state.hidden:
            first = torch.tanh(self.first(state.source.mean(1)))
            h, c = first.unflatten(1, (2, -1, y.shape[-1])).permute(1, 2, 0, 3).contiguous()
            state.hidden = h, c
        return super().forward(y, state)


@dataclass
class CaptionState(State):
    regions: Tensor | None = None  # until the layers have their own views of them


class Blocks(nn.Module):
    """The Transformer's decoder, Vaswani et al. 2017, with norms before the layers."""

    def __init__(self, c: CaptionerConfig):
        super().__init__()
        self.positions, self.scale = Sinusoidal(c.context, c.dim, c.heads), math.sqrt(c.dim)

        def attention(causal: bool) -> Attention:
            return Attention(c.dim, c.heads, causal=causal, dropout=c.dropout)

        self.blocks = nn.ModuleList(
            Block(c.dim, attention(True), FEED_FORWARDS["gelu"](c.dim), attention(False), dropout=c.dropout)
            for _ in range(c.decoder_depth)
        )
        self.norm = nn.LayerNorm(c.dim)

    def begin(self, regions: Tensor) -> CaptionState:
        own, cross = [Growing() for _ in self.blocks], [Fixed() for _ in self.blocks]
        return CaptionState(own, source=cross, regions=regions)

    def forward(self, y: Tensor, state: CaptionState) -> Tensor:
        pos, mask = onward(state, y.shape[1], y.device)
        regions, state.regions = state.regions, None
        x = self.positions.add(self.scale * y, pos)  # (B, T, D)
        for block, own, cross in zip(self.blocks, state.layers, state.source, strict=True):
            x = block(x, regions, mask=mask, cache=own, source_cache=cross)  # (B, T, D)
        x = self.norm(x)  # (B, T, D)
        return x


class Captioner(nn.Module):
    """logits[:, t] scores the word that follows target[:, : t + 1], given the picture."""

    def __init__(self, c: CaptionerConfig):
        super().__init__()
        self.config = c
        self.encoder = Regions(c)
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.drop = nn.Dropout(c.dropout)
        self.decoder = Soft(c) if c.decoder == "lstm" else Blocks(c)
        init_xavier(self)
        init_recurrent(self)

    @property
    def blocks(self) -> list[nn.Module]:
        """What sees and what writes: a smaller rate for the first, or none, spares weights made elsewhere."""
        return [self.encoder.net, self.decoder]

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D) that turn a hidden vector into logits."""
        return self.embed.weight

    def decode(self, target: Tensor, state: Any) -> Tensor:
        """The decoder's vectors after reading more of the caption; the state moves on."""
        if (length := state.length + target.shape[1]) > self.config.context:
            raise ValueError(f"{length} tokens do not fit context={self.config.context}")
        y = self.drop(self.embed(target))  # (B, T, D)
        x = self.drop(self.decoder(y, state))  # (B, T, D)
        return x

    def hidden(self, source: Tensor, target: Tensor, real: None = None) -> Tensor:
        """The last vectors, from which the logits are one product away."""
        return self.decode(target, self.decoder.begin(self.encoder(source)))

    def forward(self, source: Tensor, target: Tensor, real: None = None) -> Tensor:
        """uint8 (B, C, N, N), (B, T) -> (B, T, vocab)"""
        return F.linear(self.hidden(source, target), self.output)

    def start(self, source: Tensor, prompt: Tensor, real: None = None) -> tuple[Tensor, Any]:
        """Look at pictures once and read how captions begin (B, T); the next token's logits (B, vocab)."""
        state = self.decoder.begin(self.encoder(source))
        return F.linear(self.decode(prompt, state)[:, -1], self.output), state

    def step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one more token (B, 1) of each row; the next one's logits (B, vocab)."""
        return F.linear(self.decode(ids, state)[:, -1], self.output), state
