"""Image augmentation: random parameters are drawn on the CPU, and applied to a batch on its device.

The parameters of an image depend on its key alone.

Shapes: B batch, C channels, H height, W width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.shuffling import CounterRandom

# The parameters of an image, a column each. The first six are the affine map from output to input pixels:
# x' = a x + b y + c, y' = d x + e y + f, with both from -1 to 1. Last come the edges of the erased rectangle.
COLUMNS = [*"abcdef", "brightness", "contrast", "colour", "sharpness", "posterize", "solarize"]
EDGES = ["left", "top", "right", "bottom"]
IDENTITY = np.array([1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 8, 1, 0, 0, 0, 0], dtype=np.float32)  # no change
OPERATIONS = ["rotate", "shear x", "shear y", "move x", "move y", *COLUMNS[6:]]
LUMINANCE = (0.299, 0.587, 0.114)  # weights of red, green and blue


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    pad: int = 0  # the largest shift of an image, in pixels
    area: float = 1.0  # the smallest share of an image that is cropped and enlarged
    flip: bool = False  # mirror half of the images
    operations: int = 0  # the number of OPERATIONS applied to each image, Cubuk et al. 2020 (RandAugment)
    strength: float = 0.5  # the largest strength of these operations
    erase: float = 0.0  # the share of images in which a rectangle is erased, Zhong et al. 2020
    mixup: float = 0.0  # α: blend with another image, Zhang et al. 2018; 0: never
    cutmix: float = 0.0  # α: paste a rectangle of another image, Yun et al. 2019; 0: never

    def __post_init__(self) -> None:
        for name in ("pad", "operations", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if not 0 < self.area <= 1:
            raise ValueError(f"area={self.area} must be more than 0 and at most 1")
        for name in ("strength", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be a share, from 0 to 1")


def sample_augmentation(c: Augmentation, keys: np.ndarray, size: int) -> np.ndarray:
    """Return the parameters of each image, float32 (B, COLUMNS and EDGES)."""
    u, B = CounterRandom(keys), len(keys)
    parameters = np.tile(IDENTITY, (B, 1))
    column = {name: parameters[:, i] for i, name in enumerate(COLUMNS)}
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
                affine[rows] = affine[rows] @ affine_matrices(name, amount[rows])
            elif name == "posterize":  # to four bits at most
                column[name][rows] = 8 - 4 * abs(amount[rows])
            elif name == "solarize":
                column[name][rows] = 1 - abs(amount[rows])
            else:
                column[name][rows] *= 1 + 0.9 * amount[rows]
    parameters[:, :6] = affine[:, :2].reshape(B, 6)
    if c.erase:
        erased, share, ratio = u() < c.erase, 0.02 + 0.31 * u(), 0.3 ** (2 * u() - 1)
        box = random_boxes(u, np.sqrt(share * ratio), np.sqrt(share / ratio))
        parameters[:, len(COLUMNS) :] = box * erased[:, None]
    return parameters


def affine_matrices(name: str, amount: np.ndarray) -> np.ndarray:
    """Return matrices (B, 3, 3) that rotate by up to 30 degrees, shear by 0.3 or move by 0.45 of the side."""
    matrices = np.tile(np.eye(3), (len(amount), 1, 1))
    if name == "rotate":
        angle = amount * np.pi / 6
        matrices[:, 0, 0] = matrices[:, 1, 1] = np.cos(angle)
        matrices[:, 0, 1], matrices[:, 1, 0] = -np.sin(angle), np.sin(angle)
    elif name.startswith("shear"):
        i = "xy".index(name[-1])
        matrices[:, i, 1 - i] = 0.3 * amount
    else:
        matrices[:, "xy".index(name[-1]), 2] = 0.9 * amount
    return matrices


def random_boxes(u: CounterRandom, width: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Return the EDGES (B, 4) of rectangles at random places in the image, as shares of its sides."""
    width, height = width.clip(max=1), height.clip(max=1)
    left, top = u() * (1 - width), u() * (1 - height)
    return np.stack([left, top, left + width, top + height], axis=1)


def sample_mix(c: Augmentation, keys: np.ndarray) -> np.ndarray:
    """Return the weight of each image (mixup) and the EDGES that another covers (cutmix): (B, 5)."""
    u = CounterRandom(keys)
    cut = u() < (0.5 if c.mixup and c.cutmix else float(c.cutmix > 0))
    level = u()
    weight = np.where(cut, beta_quantile(level, c.cutmix), beta_quantile(level, c.mixup))
    box = random_boxes(u, np.sqrt(1 - weight), np.sqrt(1 - weight))
    return np.concatenate([np.where(cut, 1, weight)[:, None], box * cut[:, None]], 1).astype(np.float32)


def beta_quantile(u: np.ndarray, alpha: float) -> np.ndarray:
    """Return the quantiles of Beta(α, α) at levels between 0 and 1; 1 for α = 0."""
    if not alpha:
        return np.ones_like(u)
    x = (np.arange(4096) + 0.5) / 4096
    cumulative = np.cumsum((x * (1 - x)) ** (alpha - 1))
    return np.interp(u, cumulative / cumulative[-1], x)


# On the device


def box_mask(edges: Tensor, H: int, W: int) -> Tensor:
    """Return which pixels lie within the edges (B, 4): (B, 1, H, W)."""
    y, x = (((torch.arange(n, device=edges.device) + 0.5) / n) for n in (H, W))
    left, top, right, bottom = edges[..., None].unbind(1)
    return (((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None, :])[:, None]


def apply_augmentation(c: Augmentation, pixels: Tensor, parameters: Tensor) -> Tensor:
    """Apply the parameters of `sample_augmentation` to pixels (B, C, H, W) from 0 to 1."""
    H, W = pixels.shape[-2:]
    parameters = parameters.to(pixels.dtype)
    if c.pad or c.area < 1 or c.flip or c.operations:
        grid = F.affine_grid(parameters[:, :6].unflatten(1, (2, 3)), list(pixels.shape), align_corners=False)
        pixels = F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
    if c.operations:
        pixels = change_colours(pixels, *parameters[:, 6:12, None, None, None].unbind(1))
    if c.erase:
        erased = box_mask(parameters[:, 12:], H, W)
        pixels = torch.where(erased, pixels.mean((2, 3), keepdim=True), pixels)
    return pixels


def change_colours(
    x: Tensor,
    brightness: Tensor,
    contrast: Tensor,
    colour: Tensor,
    sharpness: Tensor,
    posterize: Tensor,
    solarize: Tensor,
) -> Tensor:
    """Change colours as Pillow does. A parameter (B, 1, 1, 1) of 1 changes nothing; posterize counts bits."""
    x = (x * brightness).clamp(max=1)
    x = torch.lerp(luminance(x).mean((2, 3), keepdim=True).expand_as(x), x, contrast).clamp(0, 1)
    x = torch.lerp(luminance(x).expand_as(x), x, colour).clamp(0, 1)
    smooth = (4 * x + 9 * F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)) / 13
    x = torch.lerp(smooth, x, sharpness).clamp(0, 1)
    step = 2 ** (8 - posterize)
    x = torch.where(step > 1, ((x * 255 + 1e-3) / step).floor() * step / 255, x)
    return torch.where(x > solarize, 1 - x, x)


def luminance(x: Tensor) -> Tensor:
    """Return the brightness of each pixel (B, 1, H, W)."""
    if x.shape[1] == 1:
        return x
    return sum(x[:, i : i + 1] * weight for i, weight in enumerate(LUMINANCE))  # type: ignore[return-value]


def apply_mix(pixels: Tensor, partners: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Mix images (B, C, H, W) with their partners by the parameters of `sample_mix`.

    Return the mixed images, and the share of each that is left (B,).
    """
    parameters = parameters.to(pixels.dtype)
    H, W = pixels.shape[-2:]
    weight = parameters[:, 0, None, None, None] * ~box_mask(parameters[:, 1:], H, W)  # (B, 1, H, W)
    return torch.lerp(partners, pixels, weight), weight.mean((1, 2, 3))
