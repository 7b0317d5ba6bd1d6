"""Image classification. Dosovitskiy et al. 2021.

Shapes: B batch, K images that are mixed into one, C channels, H height, W width, L classes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.modes import evaluating
from regard.data import Corpus
from regard.data.augment import Augmentation, apply_augmentation, apply_mix, sample_augmentation, sample_mix
from regard.data.image_readers import read_image_classes
from regard.data.images import ImageDataset, ImageSource, read_pixels
from regard.data.labels import LabelledTexts, class_ids, class_names, split_by_class
from regard.data.shuffling import mix64, random_keys
from regard.data.synthetic import SIZE, draw_shapes
from regard.describe.images import IMAGE
from regard.describe.values import Description
from regard.errors import UserError
from regard.models import ModelWithHead, ViT
from regard.tasks.answers import Answer
from regard.tasks.batches import TOKENS_AT_ONCE, Batch, Shuffled, targets
from regard.tasks.heads import class_scores, class_weights, likeliest_classes
from regard.tasks.loss import IGNORED
from regard.tasks.reading import Reading, recorded_call, region_names
from regard.tasks.request import DataRequest, Request
from regard.tasks.task import Task, widened

WIDEST = 64  # pixels to which images are scaled down, if no size is given: attention costs
SHAPES = 4000, 500  # images that are drawn if none are given: to train and to evaluate on
SALT = 0x706963747572  # what is done to images has other keys than their order


def check_image_settings(size: int | None, channels: int | None) -> None:
    if channels not in (None, 1, 3):
        raise ValueError(f"channels={channels} must be 1 (grey) or 3 (colours)")
    if size is not None and size < 1:
        raise ValueError(f"size={size} must be more than 0")


@dataclass(frozen=True, kw_only=True)
class SeeConfig(Augmentation):
    name: Literal["see"]
    labels: tuple[str, ...] | None = None  # the classes; None: as found in the data
    size: int | None = None  # of an image, in pixels each way; None: as found in the data
    channels: int | None = None  # 1 or 3; None: as found in the data
    mean: tuple[float, ...] | None = None  # of each channel's pixels, from 0 to 1; None: as found in the data
    std: tuple[float, ...] | None = None  # their standard deviation
    balanced: bool = False  # rare classes count as much as frequent ones
    weights: tuple[float, ...] | None = None  # the weight of each class, then; None: as found in the data
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")
        check_image_settings(self.size, self.channels)


@dataclass(frozen=True, kw_only=True)
class PictureConfig:
    holdout: float = 0.1  # the share of the images to evaluate on, where no others are given for that
    max_bytes: int | None = None  # that a compressed file may expand to; None: 100 times its size

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout={self.holdout} must be a share, from 0 to less than 1")
        if self.max_bytes is not None and not self.max_bytes > 0:
            raise ValueError(f"max_bytes={self.max_bytes} must be more than 0")


class Examples:
    """Images, and the number of the class of each."""

    def __init__(self, images: ImageDataset, labels: Sequence[str], names: Sequence[str]):
        self.sources, self.targets = images, list(labels)
        table = LabelledTexts(images.names, None, self.targets, None, where=images.names)
        self.labels = np.array(class_ids(table, names), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        return self.sources.describe()

    def fingerprint(self) -> str:
        return hashlib.sha256(self.sources.fingerprint().encode() + self.labels.tobytes()).hexdigest()

    def sampled_fingerprint(self) -> str:
        """As earlier versions took it."""
        return hashlib.sha256(self.sources.sampled_fingerprint().encode() + self.labels.tobytes()).hexdigest()


class See(Task[SeeConfig, Examples, ModelWithHead]):
    kinds = ("vit",)
    specials = ()
    data_config = PictureConfig
    builtin = (), ()  # drawn shapes
    reads = "image"
    static_shapes = has_references = shows_scores = True
    best_metric = "accuracy"
    ask_batch_size = 64
    inherits = ("size", "channels", "mean", "std")

    def setup(self) -> None:
        self.labels = self.config.labels or ()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.config.channels or 1, self.config.size or 1, self.config.size or 1

    # Data

    @classmethod
    def read(cls, request: DataRequest[SeeConfig]) -> Corpus:
        """Without paths, drawn shapes."""
        config = request.config
        if request.paths:
            images, labels = read_image_classes(request.paths, config.size, config.channels, WIDEST)
        else:
            images, labels = shapes(config, False)
        C, H, _ = images.shape
        if request.valid or not request.paths:
            held, held_labels = (
                read_image_classes(request.valid, H, C) if request.valid else shapes(config, True)
            )
        else:
            training, valid = split_by_class(labels, request.data.holdout)
            held, held_labels = images.rows(valid), [labels[i] for i in valid]
            images, labels = images.rows(training), [labels[i] for i in training]
        names = list(config.labels or class_names(labels))
        mean, std = images.moments()
        settings: dict[str, Any] = {"labels": names, "size": H, "channels": C, "mean": mean, "std": std}
        train = Examples(images, labels, names)
        if config.balanced:
            settings["weights"] = class_weights(train.labels, len(names))
        return Corpus(
            train,
            Examples(held, held_labels, names) if len(held) else None,
            None,
            task_settings=settings,
            notes=[f"images are scaled to {H} x {H} pixels (task.size)"] if H == WIDEST else [],
            model_settings={"size": H, "channels": C},
        )

    def held_out(self, paths: Sequence[str]) -> Examples:
        images, labels = read_image_classes(paths, self.config.size, self.config.channels)
        return Examples(images, labels, self.labels)

    def samples(self, data: Examples, seed: int, rows: int, tokens: int | None) -> Shuffled:
        size = rows if tokens is None else max(1, tokens // self.context)
        notes = [f"{len(data) / size:,.1f} batches an epoch", *data.sources.notes]
        return Shuffled(data, seed, size, notes)

    def batch(self, samples: Shuffled, rows: np.ndarray) -> Batch:
        """Images (B, K, C, H, W), how to change each and to mix them; the class of the image mixed in, and of
        the image itself (B,)."""
        c, data, row_keys = self.config, samples.data, random_keys(samples.seed ^ SALT, rows)
        index = [samples.at(rows)]
        if c.mixup or c.cutmix:  # with any other image, which is changed in its own way
            index.append((mix64(row_keys) % np.uint64(len(data))).astype(np.int64))
        pixels = torch.stack([data.sources.read(numbers) for numbers in index], dim=1)
        K, side = len(index), pixels.shape[-1]
        how = np.stack(
            [sample_augmentation(c, random_keys(SALT + k, row_keys), side) for k in range(K)], axis=1
        )
        mixing = sample_mix(c, random_keys(SALT - 1, row_keys))
        labels = data.labels[index[-1]], data.labels[index[0]]
        return pixels, *(torch.from_numpy(x) for x in (how, mixing, *labels))

    def evaluation_batches(self, data: Examples, tokens: int) -> Iterator[Batch]:
        """All images once, as they are: (B, C, H, W), and their classes (B,)."""
        size = max(1, min(tokens, TOKENS_AT_ONCE) // self.context)
        for first in range(0, len(data), size):
            rows = np.arange(first, min(first + size, len(data)))
            yield data.sources.read(rows), torch.from_numpy(data.labels[rows])

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: SeeConfig) -> nn.Module:
        vit = cast(ViT, model)
        c = vit.config
        if c.channels != config.channels or (config.size or 0) % c.patch:
            raise UserError(
                f"images of {config.size} pixels in {config.channels} channels: the model's have "
                f"{c.channels} channels and divide by {c.patch} pixels; set task.size and task.channels"
            )
        return ModelWithHead(vit, len(config.labels or (0,)), dropout=c.dropout)

    def logits(self, model: ModelWithHead, pixels: Tensor) -> Tensor:
        """(B, L) of images with bytes for pixels, or with numbers from 0 to 1."""
        x = pixels if pixels.is_floating_point() else pixels / 255
        # Plain numbers: a tensor made of them would have the device waited for.
        moments = zip(self.config.mean or (), self.config.std or (), strict=True)
        x = torch.stack([(x[:, i] - mean) / std for i, (mean, std) in enumerate(moments)], dim=1)
        return widened(model(x))

    def loss(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies; of a mixed image, each class counts as much as is seen of it."""
        pixels, how, mixing, other, labels = batch
        B, K = pixels.shape[:2]
        with torch.no_grad():
            x = apply_augmentation(self.config, pixels.flatten(0, 1) / 255, how.flatten(0, 1))
            x, *partners = x.unflatten(0, (B, K)).unbind(1)
            x, stays = apply_mix(x, partners[0], mixing) if partners else (x, torch.ones((), device=x.device))
        logits, smoothing = self.logits(model, x), self.config.smoothing
        other = torch.where(labels == IGNORED, labels, other)  # a row that does not count
        first, second = (self.cross_entropies(logits, each, smoothing) for each in (labels, other))
        return (stays * first + (1 - stays) * second).sum()

    def cross_entropies(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Of each row, in nats (B,)."""
        w = self.config.weights
        return F.cross_entropy(
            logits,
            labels,
            None if w is None else torch.tensor(w, device=logits.device),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )

    def measure(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The loss, and how many classes were right."""
        pixels, labels = batch
        logits = self.logits(model, pixels)
        right = (logits.argmax(-1) == labels).sum()
        return torch.stack([self.cross_entropies(logits, labels).double().sum(), right.double()])

    def metrics(self, loss: float, count: int, data: Examples, *more: float) -> dict[str, float]:
        (right,) = more
        return {"loss": loss / max(1, count), "accuracy": right / max(1, count)}

    def preview(self, model: ModelWithHead, data: Examples, seed: int) -> str:
        answers = self.answers(model, Request(data.sources[:3], samples=2))
        lines = []
        for name, true, several in zip(data.sources.names, data.targets, answers, strict=False):
            classes = ", ".join(f"{answer.text} {answer.score:.0%}" for answer in several)
            lines.append(f"{name} ({true})\n  → {classes}")
        return "\n".join(lines)

    # Answers

    @torch.inference_mode()
    def answers(self, model: ModelWithHead, request: Request) -> list[list[Answer]]:
        """The likeliest classes of each image, with their probabilities.

        An image is an `ImageSource`, or pixels (C, H, W) in bytes.
        """
        device, size = next(model.parameters()).device, self.ask_batch_size
        answers: list[list[Answer]] = []
        with evaluating(model):
            for first in range(0, len(request.inputs), size):
                pixels = [self.pixels(input) for input in request.inputs[first : first + size]]
                logits = self.logits(model, torch.stack(pixels).to(device))
                answers += [likeliest_classes(self.labels, row, request.samples) for row in logits.cpu()]
        return answers

    def pixels(self, input: ImageSource | Tensor) -> Tensor:
        """An image as the model reads it, (C, H, W) in bytes."""
        return read_pixels(input, self.image_shape)

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return class_scores(self.labels, answers, references)

    # Looking on

    def reading(self, model: ModelWithHead, input: ImageSource | Tensor) -> Reading:
        args, _ = recorded_call(model, lambda: self.answers(model, Request([input])))
        assert isinstance(model.model, ViT)
        P = model.model.config.patch
        grid = args[0].shape[-2] // P, args[0].shape[-1] // P
        first = ["class"] if model.model.first is not None else []
        tokens = {"text": first + region_names(*grid), "label": list(self.labels)}
        return Reading(tokens=tokens, run=lambda: model(*args), pixels=self.pixels(input), grid=grid)

    def describe(self, d: Description, model: ModelWithHead, dims: int) -> None:
        super().describe(d, model, dims)
        op = {"does": "pixel", "x": "pixels", "mean": self.config.mean, "std": self.config.std}
        d.see("image", op, IMAGE)


def shapes(config: SeeConfig, held: bool) -> tuple[ImageDataset, list[str]]:
    """Images of drawn shapes, the size of which is fixed, and their classes."""
    if config.size not in (None, SIZE) or config.channels not in (None, 3):
        raise UserError(f"shapes are drawn in colour, {SIZE} pixels wide; give DATA for another task.size")
    drawing = draw_shapes(seed=1 + held, count=SHAPES[held])
    pixels = torch.from_numpy(drawing.pixels)
    return ImageDataset(drawing.captions, pixels, [], (3, *drawing.pixels.shape[2:])), drawing.labels
