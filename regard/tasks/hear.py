"""Classification of short recordings by their spectrograms. Gong et al. 2021 (AST), Berg et al. 2021 (KWT).

Shapes: B batch, M mel bands, T frames, P frames of a patch, N patches, L classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.audio.mel import FRAMES, HOP, RATE, attention_mask, spectrogram
from regard.data import Corpus
from regard.data.cells import quote_names
from regard.data.labels import class_names
from regard.data.shuffling import random_keys
from regard.data.sound_readers import LabelledSound, read_sound_classes, split_by_voice
from regard.data.sounds import (
    DEFAULT_SECONDS,
    SoundDataset,
    find_sound,
    frames_of,
    load_sounds,
    pad_sound,
    read_spectrogram,
)
from regard.data.spec_augment import SpecAugmentation, apply_spec_augmentation, sample_spec_augmentation
from regard.data.synthetic import speak_digits
from regard.describe.images import SPECTROGRAM
from regard.errors import UserError
from regard.models import ModelWithHead, ViT
from regard.tasks.batches import Batch, Shuffled
from regard.tasks.heads import label_settings
from regard.tasks.pixel_classes import Examples, PictureConfig, PixelClasses, PixelConfig
from regard.tasks.request import DataRequest
from regard.vision.decoding import ImageSource

SPOKEN = (
    (40, 5),
    (10, 5),
)  # without data, the number of voices that say the digits, and how often: training, evaluation
SPOKEN_SECONDS = 1.2
SALT = 0x736F756E6473  # augmentations use other random numbers than the order of the data


@dataclass(frozen=True, kw_only=True)
class HearConfig(PixelConfig, SpecAugmentation):
    name: Literal["hear"]
    seconds: float | None = None  # of a recording, its loudest part; None: as found in the data
    mels: int = 64  # bands of frequencies

    def __post_init__(self) -> None:
        PixelConfig.__post_init__(self)
        SpecAugmentation.__post_init__(self)
        if not 1 <= self.mels <= 128:
            raise ValueError(f"mels={self.mels} must be from 1 to 128")
        if self.seconds is not None and not 0 < self.seconds <= 60:
            raise ValueError(f"seconds={self.seconds} must be more than 0 and at most 60")


class Hear(PixelClasses[HearConfig]):
    data_config = PictureConfig
    reads = "audio"
    inherits = ("seconds", "mels", "mean", "std")
    normalised = SPECTROGRAM

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 1, self.config.mels, frames_of(self.config.seconds or 1)

    def find_file(self, path: str) -> ImageSource:
        return find_sound(path)

    def pixels(self, input: ImageSource | Tensor) -> Tensor:
        """The spectrogram of a recording, (1, M, T) in bytes."""
        return read_spectrogram(input, self.image_shape)

    def stack(self, pixels: Sequence[Tensor]) -> Tensor:
        """Stack spectrograms to one tensor (B, 1, M, T), padded on the right."""
        longest = max(x.shape[-1] for x in pixels)
        return torch.stack([F.pad(x, (0, longest - x.shape[-1])) for x in pixels])

    # Data

    @classmethod
    def read(cls, request: DataRequest[HearConfig]) -> Corpus:
        """Read the data; without paths, synthesize spoken digits."""
        config, notes, recordings = request.config, list[str](), read_sound_classes(request.paths)
        memory = request.data.memory
        data, labels = (
            load_labelled(recordings, config, memory=memory) if recordings else speak(config, False)
        )
        seconds = data.shape[2] * HOP / RATE
        if request.valid:
            held, held_labels = load_labelled(read_sound_classes(request.valid), config, seconds, memory)
        elif not recordings:
            held, held_labels = speak(config, True)
        else:
            training, valid, voices = split_by_voice(recordings, request.data.holdout, data.keys())
            held, held_labels = data.rows(valid), [labels[i] for i in valid]
            data, labels = data.rows(training), [labels[i] for i in training]
            if voices:
                notes.append(f"held out to evaluate on, and not heard in training: {quote_names(voices)}")
        names = list(config.labels or class_names(labels))
        mean, std = data.moments()
        settings: dict[str, Any] = {"seconds": seconds, "mels": config.mels}
        settings |= {"mean": mean, "std": std}
        train = Examples(data, labels, names)
        more, labelled = label_settings(config, train.labels, names)
        if config.seconds is None and seconds >= DEFAULT_SECONDS:
            notes.append(f"of longer recordings, the loudest {seconds:g} s are read (task.seconds)")
        return Corpus(
            train,
            Examples(held, held_labels, names) if len(held) else None,
            None,
            task_settings=settings | more,
            notes=labelled + notes,
            model_settings={"size": data.shape[2], "channels": 1, "mels": config.mels},
        )

    def held_out(self, paths: Sequence[str]) -> Examples:
        return Examples(*load_labelled(read_sound_classes(paths), self.config), self.labels)

    def batch(self, samples: Shuffled, rows: np.ndarray) -> Batch:
        """Spectrograms (B, 1, M, T), how to augment each, and their classes (B,)."""
        data, index = samples.data, samples.at(rows)
        how = sample_spec_augmentation(self.config, random_keys(samples.seed ^ SALT, rows))
        return data.sources.read(index), torch.from_numpy(how), torch.from_numpy(data.labels[index])

    def count_read(self, batch: Batch) -> dict[str, float]:
        """Count the seconds of sound without padding, and the tokens, one for each patch."""
        frames = int((batch[0].amax(2) > 0).sum())
        return {"seconds_of_sound": frames * HOP / RATE, "tokens": len(batch[0]) * self.context}

    # Training

    @classmethod
    def add_head(cls, model: nn.Module, config: HearConfig) -> nn.Module:
        vit = cast(ViT, model)
        c = vit.config
        if not c.mels:
            raise UserError("this model reads images; train it further with the recipe see")
        if c.mels != config.mels or c.size < frames_of(config.seconds or 0):
            raise UserError(
                f"{config.mels} mels of {config.seconds} s: the model has {c.mels} mels, and up to "
                f"{c.size * HOP / RATE:g} s; set task.mels and task.seconds"
            )
        if FRAMES % c.patch:
            raise UserError(f"model.patch={c.patch}: {FRAMES} frames must divide by it; give 1, 2, 4 or 8")
        return ModelWithHead(vit, len(config.labels or (0,)), dropout=c.dropout)

    def attention_mask(self, model: ModelWithHead, pixels: Tensor) -> tuple[Tensor, ...]:
        c = model.config
        return (attention_mask(pixels, c.patch, c.pool == "first"),)

    def loss(self, model: ModelWithHead, *batch: Tensor) -> Tensor:
        """The sum of cross-entropies."""
        pixels, how, labels = batch
        with torch.no_grad():
            x = apply_spec_augmentation(pixels / 255, how)
        return self.cross_entropies(self.logits(model, x), labels, self.config.smoothing).sum()

    # Looking on

    def region_names(self, model: ModelWithHead, rows: int, columns: int) -> list[str]:
        """The time at which each patch begins."""
        step = model.config.patch * HOP / RATE
        return [f"{i * step:.2f} s" for i in range(columns)]


def load_labelled(
    recordings: Sequence[LabelledSound],
    config: HearConfig,
    seconds: float | None = None,
    memory: int | None = None,
) -> tuple[SoundDataset, list[str]]:
    """Load recordings and their classes; the length is that of the settings by default."""
    sources = [recording.source for recording in recordings]
    data = load_sounds(sources, config.mels, seconds or config.seconds, memory)
    return data, [recording.label for recording in recordings]


def speak(config: HearConfig, held: bool) -> tuple[SoundDataset, list[str]]:
    """Synthesize spoken digits, and return them with their classes; other voices are held out."""
    recordings = speak_digits(1 + held, *SPOKEN[held])
    shape = 1, config.mels, frames_of(config.seconds or SPOKEN_SECONDS)
    pixels = [spectrogram(torch.from_numpy(samples), config.mels).numpy() for _, _, samples in recordings]
    padded = torch.from_numpy(np.stack([pad_sound(x[:, :, : shape[2]], shape) for x in pixels]))
    names = [f"{word}, {voice}" for word, voice, _ in recordings]
    return SoundDataset(names, padded, [], shape), [word for word, _, _ in recordings]
