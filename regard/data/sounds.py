"""Read WAV files, and hold their spectrograms as a dataset.

Shapes: B batch, N samples, M mel bands, T frames.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from regard.audio.mel import FRAMES, HOP, RATE, resample, spectrogram
from regard.data.archives import find_source, is_file
from regard.data.images import MAX_MEMORY, ImageDataset, PixelCache, decode_images
from regard.data.reading import record_file
from regard.draw.terminal import progress
from regard.errors import UserError, os_reason
from regard.files.regular import regular_stat
from regard.vision.decoding import ImageSource, Shape

MAX_SECONDS = 300  # of a recording
MAX_BYTES = 2**25  # of its samples
MAX_CHUNKS = 1000  # of a file, before its samples
DEFAULT_SECONDS = 10  # longer recordings are cut to this, if no length is given
RATES = 1_000, 768_000  # samples a second: the smallest and the largest rate
CHANNELS = 64
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # formats of samples
UNKNOWN = 0x7FFFFFFF  # larger lengths stand for streams, which end with the file


class SoundTooLarge(UserError):
    """A recording is longer than the limit."""


@dataclass(frozen=True)
class WavHeader:
    """The format and the place of the samples in a WAV file."""

    is_float: bool
    bits: int  # of a sample
    channels: int
    rate: int
    start: int  # of the samples in the file
    count: int  # of samples in each channel

    @property
    def seconds(self) -> float:
        return self.count / self.rate


# Decoding


def open_sound(source: ImageSource) -> BinaryIO:
    """Open a WAV file, or a part of a .tar."""
    try:
        file = source.open()
        if not isinstance(file, str):
            return file
        regular_stat(file)
        return open(file, "rb")
    except OSError as error:
        raise UserError(
            f"{source.name}: cannot be read ({os_reason(error)}); check its permissions"
        ) from None


def damaged_sound(name: str, reason: str) -> UserError:
    return UserError(f"{name}: not a complete WAV file ({reason}); remove it or get it again")


def read_header(file: BinaryIO, name: str) -> WavHeader:
    """Read the chunks of a WAV file up to its samples; raise UserError if they are invalid."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if (head := file.read(12))[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise damaged_sound(name, "it does not begin as one")
    fields: tuple[int, ...] | None = None
    for _ in range(MAX_CHUNKS):
        kind, start = file.read(8), file.tell()
        if len(kind) < 8:
            break
        length = int(struct.unpack("<I", kind[4:])[0])
        if kind[:4] == b"data" and fields is not None:
            return check_header(fields, start, length, size - start, name)
        if kind[:4] == b"fmt ":
            data = file.read(min(length, 40))
            if len(data) < 16:
                raise damaged_sound(name, "its format is cut off")
            fields = struct.unpack("<HHIIHH", data[:16])
            if fields[0] == EXTENSIBLE and len(data) >= 26:
                fields = struct.unpack("<H", data[24:26]) + fields[1:]
        file.seek(start + length + length % 2)
    raise damaged_sound(name, "it has no samples")


def check_header(fields: tuple[int, ...], start: int, length: int, there: int, name: str) -> WavHeader:
    """Check the fields of a header; the file states `length` bytes of samples, and has `there`."""
    kind, channels, rate, _, block, bits = fields
    if (kind, bits) not in {*((PCM, n) for n in (8, 16, 24, 32)), (FLOAT, 32), (FLOAT, 64)}:
        raise UserError(
            f"{name}: samples of {bits} bits in format {kind}; convert it to PCM of 16 bits, or to float"
        )
    if not 1 <= channels <= CHANNELS or not RATES[0] <= rate <= RATES[1] or block != channels * bits // 8:
        raise damaged_sound(name, f"{channels} channels in {block} bytes, {rate:,} samples a second")
    length = there if length >= UNKNOWN else length
    if length > there:
        raise damaged_sound(name, f"{length:,} bytes of samples should follow its header, but {there:,} do")
    header = WavHeader(kind == FLOAT, bits, channels, rate, start, length // block)
    if not header.count:
        raise UserError(f"{name}: it has no samples; remove it")
    if header.seconds > MAX_SECONDS or length > MAX_BYTES:
        raise SoundTooLarge(
            f"{name}: {header.seconds:,.0f} s in {length:,} bytes; up to {MAX_SECONDS} s and {MAX_BYTES:,} "
            "bytes are read; cut it"
        )
    return header


def read_wav(source: ImageSource) -> Tensor:
    """The samples of a WAV file at RATE, about from -1 to 1, the mean of its channels: float32 (N)."""
    with open_sound(source) as file:
        header = read_header(file, source.name)
        file.seek(header.start)
        data = file.read(header.count * header.channels * header.bits // 8)
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite
        samples = decode_samples(data, header.is_float, header.bits).reshape(-1, header.channels).mean(1)
    if not np.isfinite(samples).all():
        raise damaged_sound(source.name, "some samples are not finite")
    samples /= max(1.0, float(abs(samples).max()))  # so that squares don't overflow
    return resample(torch.from_numpy(samples), header.rate)


def decode_samples(data: bytes, is_float: bool, bits: int) -> np.ndarray:
    """Samples of any format in float32; whole numbers are scaled to -1 to 1."""
    if is_float:
        return np.frombuffer(data, f"<f{bits // 8}").astype(np.float32)
    if bits == 8:
        return np.frombuffer(data, np.uint8) / np.float32(128) - 1
    if bits == 24:  # the upper bytes of 32 bits
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    return np.frombuffer(data, f"<i{bits // 8}").astype(np.float32) / 2 ** (bits - 1)


def decode_sound(source: ImageSource, shape: Shape) -> np.ndarray:
    """The spectrogram of a recording, uint8 (1, M, T), of at most the shape's frames: the loudest ones."""
    _, mels, longest = shape
    x = spectrogram(read_wav(source), mels).numpy()
    if (extra := x.shape[2] - longest) <= 0:
        return x
    loud = np.cumsum(x.sum((0, 1), dtype=np.int64))
    loud = np.append(0, loud)
    first = int((loud[longest:] - loud[:-longest])[: extra + 1].argmax())
    return x[:, :, first : first + longest]


def pad_sound(x: np.ndarray, shape: Shape) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (0, shape[2] - x.shape[2])))


# Datasets


class SoundDataset(ImageDataset):
    """Spectrograms, padded with zeros to one length."""

    noun = "recordings"
    in_processes = False

    @staticmethod
    def decode(source: ImageSource, shape: Shape) -> np.ndarray:
        return pad_sound(decode_sound(source, shape), shape)

    def describe(self) -> str:
        return f"{len(self):,} recordings of up to {self.shape[2] * HOP / RATE:.2f} s"

    def moments(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation, from 0 to 1, over up to a thousand recordings, unpadded."""
        x = self.read(self._sample_rows())
        unpadded = x[x > 0].double() / 255
        return [unpadded.mean().item()], [unpadded.std().clamp(min=1e-3).item()]


def find_sound(path: str) -> ImageSource:
    """Return the file at a path of this machine."""
    if not is_file(path):
        raise UserError(f"{path}: no such recording; give the path of a WAV file")
    return find_source(path)


def read_spectrogram(recording: object, shape: Shape) -> Tensor:
    """Return the spectrogram (1, M, T) of a recording, computed if necessary. Strings are not paths here."""
    if isinstance(recording, Tensor):
        size = tuple(recording.shape)
        if size[:2] != shape[:2] or not 0 < size[2] <= shape[2] or size[2] % FRAMES:
            need = f"(1, {shape[1]}, up to {shape[2]}), in steps of {FRAMES} frames"
            raise UserError(f"a spectrogram {size}: this model reads {need}")
        return recording
    if not isinstance(recording, ImageSource):
        raise UserError("this model reads recordings; give the path of one, or its spectrogram")
    return torch.from_numpy(decode_sound(recording, shape).copy())


def frames_of(seconds: float) -> int:
    """The number of frames of a spectrogram of this many seconds."""
    return max(1, -(-round(seconds * RATE) // (HOP * FRAMES))) * FRAMES


def load_sounds(
    sources: Sequence[ImageSource], mels: int, seconds: float | None, memory: int | None = None
) -> SoundDataset:
    """Read the headers of all recordings, then decode them if they fit in `memory` bytes (None: MAX_MEMORY).

    By default, they are as long as the longest, up to DEFAULT_SECONDS.
    """
    longest = 0.0
    with progress("reading headers", len(sources)) as advance:
        for source in sources:
            record_file(source.path)
            with open_sound(source) as file:
                longest = max(longest, read_header(file, source.name).seconds)
            advance(1)
    shape = 1, mels, frames_of(seconds or min(longest, DEFAULT_SECONDS))
    names = [source.name for source in sources]
    pixels, memory = None, MAX_MEMORY if memory is None else memory
    if len(sources) * int(np.prod(shape)) <= memory:
        with progress("decoding recordings", len(sources)) as advance:
            pixels = decode_images(sources, shape, advance, SoundDataset.decode)
    return SoundDataset(names, pixels, sources, shape, PixelCache(memory))
