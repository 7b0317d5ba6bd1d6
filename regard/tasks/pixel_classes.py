"""Classification of pixels: images, and spectrograms of recordings.

Shapes: B batch, C channels, H height, W width, L classes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.images import ImageDataset
from regard.data.labels import LabelledTexts, class_ids
from regard.data.reading import ReadConfig
from regard.describe.images import IMAGE
from regard.describe.texts import Text
from regard.describe.values import Description
from regard.describe.watch import evaluating
from regard.models import ModelWithHead, ViT
from regard.tasks.answers import Answer
from regard.tasks.batches import TOKENS_AT_ONCE, Batch, Shuffled, targets
from regard.tasks.constant import Constant
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.heads import (
    ClassMetric,
    class_counts,
    class_scores,
    count_scores,
    likeliest_classes,
    remark_on_classes,
)
from regard.tasks.loss import IGNORED
from regard.tasks.reading import Reading, recorded_call, region_names
from regard.tasks.request import Request
from regard.tasks.task import Task, upcast
from regard.vision.decoding import ImageSource


@dataclass(frozen=True, kw_only=True)
class PictureConfig(ReadConfig):
    holdout: float = 0.1  # the share of the images or recordings to evaluate on, if no others are given
    memory_gb: float = 2.0  # of decoded images that are kept; the others are decoded again when needed

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout={self.holdout} must be a share, from 0 to less than 1")
        if not self.memory_gb >= 0:
            raise ValueError(f"memory_gb={self.memory_gb} must not be negative")

    @property
    def memory(self) -> int:
        """The bytes of decoded images that are kept."""
        return int(self.memory_gb * 2**30)


@dataclass(frozen=True, kw_only=True)
class PixelConfig:
    """The base of the settings of these tasks."""

    labels: tuple[str, ...] | None = None  # the classes; None: as found in the data
    mean: tuple[float, ...] | None = None  # of each channel's bytes, from 0 to 1; None: as found in the data
    std: tuple[float, ...] | None = None  # their standard deviation
    balanced: bool = False  # rare classes count as much as frequent ones
    weights: tuple[float, ...] | None = None  # the weight of each class, then; None: as found in the data
    metric: ClassMetric | None = None  # that chooses the best weights; None: chosen by the labels
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")


ConfigT = TypeVar("ConfigT", bound=PixelConfig)


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
        """The fingerprint that earlier versions computed."""
        return hashlib.sha256(self.sources.sampled_fingerprint().encode() + self.labels.tobytes()).hexdigest()


class PixelClasses(Task[ConfigT, Examples, ModelWithHead]):
    """A class for each input, which a ViT reads as pixels (C, H, W) in bytes."""

    kinds = ("vit",)
    specials = ()
    builtin = (), ()  # synthetic
    static_shapes = has_references = shows_scores = has_class_folders = has_media = True
    data_settings = ("labels", "mean", "std", "weights", "metric")
    ask_batch_size = 64
    normalised: ClassVar[Text] = IMAGE  # the page's text about pixels as the network reads them

    def setup(self) -> None:
        self.labels = self.class_names = self.config.labels or ()
        self.class_weights = Constant.of(self.config.weights)
        metric = self.config.metric or "accuracy"  # for runs of earlier versions
        self.best_metric = None if metric == "loss" else metric

    def stack(self, pixels: Sequence[Tensor]) -> Tensor:
        """Stack several inputs to one tensor (B, C, H, W)."""
        return torch.stack(list(pixels))

    # Data

    def samples(self, data: Examples, seed: int, rows: int, tokens: int | None) -> Shuffled:
        size = rows if tokens is None else max(1, tokens // self.context)
        notes = [f"{len(data) / size:,.1f} batches an epoch", *data.sources.notes]
        return Shuffled(data, seed, size, notes)

    def evaluation_batches(self, data: Examples, tokens: int) -> Iterator[Batch]:
        """All inputs once, unchanged: (B, C, H, W), and their classes (B,)."""
        size = max(1, min(tokens, TOKENS_AT_ONCE) // self.context)
        for first in range(0, len(data), size):
            rows = np.arange(first, min(first + size, len(data)))
            yield data.sources.read(rows), torch.from_numpy(data.labels[rows])

    def batch_length(self, batch: Batch) -> int:
        return targets(batch)

    # Training

    def attention_mask(self, model: ModelWithHead, pixels: Tensor) -> tuple[Tensor, ...]:
        """The mask (B, tokens) for these pixels, if the model needs one."""
        return ()

    def logits(self, model: ModelWithHead, pixels: Tensor) -> Tensor:
        """(B, L) of inputs with bytes for pixels, or with numbers from 0 to 1."""
        x = pixels if pixels.is_floating_point() else pixels / 255
        # Plain numbers: making a tensor of them would wait for the device.
        moments = zip(self.config.mean or (), self.config.std or (), strict=True)
        x = torch.stack([(x[:, i] - mean) / std for i, (mean, std) in enumerate(moments)], dim=1)
        return upcast(model(x, *self.attention_mask(model, pixels)))

    def cross_entropies(self, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of each row (B,), in nats, times the weight of its class."""
        how = {"ignore_index": IGNORED, "reduction": "none", "label_smoothing": smoothing}
        return F.cross_entropy(logits, labels, self.weights_on(logits.device), **how)  # type: ignore[arg-type]

    def measure(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The loss without weights; how often each class is right, predicted and true."""
        pixels, labels = batch
        logits = self.logits(model, pixels)
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return torch.cat([loss[None], class_counts(logits, labels)]).double()

    def metrics(self, loss: float, count: int, data: Examples, *more: float) -> dict[str, float]:
        return {"loss": loss / max(1, count)} | count_scores(more)

    def guess(self, model: ModelWithHead, batches: Iterable[Batch], data: Examples) -> Guess:
        labels = [(torch.from_numpy(data.labels),)]  # no input needs to be read for these
        return guess_targets(labels, len(self.labels), self.config.smoothing, self.config.weights)

    def remark(self, *more: float) -> str | None:
        return remark_on_classes(self.labels, more, self.config.balanced)

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
        """The likeliest classes of each input, with their probabilities.

        An input is an `ImageSource`, or pixels (C, H, W) in bytes.
        """
        device, size = next(model.parameters()).device, self.ask_batch_size
        answers: list[list[Answer]] = []
        with evaluating(model):
            for first in range(0, len(request.inputs), size):
                pixels = [self.pixels(input) for input in request.inputs[first : first + size]]
                logits = self.logits(model, self.stack(pixels).to(device))
                answers += [likeliest_classes(self.labels, row, request.samples) for row in logits.cpu()]
        return answers

    def score_answers(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return class_scores(self.labels, answers, references)

    # Looking on

    def reading(self, model: ModelWithHead, input: ImageSource | Tensor) -> Reading:
        args, _ = recorded_call(model, lambda: self.answers(model, Request([input])))
        vit = cast(ViT, model.model)
        grid = vit.grid(args[0])
        first = ["class"] if vit.first is not None else []
        tokens = {"text": first + self.region_names(model, *grid), "label": list(self.labels)}
        return Reading(tokens=tokens, run=lambda: model(*args), pixels=self.pixels(input), grid=grid)

    def region_names(self, model: ModelWithHead, rows: int, columns: int) -> list[str]:
        """A name for each patch."""
        return region_names(rows, columns)

    def describe(self, d: Description, model: ModelWithHead, dims: int) -> None:
        super().describe(d, model, dims)
        op = {"does": "pixel", "x": "pixels", "mean": self.config.mean, "std": self.config.std}
        d.see("image", op, self.normalised)
