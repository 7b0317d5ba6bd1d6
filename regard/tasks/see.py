"""Telling what is in a picture: its class. Dosovitskiy et al. 2021.

Shapes: B batch, K pictures that are mixed into one, C channels, H height, W width, L classes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data import Corpus
from regard.data.augment import Augmentation, change, draw, draw_mix, mix
from regard.data.labels import Labels, classes, numbered, split_rows
from regard.data.pictures import Pictures, classed, one
from regard.data.sampling import keys, mixed, shuffled
from regard.data.shapes import SIZE, drawn
from regard.errors import Mistake
from regard.generate import Sampling
from regard.loss import IGNORED
from regard.models import Labelled

from .answers import Answer
from .batches import Batch, targets
from .labels import judged, likeliest
from .task import Task

WIDEST = 64  # pixels to which pictures are made smaller, if no size is asked for: attention costs
SHAPES = 4000, 500  # pictures that are drawn, if none are given: to learn from, to measure on
TOKENS_AT_ONCE = 8192
SALT = 0x706963747572  # what is done to pictures has other keys than their order


@dataclass(frozen=True, kw_only=True)
class SeeConfig(Augmentation):
    name: Literal["see"]
    labels: tuple[str, ...] | None = None  # the classes, as found in the data
    size: int | None = None  # to which pictures are brought, in pixels each way; as found in the data
    channels: int | None = None  # 1 or 3; as found in the data
    mean: tuple[float, ...] | None = None  # of each channel's pixels, from 0 to 1; as found in the data
    std: tuple[float, ...] | None = None  # their deviation
    balanced: bool = False  # rare classes count as much as frequent ones
    weights: tuple[float, ...] | None = None  # what each class counts, then; as found in the data
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels={self.channels} must be 1 (grey) or 3 (colours)")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size={self.size} must be more than 0")


@dataclass(frozen=True, kw_only=True)
class PictureConfig:
    holdout: float = 0.1  # the share of the pictures to measure on, where no others are given for that

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout={self.holdout} must be a share, from 0 to less than 1")


class Examples:
    """Pictures, and the number of the class of each."""

    def __init__(self, pictures: Pictures, labels: Sequence[str], names: Sequence[str]):
        self.sources, self.targets = pictures, list(labels)
        table = Labels(pictures.names, None, self.targets, None, where=pictures.names)
        self.wanted = np.array(numbered(table, names), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.wanted)

    def describe(self) -> str:
        return self.sources.describe()

    def fingerprint(self) -> str:
        return hashlib.sha256(self.sources.fingerprint().encode() + self.wanted.tobytes()).hexdigest()


class Epochs:
    """Pictures in a new random order every epoch; what stands at a position depends on seed and position."""

    def __init__(self, data: Examples, seed: int, size: int):
        self.data, self.seed, self.size = data, seed, size
        self.notes = [f"{len(data) / size:,.1f} batches an epoch", *data.sources.notes]

    def rows(self, step: int) -> np.ndarray:
        return np.arange(step * self.size, (step + 1) * self.size)

    def at(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of the pictures at these positions."""
        epochs, index = np.divmod(rows, len(self.data))
        return shuffled(index, len(self.data), keys(self.seed, epochs))


class See(Task):
    kinds = ("vit",)
    specials = ()
    data = PictureConfig
    builtin = (), ()  # drawn shapes
    steady = True
    compares = True
    weighs = True
    best = "accuracy"
    at_once = 64
    inherits = ("size", "channels", "mean", "std")

    def __init__(self, config: SeeConfig, tokenizer: None, context: int, target: None = None):
        self.config, self.tokenizer, self.context = config, tokenizer, context
        self.labels = config.labels or ()

    @classmethod
    def headed(cls, model: Any, config: Any) -> nn.Module:
        c = model.config
        if c.channels != config.channels or config.size % c.patch:
            raise Mistake(
                f"pictures of {config.size} pixels in {config.channels} channels: the model's have "
                f"{c.channels} channels and divide by {c.patch} pixels; set task.size and task.channels"
            )
        return Labelled(model, len(config.labels or (0,)), dropout=c.dropout)

    # making a model

    @classmethod
    def read(
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: PictureConfig,
        config: SeeConfig,
        context: int,
        tokenizers: Sequence[Any] = (),
    ) -> Corpus:
        """Without paths, drawn shapes."""
        if paths:
            pictures, labels = classed(paths, config.size, config.channels, WIDEST)
        else:
            pictures, labels = shapes(config, False)
        C, H, _ = pictures.shape
        if valid or not paths:
            held, held_labels = classed(valid, H, C) if valid else shapes(config, True)
        else:
            learnt, measured = split_rows(labels, data.holdout)
            held, held_labels = pictures.rows(measured), [labels[i] for i in measured]
            pictures, labels = pictures.rows(learnt), [labels[i] for i in learnt]
        names = list(config.labels or classes(labels))
        mean, std = pictures.moments()
        found: dict[str, Any] = {"labels": names, "size": H, "channels": C, "mean": mean, "std": std}
        train = Examples(pictures, labels, names)
        if config.balanced:
            counts = np.bincount(train.wanted, minlength=len(names))
            found["weights"] = (counts.sum() / len(names) / np.maximum(counts, 1)).tolist()
        valid_examples = Examples(held, held_labels, names) if len(held) else None
        notes = [f"pictures are brought to {H} x {H} pixels (task.size)"] if H == WIDEST else []
        return Corpus(train, valid_examples, None, found=found, notes=notes, shape={"size": H, "channels": C})

    def held_out(self, paths: Sequence[str]) -> Examples:
        pictures, labels = classed(paths, self.config.size, self.config.channels)
        return Examples(pictures, labels, self.labels)

    def training(self, examples: Examples, seed: int, rows: int, tokens: int | None) -> Epochs:
        return Epochs(examples, seed, rows if tokens is None else max(1, tokens // self.context))

    def batch(self, samples: Epochs, rows: np.ndarray) -> Batch:
        """Pictures (B, K, C, H, W) and what is drawn for each and for mixing them; the class of the others
        (B,), and of the pictures (B,)."""
        c, data, dice = self.config, samples.data, keys(samples.seed ^ SALT, rows)
        index = [samples.at(rows)]
        if c.mixup or c.cutmix:  # with any other picture, which is changed in its own way
            index.append((mixed(dice) % np.uint64(len(data))).astype(np.int64))
        pixels = torch.stack([data.sources.read(some) for some in index], dim=1)
        how = np.stack([draw(c, keys(SALT + k, dice), pixels.shape[-1]) for k in range(len(index))], axis=1)
        two = draw_mix(c, keys(SALT - 1, dice))
        return pixels, *(
            torch.from_numpy(x) for x in (how, two, data.wanted[index[-1]], data.wanted[index[0]])
        )

    def in_order(self, examples: Examples, tokens: int) -> Iterator[Batch]:
        """All pictures once, without any change: (B, C, H, W), and their classes (B,)."""
        some = max(1, min(tokens, TOKENS_AT_ONCE) // self.context)
        for first in range(0, len(examples), some):
            rows = np.arange(first, min(first + some, len(examples)))
            yield examples.sources.read(rows), torch.from_numpy(examples.wanted[rows])

    def logits(self, model: Any, pixels: Tensor) -> Tensor:
        """(B, L) of pictures with bytes for pixels, or with numbers from 0 to 1."""
        x = pixels if pixels.is_floating_point() else pixels / 255
        # Plain numbers: a tensor made of them would have the device waited for.
        moments = zip(self.config.mean or (), self.config.std or (), strict=True)
        x = torch.stack([(x[:, i] - mean) / std for i, (mean, std) in enumerate(moments)], dim=1)
        logits: Tensor = model(x)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies; of a mixed picture, each class counts as much as is seen of it."""
        pixels, how, two, other, wanted = batch
        B, K = pixels.shape[:2]
        with torch.no_grad():
            x = change(self.config, pixels.flatten(0, 1) / 255, how.flatten(0, 1))
            x, *others = x.unflatten(0, (B, K)).unbind(1)
            x, stays = mix(x, others[0], two) if others else (x, torch.ones((), device=x.device))
        logits, smoothing = self.logits(model, x), self.config.smoothing
        other = torch.where(wanted == IGNORED, wanted, other)  # a row that does not count
        seen, mixed_in = (self.surprise(logits, some, smoothing) for some in (wanted, other))
        return (stays * seen + (1 - stays) * mixed_in).sum()

    def surprise(self, logits: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
        """Cross-entropies in nats (B,)."""
        w = self.config.weights
        return F.cross_entropy(
            logits,
            wanted,
            None if w is None else torch.tensor(w, device=logits.device),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )

    def measure(self, model: Any, *batch: Tensor) -> Tensor:
        """The loss, and how many classes were right."""
        pixels, wanted = batch
        logits = self.logits(model, pixels)
        right = (logits.argmax(-1) == wanted).sum()
        return torch.stack([self.surprise(logits, wanted).double().sum(), right.double()])

    def metrics(self, loss: float, count: int, examples: Examples, right: float) -> dict[str, float]:
        return {"loss": loss / max(1, count), "accuracy": right / max(1, count)}

    def covered(self, batch: Batch) -> int:
        return targets(batch)

    def judged(self, answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return judged(self.labels, answers, references)

    # using it

    @torch.inference_mode()
    def answers(
        self,
        model: Any,
        texts: Sequence[str | Tensor],
        sampling: Sampling,
        stop: Sequence[str] = (),
        samples: int = 1,
    ) -> list[list[Answer]]:
        """The class of each picture with its probability, and the next likeliest if `samples` are asked for.

        A picture is the path of a file, or pixels (C, H, W) in bytes.
        """
        c, device, training = self.config, next(model.parameters()).device, model.training
        model.eval()
        told: list[list[Answer]] = []
        for first in range(0, len(texts), self.at_once):
            some = texts[first : first + self.at_once]
            pixels = [one(x, c.size or 1, c.channels or 1) if isinstance(x, str) else x for x in some]
            logits = self.logits(model, torch.stack(pixels).to(device))
            told += [likeliest(self.labels, row, samples) for row in logits.cpu()]
        model.train(training)
        return told

    def sample(self, model: Any, examples: Examples, seed: int) -> str:
        """A few pictures, and what the model takes them for."""
        told = self.answers(model, examples.sources[:3], Sampling(), samples=2)
        lines = []
        for name, true, answers in zip(examples.sources.names, examples.targets, told, strict=False):
            said = ", ".join(f"{answer.text} {answer.score:.0%}" for answer in answers)
            lines.append(f"{name} ({true})\n  → {said}")
        return "\n".join(lines)


def shapes(config: SeeConfig, held: bool) -> tuple[Pictures, list[str]]:
    """Drawn ones, the size of which is fixed."""
    if config.size not in (None, SIZE) or config.channels not in (None, 3):
        raise Mistake(f"shapes are drawn in colour, {SIZE} pixels wide; give DATA for another task.size")
    made = drawn(seed=1 + held, count=SHAPES[held])
    pixels = torch.from_numpy(made.pixels)
    return Pictures(made.captions, pixels, [], (3, *made.pixels.shape[2:])), made.labels
