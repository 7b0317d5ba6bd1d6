"""ViT: a picture is a row of patches, read as a text is. Dosovitskiy et al. 2021.

Shapes: B batch, C channels, H height, W width, P side of a patch, N patches, T tokens, D width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention
from ..layers import FEED_FORWARDS, NORMS, Block, Norm, init_bert
from ..positions import sinusoids
from .sizes import check_sizes


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    size: int  # of the pictures that it learns from, in pixels each way
    channels: int
    patch: int = 4
    dim: int = 128
    depth: int = 6
    heads: int = 4
    hidden: int | None = None  # of the feed-forward: its usual multiple of dim
    positions: Literal["none", "sinusoidal", "learned"] = "learned"
    pool: Literal["first", "mean"] = "first"  # what stands for a picture: a token of its own, or all patches
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-6
    ffn: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "gelu"
    bias: bool = True  # in the blocks
    dropout: float = 0.0
    skip: float = 0.0  # the share of pictures that pass by the last block's layers; by earlier ones, fewer

    def __post_init__(self) -> None:
        check_sizes(self, "size", "channels", "patch", "dim", "depth", "heads", "hidden")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must divide by heads={self.heads}")
        if self.positions == "sinusoidal" and self.dim % 4:
            raise ValueError(
                f"dim={self.dim} must divide by 4: waves of rows and columns, each sine and cosine"
            )
        if not 0 <= self.skip < 1:
            raise ValueError(f"skip={self.skip} must be from 0 to less than 1")

    @property
    def context(self) -> int:
        """How many tokens a picture is."""
        return (self.size // self.patch) ** 2 + (self.pool == "first")


PRESETS: dict[str, dict[str, Any]] = {  # the last three: Touvron et al. 2021 (DeiT)
    "tiny": {"dim": 128, "depth": 4, "heads": 4},
    "mini": {"dim": 192, "depth": 12, "heads": 3},
    "small": {"dim": 384, "depth": 12, "heads": 6},
    "base": {"dim": 768, "depth": 12, "heads": 12},
}


class ViT(nn.Module):
    """What the model makes of each patch (B, T, D), after a token that stands for all of them if it has one.

    Pictures of other sizes than the one learnt from are read, too: positions are stretched over them.
    """

    def __init__(self, c: ViTConfig):
        super().__init__()
        if c.size % c.patch:
            raise ValueError(
                f"pictures of {c.size} pixels each way must divide by patch={c.patch}; change either"
            )
        self.config, self.side = c, c.size // c.patch
        any_norm: Any = NORMS[c.norm]
        norm: Norm = partial(any_norm, eps=c.eps)
        self.embed = nn.Linear(c.channels * c.patch**2, c.dim)  # E in the paper
        self.first = nn.Embedding(1, c.dim) if c.pool == "first" else None
        self.positions = nn.Embedding(c.context, c.dim) if c.positions == "learned" else None
        self.drop = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(
            Block(
                c.dim,
                Attention(c.dim, c.heads, bias=c.bias, dropout=c.dropout),
                FEED_FORWARDS[c.ffn](c.dim, c.hidden, bias=c.bias),
                norm=norm,
                dropout=c.dropout,
                skip=c.skip * (i + 1) / c.depth,
            )
            for i in range(c.depth)
        )
        self.norm = norm(c.dim)
        init_bert(self)

    def patches(self, pixels: Tensor) -> Tensor:
        """The grid of patches as a row, each with all its pixels: (B, C, H, W) -> (B, N, C * P * P)."""
        c, (H, W) = self.config, pixels.shape[-2:]
        if pixels.shape[1] != c.channels or H % c.patch or W % c.patch:
            raise ValueError(
                f"pixels {tuple(pixels.shape)}: needed are channels={c.channels}, and sides that divide by "
                f"patch={c.patch}"
            )
        return F.pixel_unshuffle(pixels, c.patch).flatten(2).mT

    def places(self, rows: int, columns: int) -> Tensor | None:
        """A vector for each token of a grid of patches (T, D); the own grid is stretched over another."""
        c, n, stretched = self.config, self.side, (rows, columns) != (self.side, self.side)
        if self.positions is not None:
            first, grid = self.positions.weight.split([c.context - n * n, n * n])
            if stretched:
                image = grid.mT.unflatten(1, (n, n))[None]
                image = F.interpolate(image, (rows, columns), mode="bicubic", align_corners=False)
                grid = image[0].flatten(1).mT
            return torch.cat([first, grid])
        if c.positions == "none":
            return None
        device = self.embed.weight.device
        row, column = ((torch.arange(m, device=device) + 0.5) * n / m - 0.5 for m in (rows, columns))
        waves = [sinusoids(at, c.dim // 2) for at in (row, column)]
        y = torch.cat([waves[0].repeat_interleave(columns, 0), waves[1].repeat(rows, 1)], dim=1)  # (N, D)
        return F.pad(y, (0, 0, 1, 0)) if self.first is not None else y

    def encode(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, T, D)"""
        B, P = len(pixels), self.config.patch
        x = self.embed(self.patches(pixels)).to(self.embed.weight.dtype)  # (B, N, D)
        if self.first is not None:
            x = torch.cat([self.first.weight.expand(B, -1, -1), x], dim=1)  # (B, T, D)
        places = self.places(pixels.shape[-2] // P, pixels.shape[-1] // P)
        x = self.drop(x if places is None else x + places.to(x.dtype))  # (B, T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        x = self.norm(x)  # (B, T, D)
        return x

    def pooled(self, x: Tensor) -> Tensor:
        """What stands for the whole picture: (B, T, D) -> (B, D)."""
        return x[:, 0] if self.first is not None else x.mean(1)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.encode(pixels)
