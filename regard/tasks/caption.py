"""Captions: an image to look at and a text to write. Xu et al. 2015.

Shapes: B batch, C channels, H height, W width, T words of a caption, S regions of an image.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.convert import efficientnet as weights
from regard.data import Corpus, DataConfig
from regard.data.augment import Augmentation, apply_augmentation, sample_augmentation
from regard.data.image_readers import read_captions
from regard.data.images import ImageDataset, read_pixels
from regard.data.shuffling import random_keys
from regard.data.splitting import number_groups
from regard.data.synthetic import draw_shapes
from regard.decode.sampling import Sampling
from regard.describe.watch import watch
from regard.errors import UserError
from regard.models import Captioner
from regard.models.captioner import HardAttention
from regard.tasks import text_metrics as scoring
from regard.tasks.answers import Answer
from regard.tasks.batches import Batch, Shuffled, per_token, ragged, targets
from regard.tasks.guessing import Guess, guess_targets
from regard.tasks.loss import IGNORED, cross_entropy
from regard.tasks.reading import region_names
from regard.tasks.request import DataRequest, Request
from regard.tasks.see import SALT, check_image_settings
from regard.tasks.source import SourceTask
from regard.tasks.task import upcast
from regard.text.tokenizer import Tokenizer
from regard.vision.decoding import ImageSource

MEMORY = 0.9  # of the usual reward at the next step, Xu et al. 2015, 4.1
SHAPES = 8000, 500  # the number of images that are drawn if none are given: for training and for evaluation


@dataclass(frozen=True, kw_only=True)
class CaptionConfig(Augmentation):
    name: Literal["caption"]
    size: int | None = None  # of an image, in pixels each way; None: as found in the data
    channels: int | None = None  # 1 or 3; None: as found in the data
    smoothing: float = 0.1  # of labels: this share of the probability is spread over all words
    evenly: float = 1.0  # λ: how much an LSTM is urged to attend to all regions alike, Xu et al. 2015, eq. 14
    reward: float = 0.02  # λ_r: how much hard attention learns from better predictions, eq. 12
    entropy: float = 0.002  # λ_e: how much hard attention is urged to try other regions, eq. 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")
        for name in ("evenly", "reward", "entropy"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        check_image_settings(self.size, self.channels)
        for name in ("mixup", "cutmix"):
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)}: a mix of two images would need two captions")


@dataclass(frozen=True, kw_only=True)
class CaptionData(DataConfig):
    tokenizer: str = "wordpiece"  # a kind to train, or a tokenizer.json or its folder
    weights: str | None = None  # the weights that a new EfficientNet starts from, instead of its package's
    memory_gb: float = 2.0  # of decoded images that are kept; the others are decoded again when needed

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.memory_gb >= 0:
            raise ValueError(f"memory_gb={self.memory_gb} must not be negative")


class Captioned:
    """Images, and the token ids of each one's captions."""

    def __init__(self, images: ImageDataset, captions: list[list[str]], tokenizer: Tokenizer):
        self.sources, self.targets = images, captions
        texts = [caption for several in captions for caption in several]
        self.ids = ragged(tokenizer.encode_batch(texts))
        counts = [len(several) for several in captions]
        self.images = np.repeat(np.arange(len(captions)), counts)  # the image of each caption
        self.bytes = sum(len(text.encode()) for text in texts)

    def __len__(self) -> int:
        return len(self.images)

    def describe(self) -> str:
        return f"{len(self):,} captions of {self.sources.describe()}"

    def fingerprint(self) -> str:
        return self._with_captions(self.sources.fingerprint())

    def sampled_fingerprint(self) -> str:
        """The fingerprint that earlier versions computed."""
        return self._with_captions(self.sources.sampled_fingerprint())

    def _with_captions(self, images: str) -> str:
        ids = self.ids.ids.tobytes() + self.ids.lengths.tobytes() + self.images.tobytes()
        return hashlib.sha256(images.encode() + ids).hexdigest()


class Caption(SourceTask[CaptionConfig, Captioned, Captioner]):
    kinds = ("captioner",)
    data_config = CaptionData
    builtin = (), ()  # drawn shapes
    reads = "image"
    ask_batch_size = 64
    inherits = ("size", "channels")
    has_media = True
    generation: ClassVar = {"max_new_tokens": 60, "temperature": 0.0, "num_beams": 4}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.config.channels or 1, self.config.size or 1, self.config.size or 1

    # Data

    @classmethod
    def read(cls, request: DataRequest[CaptionConfig]) -> Corpus:
        """Read the data; without paths, draw shapes, and evaluate on combinations that are not trained on."""
        paths, valid, config, context = request.paths, request.valid, request.config, request.context
        memory = int(request.data.memory_gb * 2**30)
        if paths:
            images, captions = read_captions(paths, config.size, config.channels, memory)
        else:
            images, captions = shapes(held=False)
        C, H, _ = images.shape
        if valid or not paths:
            held, held_captions = read_captions(valid, H, C, memory) if valid else shapes(held=True)
        else:
            groups = number_groups(images.keys())
            every = max(2, round(1 / holdout)) if (holdout := request.data.holdout) else len(images) + 1
            sides = [np.flatnonzero(((groups + 1) % every == 0) == out).tolist() for out in (False, True)]
            held, held_captions = images.rows(sides[1]), [captions[i] for i in sides[1]]
            images, captions = images.rows(sides[0]), [captions[i] for i in sides[0]]
        texts = [(False, text) for several in captions for text in several]
        texts += [(True, text) for several in held_captions for text in several]
        tokenizer = request.tokenizer(texts, cls.specials)
        train = Captioned(images, captions, tokenizer)
        cut = int((train.ids.lengths >= context).sum())
        shape = {"size": H, "channels": C}
        return Corpus(
            train,
            Captioned(held, held_captions, tokenizer) if len(held) else None,
            tokenizer,
            task_settings=dict(shape),
            model_settings=shape,
            notes=[f"cut {cut:,} captions to {context - 1} tokens (model.context)"] if cut else [],
        )

    def held_out(self, paths: Sequence[str]) -> Captioned:
        images, captions = read_captions(paths, self.config.size, self.config.channels)
        return Captioned(images, captions, self.tokenizer)

    def samples(self, data: Captioned, seed: int, rows: int, tokens: int | None) -> Shuffled:
        size = rows if tokens is None else max(1, tokens // self.context)
        notes = [f"{len(data) / size:,.1f} batches an epoch", *data.sources.notes]
        return Shuffled(data, seed, size, notes)

    def batch(self, samples: Shuffled, rows: np.ndarray) -> Batch:
        """Images (B, C, H, W), how to augment each, and captions as inputs and as targets (B, T)."""
        pixels, target, following = self.collate(samples.data, samples.at(rows))
        how = sample_augmentation(self.config, random_keys(samples.seed ^ SALT, rows), pixels.shape[-1])
        return pixels, torch.from_numpy(how), target, following

    def count_read(self, batch: Batch) -> dict[str, float]:
        """Count the images and the tokens of their captions."""
        return {"images": len(batch[0]), "tokens": targets(batch)}

    def collate(self, data: Captioned, rows: np.ndarray) -> Batch:
        target, following = self.collate_targets(data.ids, rows)
        return data.sources.read(data.images[rows]), torch.from_numpy(target), torch.from_numpy(following)

    def evaluation_batches(self, data: Captioned, tokens: int) -> Iterator[Batch]:
        """Every caption once, with its unchanged image; each batch has about `tokens` tokens."""
        order = np.argsort(data.ids.lengths, kind="stable")
        for rows in np.split(order, range(0, len(order), max(1, tokens // self.context))[1:]):
            yield self.collate(data, rows)

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: CaptionConfig) -> nn.Module:
        c = cast(Captioner, model).config
        if (config.size, config.channels) != (c.size, c.channels):
            raise UserError(
                f"images of {config.size} pixels in {config.channels} channels: the model's have {c.size} in "
                f"{c.channels}; set task.size and task.channels"
            )
        return model

    @classmethod
    def init_from(cls, model: nn.Module, data: CaptionData) -> None:
        captioner = cast(Captioner, model)
        if captioner.config.encoder == "efficientnet":
            captioner.encoder.net.load_state_dict(weights.load_efficientnet(data.weights))

    def loss(self, model: Captioner, *batch: Tensor) -> Tensor:
        """The sum over all predictions, in nats. While training, smoothed; and for an LSTM also
        λ Σ_s (1 - Σ_t α_ts)² of every image: no region should be overlooked. With hard attention, the
        loss of `reinforce` instead."""
        pixels, *how, target, following = batch
        if how:
            with torch.no_grad():
                pixels = apply_augmentation(self.config, pixels / 255, how[0])
        smoothing = self.config.smoothing if model.training else 0.0
        look = getattr(model.decoder, "look", None)
        hard = isinstance(look, HardAttention)
        if look is None or not model.training or not (hard or self.config.evenly):
            return cross_entropy(model.hidden(pixels, target), model.output, following, smoothing)
        with watch(model.decoder) as records:
            hidden = model.hidden(pixels, target)
        loss = cross_entropy(hidden, model.output, following, smoothing)
        scores, weights = (
            torch.cat([each[name][:, 0] for each in records["look"]], dim=1) for name in ("scores", "weights")
        )  # (B, T, S)
        counts = following != IGNORED  # (B, T)
        if hard:
            return loss + self.reinforce(
                look, log_probabilities(model, hidden, following), scores, weights, counts
            )
        uneven = (1 - (weights * counts[:, :, None]).sum(1)).square().sum(1) * counts.any(1)  # (B,)
        return loss + self.config.evenly * uneven.sum()

    def reinforce(
        self, look: HardAttention, words: Tensor, scores: Tensor, chosen: Tensor, counts: Tensor
    ) -> Tensor:
        """-Σ_t λ_r (r_t - b_t) log α_t(s_t) + λ_e H(α_t), where s_t is the region chosen for word t: a choice
        becomes likelier if the words from there on were predicted better than usual. REINFORCE, Williams
        1992, as in Xu et al. 2015, eq. 11-12, but each choice is credited with the words after it only.

        `words` are the log-probabilities of the right words (B, T); `b`, a moving average of `r`, lowers the
        variance.
        """
        reward = words.flip(1).cumsum(1).flip(1)  # (B, T)
        T, count = reward.shape[1], counts.sum(0)
        mean = reward.sum(0) / count.clamp(min=1)  # (T,)
        better = (reward - look.baseline[:T]) * counts
        with torch.no_grad():
            look.baseline[:T].lerp_(torch.where(count > 0, mean, look.baseline[:T]), 1 - MEMORY)
        log_alpha = upcast(scores).log_softmax(-1)  # (B, T, S)
        choice = log_alpha.masked_fill(chosen < 1, 0).sum(-1)  # (B, T); 0 where nothing was chosen
        entropy = -(log_alpha.exp() * log_alpha).sum(-1) * counts  # (B, T)
        gain = self.config.reward * (better * choice).sum() + self.config.entropy * entropy.sum()
        return gain.detach() - gain  # its value has no meaning, only its gradient

    def metrics(self, loss: float, count: int, data: Captioned, *more: float) -> dict[str, float]:
        return per_token(loss, count, data.bytes)

    def guess(self, model: Captioner, batches: Iterable[Batch], data: Captioned) -> Guess:
        words = [(torch.from_numpy(data.ids.ids),)]  # no image needs to be read for these
        return guess_targets(words, self.tokenizer.vocab, self.config.smoothing)

    def preview(self, model: Captioner, data: Captioned, seed: int) -> str:
        options = Sampling(max_new_tokens=60, temperature=0)
        answers = self.answers(model, Request(data.sources[:3], options))
        return "\n".join(f"{n}\n  → {a[0].text}" for n, a in zip(data.sources.names, answers, strict=False))

    # Answers

    def parts(self, input: ImageSource | Tensor) -> list[Tensor]:
        """The pixels (C, H, W) of the image, in bytes."""
        return [read_pixels(input, self.image_shape)]

    def source(self, part: Tensor) -> Tensor:
        return part

    def answers(self, model: Captioner, request: Request) -> list[list[Answer]]:
        """Answer a limited number of images at a time, since pixels take memory."""
        answers: list[list[Answer]] = []
        for i in range(0, len(request.inputs), self.ask_batch_size):
            group = request.inputs[i : i + self.ask_batch_size]
            answers += super().answers(model, replace(request, inputs=group))
        return answers

    def cross_attention(
        self, model: Captioner, input: ImageSource | Tensor, answer: str
    ) -> tuple[Tensor, list[str], list[str]]:
        """The weights (T, side, side) with which each token of a caption attends to the grid of regions."""
        weights, tokens, _ = super().cross_attention(model, input, answer)
        side = math.isqrt(weights.shape[1])
        return weights.unflatten(1, (side, side)), tokens, region_names(side, side)

    def score_answers(self, answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
        return scoring.caption_scores(answers, references)


@torch.no_grad()
def log_probabilities(model: Captioner, hidden: Tensor, following: Tensor) -> Tensor:
    """The log-probabilities (B, T) of the next words, in nats; 0 where there is none."""
    logits = upcast(model.logits(hidden)).flatten(0, 1)
    losses = F.cross_entropy(logits, following.flatten(), ignore_index=IGNORED, reduction="none")
    return -losses.view_as(following)


def shapes(held: bool) -> tuple[ImageDataset, list[list[str]]]:
    """Make images of drawn shapes, whose size is fixed, and their captions."""
    drawing = draw_shapes(seed=1, count=SHAPES[held], held_out=held)
    images = ImageDataset(
        drawing.captions, torch.from_numpy(drawing.pixels), [], (3, *drawing.pixels.shape[2:])
    )
    return images, [[caption] for caption in drawing.captions]
