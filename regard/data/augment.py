"""Pictures made a little different each time that they are learnt from.

What is drawn for a picture depends on its key alone, and is drawn on the CPU; a batch's pixels then change
together, wherever they are.

Shapes: B batch, C channels, H height, W width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .sampling import GOLDEN, mixed

# What is drawn for a picture, a column each. The first six say where a pixel comes from: a, b, c, d, e, f in
# x' = a x + b y + c, y' = d x + e y + f, with both from -1 to 1. Last come the edges of what is erased.
COLUMNS = [*"abcdef", "brightness", "contrast", "colour", "sharpness", "posterize", "solarize"]
EDGES = ["left", "top", "right", "bottom"]
SAME = np.array([1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 8, 1, 0, 0, 0, 0], dtype=np.float32)  # nothing changes
OPERATIONS = ["rotate", "shear x", "shear y", "move x", "move y", *COLUMNS[6:]]
GREY = (0.299, 0.587, 0.114)  # what red, green and blue add to brightness


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    pad: int = 0  # by how many pixels a picture is moved, at most
    area: float = 1.0  # the smallest share of it that is cut out and enlarged
    flip: bool = False  # half of them are seen in a mirror
    operations: int = 0  # how many of OPERATIONS are done to each, Cubuk et al. 2020 (RandAugment)
    strength: float = 0.5  # how far each of these goes at most
    erase: float = 0.0  # the share of them of which a rectangle is erased, Zhong et al. 2020
    mixup: float = 0.0  # α: mixed with another picture, Zhang et al. 2018; 0: never
    cutmix: float = 0.0  # α: a rectangle of another picture is put in, Yun et al. 2019; 0: never

    def __post_init__(self) -> None:
        for name in ("pad", "operations", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if not 0 < self.area <= 1:
            raise ValueError(f"area={self.area} must be more than 0 and at most 1")
        for name in ("strength", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be a share, from 0 to 1")


class Dice:
    """Numbers from 0 to 1 for every key, always the same ones in the same order."""

    def __init__(self, keys: np.ndarray):
        self.keys, self.drawn = keys, 0

    def __call__(self) -> np.ndarray:
        self.drawn += 1
        noise = mixed(self.keys + np.uint64(self.drawn * GOLDEN % 2**64))
        return (noise >> np.uint64(11)).astype(np.float64) / 2**53


def draw(c: Augmentation, keys: np.ndarray, size: int) -> np.ndarray:
    """What happens to each picture, float32 (B, COLUMNS and EDGES)."""
    u, B = Dice(keys), len(keys)
    drawn = np.tile(SAME, (B, 1))
    column = {name: drawn[:, i] for i, name in enumerate(COLUMNS)}
    affine = np.tile(np.eye(3), (B, 1, 1))
    if c.area < 1:
        share, ratio = c.area + (1 - c.area) * u(), (3 / 4) ** (2 * u() - 1)
        for i, side in enumerate((np.sqrt(share * ratio), np.sqrt(share / ratio))):
            affine[:, i, i] = side = side.clip(max=1)
            affine[:, i, 2] = (1 - side) * (2 * u() - 1)
    if c.pad:
        for i in (0, 1):
            affine[:, i, 2] += 2 / size * (np.floor(u() * (2 * c.pad + 1)) - c.pad)
    if c.flip:
        affine[:, 0] *= np.where(u() < 0.5, -1, 1)[:, None]
    for _ in range(c.operations):
        which, amount = np.floor(u() * len(OPERATIONS)).astype(int), c.strength * (2 * u() - 1)
        for number, name in enumerate(OPERATIONS):
            rows = which == number
            if number < 5:
                affine[rows] = affine[rows] @ moved(name, amount[rows])
            elif name == "posterize":  # to four bits at most
                column[name][rows] = 8 - 4 * abs(amount[rows])
            elif name == "solarize":
                column[name][rows] = 1 - abs(amount[rows])
            else:
                column[name][rows] *= 1 + 0.9 * amount[rows]
    drawn[:, :6] = affine[:, :2].reshape(B, 6)
    if c.erase:
        some, share, ratio = u() < c.erase, 0.02 + 0.31 * u(), 0.3 ** (2 * u() - 1)
        box = rectangle(u, np.sqrt(share * ratio), np.sqrt(share / ratio))
        drawn[:, len(COLUMNS) :] = box * some[:, None]
    return drawn


def moved(name: str, amount: np.ndarray) -> np.ndarray:
    """The matrices (B, 3, 3) of a turn by up to 30 degrees, a shear by 0.3 or a move by 0.45 of the side."""
    found = np.tile(np.eye(3), (len(amount), 1, 1))
    if name == "rotate":
        angle = amount * np.pi / 6
        found[:, 0, 0] = found[:, 1, 1] = np.cos(angle)
        found[:, 0, 1], found[:, 1, 0] = -np.sin(angle), np.sin(angle)
    elif name.startswith("shear"):
        i = "xy".index(name[-1])
        found[:, i, 1 - i] = 0.3 * amount
    else:
        found[:, "xy".index(name[-1]), 2] = 0.9 * amount
    return found


def rectangle(u: Dice, wide: np.ndarray, high: np.ndarray) -> np.ndarray:
    """EDGES (B, 4), as shares of the sides, of a rectangle that lies anywhere inside."""
    wide, high = wide.clip(max=1), high.clip(max=1)
    left, top = u() * (1 - wide), u() * (1 - high)
    return np.stack([left, top, left + wide, top + high], axis=1)


def draw_mix(c: Augmentation, keys: np.ndarray) -> np.ndarray:
    """How much of each picture stays (mixup), and EDGES of what another one covers (cutmix): (B, 5)."""
    u = Dice(keys)
    cut = u() < (0.5 if c.mixup and c.cutmix else float(c.cutmix > 0))
    where = u()
    stays = np.where(cut, quantile(where, c.cutmix), quantile(where, c.mixup))
    box = rectangle(u, np.sqrt(1 - stays), np.sqrt(1 - stays))
    return np.concatenate([np.where(cut, 1, stays)[:, None], box * cut[:, None]], 1).astype(np.float32)


def quantile(u: np.ndarray, alpha: float) -> np.ndarray:
    """Numbers from a Beta(α, α) distribution, from numbers between 0 and 1; for α = 0 they are 1."""
    if not alpha:
        return np.ones_like(u)
    x = (np.arange(4096) + 0.5) / 4096
    below = np.cumsum((x * (1 - x)) ** (alpha - 1))
    return np.interp(u, below / below[-1], x)


# On the device


def inside(edges: Tensor, H: int, W: int) -> Tensor:
    """Whether pixels lie within edges (B, 4): (B, 1, H, W)."""
    y, x = (((torch.arange(n, device=edges.device) + 0.5) / n) for n in (H, W))
    left, top, right, bottom = edges[..., None].unbind(1)
    return (((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None, :])[:, None]


def change(c: Augmentation, pixels: Tensor, drawn: Tensor) -> Tensor:
    """Pixels (B, C, H, W) from 0 to 1, changed as `drawn` says."""
    H, W = pixels.shape[-2:]
    drawn = drawn.to(pixels.dtype)
    if c.pad or c.area < 1 or c.flip or c.operations:
        grid = F.affine_grid(drawn[:, :6].unflatten(1, (2, 3)), list(pixels.shape), align_corners=False)
        pixels = F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
    if c.operations:
        pixels = recolour(pixels, *drawn[:, 6:12, None, None, None].unbind(1))
    if c.erase:
        erased = inside(drawn[:, 12:], H, W)
        pixels = torch.where(erased, pixels.mean((2, 3), keepdim=True), pixels)
    return pixels


def recolour(
    x: Tensor,
    brightness: Tensor,
    contrast: Tensor,
    colour: Tensor,
    sharpness: Tensor,
    posterize: Tensor,
    solarize: Tensor,
) -> Tensor:
    """As Pillow does. Each number (B, 1, 1, 1) is 1 where nothing changes; posterize counts bits."""
    x = (x * brightness).clamp(max=1)
    x = torch.lerp(grey(x).mean((2, 3), keepdim=True).expand_as(x), x, contrast).clamp(0, 1)
    x = torch.lerp(grey(x).expand_as(x), x, colour).clamp(0, 1)
    smooth = (4 * x + 9 * F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)) / 13
    x = torch.lerp(smooth, x, sharpness).clamp(0, 1)
    step = 2 ** (8 - posterize)
    x = torch.where(step > 1, ((x * 255 + 1e-3) / step).floor() * step / 255, x)
    return torch.where(x > solarize, 1 - x, x)


def grey(x: Tensor) -> Tensor:
    """How bright each pixel is (B, 1, H, W)."""
    if x.shape[1] == 1:
        return x
    return sum(x[:, i : i + 1] * part for i, part in enumerate(GREY))  # type: ignore[return-value]


def mix(pixels: Tensor, others: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures (B, C, H, W) mixed with others as `draw_mix` says, and how much of each is left (B,)."""
    drawn = drawn.to(pixels.dtype)
    H, W = pixels.shape[-2:]
    stays = drawn[:, 0, None, None, None] * ~inside(drawn[:, 1:], H, W)  # (B, 1, H, W)
    return torch.lerp(others, pixels, stays), stays.mean((1, 2, 3))
