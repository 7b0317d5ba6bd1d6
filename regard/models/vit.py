"""ViT: an image as a sequence of patches, Dosovitskiy et al. 2021; or a spectrogram, Gong et al. 2021.

Shapes: B batch, C channels, H height, W width, T tokens, D width.
In R rows are N patches, of height P and width Q each.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.cache import Mask, masked_mean, over_keys
from regard.core.layers import Stack, init_bert, make_block, make_norm
from regard.core.positions import sinusoids
from regard.describe import export, images, parts
from regard.models.base import BlocksConfig, Parts, Presets


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BlocksConfig):
    size: int  # of the training images, in pixels each way; for spectrograms, the largest number of frames
    channels: int
    patch: int = 4
    mels: int = 0  # the height of spectrograms and of their patches, whose width is `patch`; 0: images
    depth: int = 6
    positions: Literal["none", "sinusoidal", "learned"] = "learned"
    # An image's vector: that of a class token, or the mean of the patches.
    pool: Literal["first", "mean"] = "first"
    eps: float = 1e-6
    ffn: Literal["relu", "gelu", "gelu_tanh", "swiglu"] = "gelu"
    dropout: float = 0.0
    skip: float = 0.0  # stochastic depth of the last block; it rises linearly from block to block

    PRESETS: ClassVar[Presets] = {  # the last three: Touvron et al. 2021 (DeiT)
        "tiny": {"dim": 128, "depth": 4, "heads": 4},
        "mini": {"dim": 192, "depth": 12, "heads": 3},
        "small": {"dim": 384, "depth": 12, "heads": 6},
        "base": {"dim": 768, "depth": 12, "heads": 12},
    }

    @property
    def context(self) -> int:
        """The number of tokens of an image."""
        return (self.size // self.patch) ** (1 if self.mels else 2) + (self.pool == "first")


class ViT(nn.Module):
    """The hidden states (B, T, D) of patches, after that of the class token if the model has one.

    It also reads images of other sizes than those in training: positions are interpolated. A shorter
    spectrogram has the first ones; spectrograms of unequal length are padded on the right.
    """

    def __init__(self, c: ViTConfig):
        super().__init__()
        if c.size % c.patch:
            raise ValueError(f"size={c.size} must divide by patch={c.patch}; change one")
        self.config, self.patch = c, (c.mels or c.patch, c.patch)
        self.sides = (c.mels or c.size) // self.patch[0], c.size // c.patch  # rows and columns of patches
        self.embed = nn.Linear(c.channels * math.prod(self.patch), c.dim)  # E in the paper
        self.first = nn.Embedding(1, c.dim) if c.pool == "first" else None
        self.positions = nn.Embedding(c.context, c.dim) if c.positions == "learned" else None
        self.drop = nn.Dropout(c.dropout)
        self.blocks = Stack(make_block(c, skip=c.skip * (i + 1) / c.depth) for i in range(c.depth))
        self.norm = make_norm(c.norm, c.eps)(c.dim)
        init_bert(self)

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """The rows and columns of patches in images (B, C, H, W)."""
        return pixels.shape[-2] // self.patch[0], pixels.shape[-1] // self.patch[1]

    def patches(self, pixels: Tensor) -> Tensor:
        """The pixels of each patch, row by row: (B, C, H, W) -> (B, N, C * P * Q)."""
        channels, (P, Q), shape = self.config.channels, self.patch, pixels.shape
        if shape[1] != channels or shape[2] % P or shape[3] % Q:
            raise ValueError(f"{tuple(shape)}: needs {channels=}, and sides that divide by {P} and {Q}")
        x = pixels.unflatten(3, (-1, Q)).unflatten(2, (-1, P))  # (B, C, R, P, N/R, Q)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def grid_positions(self, rows: int, columns: int) -> Tensor | None:
        """A vector for each token of a grid of patches (T, D), interpolated to this grid's size."""
        c, n, cells = self.config, self.sides[1], math.prod(self.sides)
        if c.positions == "none":
            return None
        tokens = c.context - cells + rows * columns
        columns = n if c.mels else columns  # a shorter spectrogram has the first ones
        if self.positions is not None:
            first, grid = self.positions.weight.split([c.context - cells, cells])
            if (rows, columns) != self.sides:
                image = grid.mT.unflatten(1, self.sides)[None]
                image = F.interpolate(image, (rows, columns), mode="bicubic", align_corners=False)
                grid = image[0].flatten(1).mT
            return torch.cat([first, grid])[:tokens]
        device = self.embed.weight.device
        row, column = ((torch.arange(m, device=device) + 0.5) * n / m - 0.5 for m in (rows, columns))
        waves = [sinusoids(at, c.dim // 2) for at in (row, column)]
        y = torch.cat([waves[0].repeat_interleave(columns, 0), waves[1].repeat(rows, 1)], dim=1)  # (N, D)
        return (F.pad(y, (0, 0, 1, 0)) if self.first is not None else y)[:tokens]

    def encode(self, pixels: Tensor, attention_mask: Mask = None) -> Tensor:
        """(B, C, H, W) -> (B, T, D), with padding on the right where not `attention_mask` (B, T)."""
        x = self.embed(self.patches(pixels)).to(self.embed.weight.dtype)  # (B, N, D)
        if self.first is not None:
            x = torch.cat([self.first.weight.expand(len(x), -1, -1), x], dim=1)  # (B, T, D)
        positions = self.grid_positions(*self.grid(pixels))
        x = self.drop(x if positions is None else x + positions.to(x.dtype))  # (B, T, D)
        return self.norm(self.blocks(x, mask=over_keys(attention_mask)))  # (B, T, D)

    forward = encode

    def pooled(self, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """The vector of a whole image: (B, T, D) -> (B, D)."""
        return x[:, 0] if self.first is not None else masked_mean(x, attention_mask)

    def unused_by_head(self, pooled: bool) -> Parts:
        return []

    describe, describe_pooled, graphs = images.vit, parts.pooled_first, export.image_graphs
