"""Augmentation of spectrograms, Park et al. 2019 (SpecAugment): bands and stretches are hidden, and the
rest is shifted and stretched a little, as if another voice spoke (Jaitly & Hinton 2013).

As with images, random parameters are drawn on the CPU, and applied to a batch on its device; those of a
recording depend on its key alone.

Shapes: B batch, K masks, M mel bands, T frames.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.shuffling import CounterRandom


@dataclass(frozen=True, kw_only=True)
class SpecAugmentation:
    masks: int = 2  # bands of frequencies that are hidden, and as many stretches of time
    band: float = 0.15  # the largest share of the frequencies that one hides
    stretch: float = 0.15  # the largest share of the time that one hides
    shift: float = 0.1  # the largest share of the time by which a recording begins later or earlier
    speed: float = 0.15  # the largest share by which it is faster or slower
    pitch: float = 0.06  # the largest share of the frequencies by which it is higher or lower

    def __post_init__(self) -> None:
        if self.masks < 0:
            raise ValueError(f"masks={self.masks} must not be negative")
        for name in ("band", "stretch", "shift", "speed", "pitch"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be a share, from 0 to less than 1")


def sample_spec_augmentation(c: SpecAugmentation, keys: np.ndarray) -> np.ndarray:
    """Return the parameters of each recording, float32 (B, 3 + 4 K): speed, shift, pitch, and the edges of
    the hidden bands and stretches."""
    u = CounterRandom(keys)
    columns = [1 + c.speed * (2 * u() - 1), c.shift * (2 * u() - 1), c.pitch * (2 * u() - 1)]
    for largest in (c.band, c.stretch):
        for _ in range(c.masks):
            width = largest * u()
            start = (1 - width) * u()
            columns += [start, start + width]
    return np.stack(columns, axis=1).astype(np.float32)


def apply_spec_augmentation(x: Tensor, parameters: Tensor) -> Tensor:
    """Apply the parameters to spectrograms (B, 1, M, T) from 0 to 1, of which 0 is padding. Hidden parts get
    the mean of the rest, and padding stays padding."""
    B, _, M, T = x.shape
    parameters = parameters.to(x.dtype)
    speed, shift, pitch = parameters[:, :3, None].unbind(1)
    length = (x > 0).any(2).sum(-1).to(x.dtype)  # (B, 1): frames without padding
    time = (torch.arange(T, device=x.device) + 0.5) / length  # (B, T): shares of the recording
    source = (time - 0.5) * speed + 0.5 + shift
    columns = source.clamp(0.5 / length, 1 - 0.5 / length) * length / T * 2 - 1  # (B, T)
    rows = (torch.arange(M, device=x.device) + 0.5) / M * 2 - 1 + 2 * pitch  # (B, M)
    grid = torch.stack([columns[:, None].expand(B, M, T), rows[:, :, None].expand(B, M, T)], dim=-1)
    y = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    edges = parameters[:, 3:].unflatten(1, (2, (parameters.shape[1] - 3) // 4, 2))  # (B, 2, K, 2)
    level = (torch.arange(M, device=x.device) + 0.5).expand(B, M) / M  # (B, M)
    hidden = is_within(level, edges[:, 0])[:, :, None] | is_within(time, edges[:, 1])[:, None]  # (B, M, T)
    unpadded = (time < 1)[:, None, None]  # (B, 1, 1, T)
    mean = (y * unpadded).sum((2, 3), keepdim=True) / (unpadded.sum(-1, keepdim=True) * M)
    return torch.where(hidden[:, None], mean, y) * unpadded


def is_within(x: Tensor, edges: Tensor) -> Tensor:
    """Return whether each x (B, N) is between any of the edges (B, K, 2)."""
    x = x[:, None]  # (B, 1, N)
    return ((x >= edges[..., :1]) & (x < edges[..., 1:])).any(1)
