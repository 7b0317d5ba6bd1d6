"""Captions: a picture to look at and a text to write. Xu et al. 2015.

Shapes: B batch, C channels, H height, W width, T words of a caption, S regions of a picture.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from regard import scoring, weights
from regard.data import Corpus, DataConfig
from regard.data.augment import Augmentation, change, draw
from regard.data.encoding import tokenizer_for
from regard.data.pairs import Ragged
from regard.data.pictures import Pictures, captioned, one
from regard.data.sampling import keys
from regard.data.shapes import drawn
from regard.generate import Sampling
from regard.loss import IGNORED, cross_entropy
from regard.text import Tokenizer
from regard.watch import watch

from .answers import Answer
from .batches import Batch
from .pairs import PairTask, ended
from .see import SALT, Epochs

SHAPES = 8000, 500  # pictures that are drawn, if none are given: to learn from, to measure on


@dataclass(frozen=True, kw_only=True)
class CaptionConfig(Augmentation):
    name: Literal["caption"]
    size: int | None = None  # to which pictures are brought, in pixels each way; as found in the data
    channels: int | None = None  # 1 or 3; as found in the data
    smoothing: float = 0.1  # of labels: this share of the probability is spread over all words
    evenly: float = 1.0  # λ: how much an LSTM is urged to look at all regions alike, Xu et al. 2015, eq. 14

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing={self.smoothing} must be from 0 to less than 1")
        if self.evenly < 0:
            raise ValueError(f"evenly={self.evenly} must not be negative")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"channels={self.channels} must be 1 (grey) or 3 (colours)")
        if self.size is not None and self.size < 1:
            raise ValueError(f"size={self.size} must be more than 0")
        for name in ("mixup", "cutmix"):
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)}: a picture of two would need two captions")


@dataclass(frozen=True, kw_only=True)
class CaptionData(DataConfig):
    tokenizer: str = "wordpiece"  # a kind to train, or a tokenizer.json or its folder
    weights: str | None = None  # a file that a new EfficientNet starts from, instead of its package's


class Captioned:
    """Pictures, and the captions of each as ids."""

    def __init__(self, pictures: Pictures, captions: list[list[str]], tokenizer: Tokenizer):
        self.sources, self.targets = pictures, captions
        texts = [caption for some in captions for caption in some]
        ids = tokenizer.encode_batch(texts)
        self.ids = Ragged(np.concatenate(ids).astype(np.int64), np.array([len(row) for row in ids]))
        self.pictures = np.repeat(np.arange(len(captions)), [len(some) for some in captions])  # of captions
        self.bytes = sum(len(text.encode()) for text in texts)

    def __len__(self) -> int:
        return len(self.pictures)

    def describe(self) -> str:
        return f"{len(self):,} captions of {self.sources.describe()}"

    def fingerprint(self) -> str:
        ids = self.ids.ids.tobytes() + self.ids.lengths.tobytes() + self.pictures.tobytes()
        return hashlib.sha256(self.sources.fingerprint().encode() + ids).hexdigest()


class Caption(PairTask):
    kinds = ("captioner",)
    data = CaptionData  # type: ignore[assignment]
    builtin = (), ()  # drawn shapes
    at_once = 64
    inherits = ("size", "channels")
    generation: ClassVar = {"max_new_tokens": 60, "temperature": 0.0, "num_beams": 4}

    # making a model

    @classmethod
    def read(  # type: ignore[override]
        cls,
        paths: Sequence[str],
        valid: Sequence[str],
        data: CaptionData,
        config: CaptionConfig,
        context: int,
        tokenizers: Sequence[Tokenizer] = (),
    ) -> Corpus:
        """Without paths, drawn shapes, measured on combinations that are not among those learnt from."""
        pictures, captions = captioned(paths, config.size, config.channels) if paths else shapes(held=False)
        C, H, _ = pictures.shape
        if valid or not paths:
            held, measured = captioned(valid, H, C) if valid else shapes(held=True)
        else:
            every = max(2, round(1 / data.holdout)) if data.holdout else len(pictures) + 1
            sides: tuple[list[int], list[int]] = ([], [])
            for i in range(len(pictures)):
                sides[(i + 1) % every == 0].append(i)
            held, measured = pictures.rows(sides[1]), [captions[i] for i in sides[1]]
            pictures, captions = pictures.rows(sides[0]), [captions[i] for i in sides[0]]
        texts = [(False, text) for some in captions for text in some]
        texts += [(True, text) for some in measured for text in some]
        tokenizer = tokenizers[0] if tokenizers else tokenizer_for(texts, data, cls.specials)
        train = Captioned(pictures, captions, tokenizer)
        cut = int((train.ids.lengths >= context).sum())
        found: dict[str, Any] = {"size": H, "channels": C}
        return Corpus(
            train,
            Captioned(held, measured, tokenizer) if len(held) else None,
            tokenizer,
            found=found,
            shape={"size": H, "channels": C},
            notes=[f"cut {cut:,} captions to {context - 1} tokens (model.context)"] if cut else [],
        )

    @classmethod
    def primed(cls, model: Any, data: CaptionData) -> None:
        if model.config.encoder == "efficientnet":
            model.encoder.net.load_state_dict(weights.efficientnet(data.weights))

    def held_out(self, paths: Sequence[str]) -> Captioned:  # type: ignore[override]
        pictures, captions = captioned(paths, self.config.size, self.config.channels)
        return Captioned(pictures, captions, self.tokenizer)

    def training(self, data: Captioned, seed: int, rows: int, tokens: int | None) -> Epochs:
        return Epochs(data, seed, rows if tokens is None else max(1, tokens // self.context))  # type: ignore[arg-type]

    def batch(self, samples: Epochs, rows: np.ndarray) -> Batch:
        """Pictures (B, C, H, W) and what is drawn for each; captions from their beginning, and to their end
        (B, T)."""
        pixels, target, following = self.collated(samples.data, samples.at(rows))  # type: ignore[arg-type]
        how = draw(self.config, keys(samples.seed ^ SALT, rows), pixels.shape[-1])
        return pixels, torch.from_numpy(how), target, following

    def collated(self, data: Captioned, rows: np.ndarray) -> Batch:  # type: ignore[override]
        following, counts = ended(data.ids, rows, self.context, self.end)
        target = np.roll(following, 1, axis=1)
        target[:, 0] = self.begin
        following[~counts] = IGNORED
        return data.sources.read(data.pictures[rows]), torch.from_numpy(target), torch.from_numpy(following)

    def in_order(self, data: Captioned, tokens: int) -> Iterator[Batch]:
        """Every caption once, without any change to its picture; as many as would fill so many tokens."""
        order = np.argsort(data.ids.lengths, kind="stable")
        for rows in np.split(order, range(0, len(order), max(1, tokens // self.context))[1:]):
            yield self.collated(data, rows)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """The sum over all predictions, in nats. While training, smoothed; and for an LSTM
        λ Σ_s (1 - Σ_t α_ts)² of every picture besides: no region shall be overlooked."""
        pixels, *how, target, following = batch
        if how:
            with torch.no_grad():
                pixels = change(self.config, pixels / 255, how[0])
        smoothing = self.config.smoothing if model.training else 0.0
        if not (model.training and self.config.evenly and hasattr(model.decoder, "look")):
            return cross_entropy(model.hidden(pixels, target), model.output, following, smoothing)
        with watch(model.decoder) as seen:
            hidden = model.hidden(pixels, target)
        looked = torch.cat([each["weights"][:, 0] for each in seen["look"]], dim=1)  # (B, T, S)
        counts = following != IGNORED
        uneven = (1 - (looked * counts[:, :, None]).sum(1)).square().sum(1) * counts.any(1)  # (B,)
        return cross_entropy(hidden, model.output, following, smoothing) + self.config.evenly * uneven.sum()

    def sample(self, model: Any, data: Captioned, seed: int) -> str:  # type: ignore[override]
        """A few pictures, and what the model says of them."""
        options = Sampling(max_new_tokens=60, temperature=0)
        told = self.answers(model, data.sources[:3], options)
        return "\n".join(f"{n}\n  → {a[0].text}" for n, a in zip(data.sources.names, told, strict=False))

    # using it

    def parts(self, text: str | Tensor) -> list[Any]:
        """The picture: the path of a file, or pixels (C, H, W) in bytes."""
        return [one(text, self.config.size, self.config.channels) if isinstance(text, str) else text]

    def sourced(self, part: Any) -> Any:
        return part

    def answers(self, model: Any, texts: Sequence[Any], *options: Any, **more: Any) -> list[list[Answer]]:
        found: list[list[Answer]] = []
        for i in range(0, len(texts), self.at_once):
            found += super().answers(model, texts[i : i + self.at_once], *options, **more)
        return found

    def looked(self, model: Any, text: str | Tensor, answer: str) -> tuple[Tensor, list[str]]:  # type: ignore[override]
        """Where each word of a caption looked: weights (T, side, side) over the grid of regions, the mean
        over the heads of the last layer; and the words."""
        written = [*self.tokenizer.encode(answer), self.end]
        device = next(model.parameters()).device
        target = torch.tensor([[self.begin, *written[:-1]]], device=device)
        with torch.inference_mode(), watch(model) as seen:
            model(self.parts(text)[0][None].to(device), target)
        last = [name for name in seen if name.endswith(("cross.f", "look"))][-1]
        looked = torch.cat([each["weights"][0].mean(0) for each in seen[last]])  # (T, S)
        side = math.isqrt(looked.shape[1])
        return looked.unflatten(1, (side, side)), self.tokenizer.tokens(written)

    @staticmethod
    def judged(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
        return scoring.caption_scores(answers, references)


def shapes(held: bool) -> tuple[Pictures, list[list[str]]]:
    """Drawn ones, the size of which is fixed."""
    made = drawn(seed=1, count=SHAPES[held], held=held)
    pictures = Pictures(made.captions, torch.from_numpy(made.pixels), [], (3, *made.pixels.shape[2:]))
    return pictures, [[caption] for caption in made.captions]
