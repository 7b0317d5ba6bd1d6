"""Decode images, and hold them as a dataset.

Shapes: B batch, C channels, H height, W width.
"""

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from regard.data.digests import file_sha256
from regard.data.files import record_file
from regard.draw.terminal import progress
from regard.errors import UserError, first_line, os_reason

MAX_PIXELS = 2**26  # in the header of an image: more would fill the memory
STRIP = 2**20  # pixels that are converted at a time
DEFAULT_WIDTH = 224  # the size to which larger images are resized, if none is given
SMALL = 32  # up to this, the default size is the images' own; larger ones are rounded, to divide into patches
MAX_MEMORY = 2 * 2**30  # bytes of pixels that are decoded once and kept
GREY = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}  # Pillow's modes without colour
THREADS = min(16, os.cpu_count() or 1)

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class ImageSource:
    """Where the bytes of an image are: a file, or a part of a .tar."""

    path: str
    name: str  # for messages
    start: int = 0
    length: int = -1

    def open(self) -> str | io.BytesIO:
        """Return what Pillow opens: the path of a whole file, so that it reads no more than it needs."""
        if self.length < 0:
            return self.path
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return io.BytesIO(file.read(self.length))


class ImageTooLarge(UserError):
    """An image has more pixels than are decoded."""


class ImageDataset:
    """Images of one size: held in memory as `pixels`, or decoded from their `sources` each time."""

    noun = "images"

    def __init__(
        self, names: Sequence[str], pixels: Tensor | None, sources: Sequence[ImageSource], shape: Shape
    ):
        self.names, self.pixels, self.sources, self.shape = list(names), pixels, list(sources), shape

    def __len__(self) -> int:
        return len(self.names)

    def describe(self) -> str:
        C, H, W = self.shape
        return f"{len(self):,} images of {W} x {H}{' in colour' if C == 3 else ''}"

    def read(self, rows: np.ndarray) -> Tensor:
        """Return these images as uint8 (B, C, H, W)."""
        if self.pixels is not None:
            return self.pixels[torch.from_numpy(np.asarray(rows, dtype=np.int64))]
        return decode_images([self.sources[row] for row in rows.tolist()], self.shape, decode=self.decode)

    @staticmethod
    def decode(source: ImageSource, shape: Shape) -> np.ndarray:
        return decode_image(source, shape)

    def rows(self, numbers: Sequence[int]) -> Self:
        """Return a dataset of these rows."""
        pixels = None if self.pixels is None else self.pixels[torch.tensor(numbers, dtype=torch.int64)]
        sources = [self.sources[i] for i in numbers] if self.sources else []
        return type(self)([self.names[i] for i in numbers], pixels, sources, self.shape)

    def __getitem__(self, rows: slice) -> list[Tensor]:
        """Return a list of images (C, H, W)."""
        return list(self.read(np.arange(*rows.indices(len(self)))))

    @property
    def notes(self) -> list[str]:
        if self.pixels is not None:
            return []
        size = len(self) * int(np.prod(self.shape)) / 2**30
        return [
            f"{self.noun} of {size:.1f} GB are too large to keep in memory; each is decoded again when needed"
        ]

    def fingerprint(self) -> str:
        """Return a SHA-256 of all images: of their files, or of their pixels if these are not from files."""
        sha = hashlib.sha256(f"{len(self)} {self.shape}".encode())
        for source in self.sources:
            sha.update(f"{file_sha256(source.path)} {source.start} {source.length}\n".encode())
        if self.pixels is not None and not self.sources:
            for block in self.pixels.split(1000):
                sha.update(block.contiguous().numpy().data)
        return sha.hexdigest()

    def sampled_fingerprint(self) -> str:
        """Return the SHA-256 of up to a thousand images, as earlier versions did."""
        sha = hashlib.sha256(f"{len(self)} {self.shape}".encode())
        for rows in np.array_split(self._sample_rows(), 10):
            sha.update(self.read(rows).numpy().tobytes())
        return sha.hexdigest()

    def moments(self) -> tuple[list[float], list[float]]:
        """Return mean and standard deviation of each channel, from 0 to 1, of up to a thousand images."""
        channels = (self.read(self._sample_rows()).double() / 255).transpose(0, 1).flatten(1)
        return channels.mean(1).tolist(), channels.std(1).clamp(min=1e-3).tolist()

    def _sample_rows(self) -> np.ndarray:
        return np.unique(np.linspace(0, len(self) - 1, 1000, dtype=np.int64))


# Decoding


@contextmanager
def refuse_bombs() -> Iterator[None]:
    """Turn Pillow's warning about a huge image into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def open_image(source: ImageSource) -> Image.Image:
    """Read the header of an image; raise UserError if it is damaged or too large."""
    try:
        image = Image.open(source.open(), formats=("PNG", "JPEG", "WEBP"))
    except PermissionError as error:
        raise UserError(
            f"{source.name}: cannot be read ({os_reason(error)}); check its permissions"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageTooLarge(f"{source.name}: over {MAX_PIXELS:,} pixels; make it smaller") from None
    except Exception as error:  # Pillow's readers raise all kinds of them
        raise damaged_image(source, error) from None
    check_pixels(source, image, MAX_PIXELS)
    return image


def check_pixels(source: ImageSource, image: Image.Image, limit: int) -> None:
    if image.width * image.height > limit:
        image.close()
        size = f"{image.width} x {image.height}"
        raise ImageTooLarge(f"{source.name}: {size} is over {limit:,} pixels; make it smaller")


def damaged_image(source: ImageSource, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    reason = "" if "cannot identify" in str(error) else f" ({first_line(error)})"  # it names no file
    return UserError(f"{source.name}: not a complete PNG, JPEG or WebP{reason}; remove it or get it again")


def decode_image(source: ImageSource, shape: Shape, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode an image to uint8 (C, H, W): resized until its shorter side fits, then cropped in the middle.

    `max_pixels` limits what is decoded, which can be less than what a JPEG has in its file.
    """
    C, H, W = shape
    try:
        with open_image(source) as image:
            image.draft("L" if C == 1 else "RGB", (W, H))  # a JPEG can be decoded at half the size or less
            check_pixels(source, image, max_pixels)
            image.load()
            return resize_image(image, shape)
    except Exception as error:  # whatever Pillow raises, this image is the cause
        raise damaged_image(source, error) from None


def resize_image(image: Image.Image, shape: Shape) -> np.ndarray:
    """Return the pixels (C, H, W): upright, on a white background, in grey or RGB, resized and cropped."""
    C, H, W = shape
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = put_on_white(image)
    mode = "L" if C == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    if image.size != (W, H):
        image = ImageOps.fit(image, (W, H), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(H, W, C).transpose(2, 0, 1)


def put_on_white(image: Image.Image) -> Image.Image:
    """Return an image in RGB on a white background. In strips, since each step needs a copy."""
    result = Image.new("RGB", image.size)
    height = max(1, STRIP // image.width)
    for top in range(0, image.height, height):
        box = 0, top, image.width, min(top + height, image.height)
        strip = image.crop(box).convert("RGBA")
        result.paste(Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip), box)
    return result


def decode_images(
    sources: Sequence[ImageSource],
    shape: Shape,
    advance: Callable[[int], None] = lambda n: None,
    decode: Callable[[ImageSource, Shape], np.ndarray] = decode_image,
) -> Tensor:
    """Decode images to uint8 (B, C, H, W), in several threads."""
    pixels = torch.empty(len(sources), *shape, dtype=torch.uint8)
    array = pixels.numpy()

    def fill(i: int) -> None:
        array[i] = decode(sources[i], shape)

    with ThreadPoolExecutor(THREADS) as threads:
        try:
            for _ in threads.map(fill, range(len(sources))):
                advance(1)
        except BaseException:
            threads.shutdown(cancel_futures=True)  # do not decode thousands of others first
            raise
    return pixels


def find_image(path: str) -> ImageSource:
    """Return the file at a path of this machine."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such image; give the path of a PNG, JPEG or WebP")
    return ImageSource(path, path)


def read_pixels(image: object, shape: Shape) -> Tensor:
    """Return the pixels (C, H, W) of an image, if it is not decoded yet. A string is no path here."""
    if isinstance(image, Tensor):
        return image
    if not isinstance(image, ImageSource):
        raise UserError("this model reads images; give the path of one, or its pixels")
    with refuse_bombs():
        return torch.from_numpy(decode_image(image, shape).copy())


def resize_pixels(pixels: Tensor, shape: Shape) -> Tensor:
    """Return the pixels (C, H, W) of an image for a model that reads another shape."""
    image = Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
    return torch.from_numpy(resize_image(image, shape).copy())


def default_size(side: int, max_size: int) -> int:
    """Return the size to use for images whose shorter side is this long."""
    return side if side <= SMALL else min(max_size, side // 8 * 8)


def load_images(
    sources: Sequence[ImageSource], size: int | None, channels: int | None, max_size: int = DEFAULT_WIDTH
) -> ImageDataset:
    """Read the headers of all images, then decode them if they fit in memory.

    The default size is about the median of their shorter sides, up to `max_size`; by default there is one
    channel if all images are grey.
    """
    sides, grey = [], True
    with refuse_bombs(), progress("reading image headers", len(sources)) as advance:
        for source in sources:
            record_file(source.path)
            with open_image(source) as image:
                sides.append(min(image.size))
                grey = grey and image.mode in GREY
            advance(1)
    size = size or default_size(int(np.median(sides)), max_size)
    shape = (channels or (1 if grey else 3), size, size)
    pixels = None
    if len(sources) * int(np.prod(shape)) <= MAX_MEMORY:
        with progress("decoding images", len(sources)) as advance:
            pixels = decode_images(sources, shape, advance)
    return ImageDataset([source.name for source in sources], pixels, sources, shape)
