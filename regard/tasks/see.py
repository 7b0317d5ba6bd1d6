"""Image classification. Dosovitskiy et al. 2021.

Shapes: B batch, K images that are mixed into one, C channels, H height, W width, L classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Corpus
from regard.data.augment import Augmentation, apply_augmentation, apply_mix, sample_augmentation, sample_mix
from regard.data.image_readers import read_image_classes
from regard.data.images import ImageDataset
from regard.data.labels import class_names, split_by_class
from regard.data.shuffling import mix64, random_keys
from regard.data.synthetic import SIZE, draw_shapes
from regard.errors import UserError
from regard.models import ModelWithHead, ViT
from regard.tasks.batches import Batch, Shuffled
from regard.tasks.heads import label_settings
from regard.tasks.loss import IGNORED
from regard.tasks.pixel_classes import Examples, PictureConfig, PixelClasses, PixelConfig
from regard.tasks.request import DataRequest

WIDEST = 64  # pixels to which images are scaled down, if no size is given: attention costs
SHAPES = 4000, 500  # the number of images that are drawn if none are given: for training and for evaluation
MAX_PATCHES = 2**16  # the largest number of patches, also for models from elsewhere: each attends to all
SALT = 0x706963747572  # augmentations use other random numbers than the order of the data


def check_image_settings(size: int | None, channels: int | None) -> None:
    if channels not in (None, 1, 3):
        raise ValueError(f"channels={channels} must be 1 (grey) or 3 (colours)")
    if size is not None and size < 1:
        raise ValueError(f"size={size} must be more than 0")


@dataclass(frozen=True, kw_only=True)
class SeeConfig(PixelConfig, Augmentation):
    name: Literal["see"]
    size: int | None = None  # of an image, in pixels each way; None: as found in the data
    channels: int | None = None  # 1 or 3; None: as found in the data

    def __post_init__(self) -> None:
        PixelConfig.__post_init__(self)
        Augmentation.__post_init__(self)
        check_image_settings(self.size, self.channels)


class See(PixelClasses[SeeConfig]):
    data_config = PictureConfig
    reads = "image"
    learns_from = "probabilities"
    inherits = ("size", "channels", "mean", "std")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.config.channels or 1, self.config.size or 1, self.config.size or 1

    # Data

    @classmethod
    def read(cls, request: DataRequest[SeeConfig]) -> Corpus:
        """Read the data; without paths, draw shapes."""
        config, memory = request.config, request.data.memory
        if request.paths:
            images, labels = read_image_classes(request.paths, config.size, config.channels, WIDEST, memory)
        else:
            images, labels = shapes(config, False)
        C, H, _ = images.shape
        if request.valid or not request.paths:
            held, held_labels = (
                read_image_classes(request.valid, H, C, memory=memory)
                if request.valid
                else shapes(config, True)
            )
        else:
            training, valid = split_by_class(labels, request.data.holdout, images.keys())
            held, held_labels = images.rows(valid), [labels[i] for i in valid]
            images, labels = images.rows(training), [labels[i] for i in training]
        names = list(config.labels or class_names(labels))
        mean, std = images.moments()
        settings: dict[str, Any] = {"size": H, "channels": C, "mean": mean, "std": std}
        train = Examples(images, labels, names)
        more, labelled = label_settings(config, train.labels, names)
        return Corpus(
            train,
            Examples(held, held_labels, names) if len(held) else None,
            None,
            task_settings=settings | more,
            notes=labelled + [f"images are scaled to {H} x {H} pixels (task.size)"] * (H == WIDEST),
            model_settings={"size": H, "channels": C, "mels": 0},
        )

    def held_out(self, paths: Sequence[str]) -> Examples:
        images, labels = read_image_classes(paths, self.config.size, self.config.channels)
        return Examples(images, labels, self.labels)

    def batch(self, samples: Shuffled, rows: np.ndarray) -> Batch:
        """Images (B, K, C, H, W), how to augment and to mix them, and the classes (B,) of the image mixed in
        and of the image itself."""
        c, data, row_keys = self.config, samples.data, random_keys(samples.seed ^ SALT, rows)
        index = [samples.at(rows)]
        if c.mixup or c.cutmix:  # with any other image, which has its own augmentation
            index.append((mix64(row_keys) % np.uint64(len(data))).astype(np.int64))
        K, side = len(index), data.sources.shape[-1]
        pixels = data.sources.read(np.stack(index, axis=1).ravel()).unflatten(0, (-1, K))
        how = np.stack(
            [sample_augmentation(c, random_keys(SALT + k, row_keys), side) for k in range(K)], axis=1
        )
        mixing = sample_mix(c, random_keys(SALT - 1, row_keys))
        labels = data.labels[index[-1]], data.labels[index[0]]
        return pixels, *(torch.from_numpy(x) for x in (how, mixing, *labels))

    def count_read(self, batch: Batch) -> dict[str, float]:
        """Count the images and their tokens, one for each patch."""
        return {"images": len(batch[0]), "tokens": len(batch[0]) * self.context}

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: SeeConfig) -> nn.Module:
        vit = cast(ViT, model)
        c = vit.config
        if c.mels:
            raise UserError("this model reads spectrograms; train it further with the recipe hear")
        if c.channels != config.channels or (config.size or 0) % c.patch:
            raise UserError(
                f"images of {config.size} pixels in {config.channels} channels: the model's have "
                f"{c.channels} channels and divide by {c.patch} pixels; set task.size and task.channels"
            )
        if (patches := ((config.size or 0) // c.patch) ** 2) > MAX_PATCHES:
            largest = math.isqrt(MAX_PATCHES) * c.patch
            raise UserError(f"task.size={config.size}: {patches:,} patches; give at most {largest:,} here")
        return ModelWithHead(vit, len(config.labels or (0,)), dropout=c.dropout)

    def loss(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies; each class of a mixed image counts by its share of the pixels."""
        *_, other, labels = batch
        x, stays = self.augmented(*batch[:3])
        logits, smoothing = self.logits(model, x), self.config.smoothing
        other = torch.where(labels == IGNORED, labels, other)  # a row that does not count
        first, second = (self.cross_entropies(logits, each, smoothing) for each in (labels, other))
        return (stays * first + (1 - stays) * second).sum()

    @torch.no_grad()
    def augmented(self, pixels: Tensor, how: Tensor, mixing: Tensor) -> tuple[Tensor, Tensor]:
        """The augmented and mixed images of a batch (B, C, H, W), and each one's own share (B,)."""
        B, K = pixels.shape[:2]
        x = apply_augmentation(self.config, pixels.flatten(0, 1) / 255, how.flatten(0, 1))
        x, *partners = x.unflatten(0, (B, K)).unbind(1)
        return apply_mix(x, partners[0], mixing) if partners else (x, torch.ones((), device=x.device))

    def predictions(self, model: ModelWithHead, *batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits(model, self.augmented(*batch[:3])[0]), batch[-1] != IGNORED


def shapes(config: SeeConfig, held: bool) -> tuple[ImageDataset, list[str]]:
    """Make images of drawn shapes, whose size is fixed, and their classes."""
    if config.size not in (None, SIZE) or config.channels not in (None, 3):
        raise UserError(f"shapes are drawn in colour, {SIZE} pixels wide; give DATA for another task.size")
    drawing = draw_shapes(seed=1 + held, count=SHAPES[held])
    pixels = torch.from_numpy(drawing.pixels)
    return ImageDataset(drawing.captions, pixels, [], (3, *drawing.pixels.shape[2:])), drawing.labels
