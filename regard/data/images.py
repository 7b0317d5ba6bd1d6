"""Hold images of one size as a dataset: decoded once if they fit in memory, else when they are needed.

Shapes: B batch, C channels, H height, W width.
"""

import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from regard.data.archives import find_source, is_file
from regard.data.decoders import Decoders, decoders, processors
from regard.data.digests import file_sha256
from regard.data.reading import record_file
from regard.data.resizing import resize_parts, resizing_device, room_for
from regard.draw.terminal import progress
from regard.errors import UserError
from regard.vision.decoding import (
    FileBytes,
    ImageSource,
    Part,
    Shape,
    Size,
    decode_image,
    read_size,
    refuse_bombs,
    resize_image,
)

DEFAULT_WIDTH = 224  # the size to which larger images are resized, if none is given
SMALL = 32  # up to this, the default size is the images' own; larger ones are rounded, to divide into patches
MAX_MEMORY = 2 * 2**30  # bytes of pixels that are decoded once and kept
MANY = 512  # from this many images on, processes are started
MAX_ROOMS = 2**28  # bytes of images at a time that a GPU resizes, unless they are few
CHUNK = 8  # images that a process decodes at a time, at most


class PixelCache:
    """Decoded images, up to a number of bytes; several threads may use it.

    Images are never removed: an epoch reads every image once, so all are equally useful.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes, self.bytes, self.lock = max_bytes, 0, threading.Lock()
        self.images: dict[ImageSource, np.ndarray] = {}

    def get(self, source: ImageSource) -> np.ndarray | None:
        return self.images.get(source)

    def add(self, source: ImageSource, image: np.ndarray) -> None:
        """Keep a copy of the image if there is room."""
        with self.lock:
            if self.bytes + image.nbytes > self.max_bytes or source in self.images:
                return
            self.bytes += image.nbytes
            self.images[source] = image.copy()


class ImageDataset:
    """Images of one size: held in memory as `pixels`, or decoded from their `sources` each time."""

    noun = "images"
    in_processes: ClassVar[bool] = True  # many of them are decoded by other processes

    def __init__(
        self,
        names: Sequence[str],
        pixels: Tensor | None,
        sources: Sequence[ImageSource],
        shape: Shape,
        cache: PixelCache | None = None,  # of images that are not held as `pixels`
        room: int = 0,  # the side of a square for an image that a GPU resizes
    ):
        self.names, self.pixels, self.sources, self.shape = list(names), pixels, list(sources), shape
        self.cache, self.room = cache or PixelCache(0), room

    def __len__(self) -> int:
        return len(self.names)

    def describe(self) -> str:
        C, H, W = self.shape
        return f"{len(self):,} images of {W} x {H}{' in colour' if C == 3 else ''}"

    def read(self, rows: np.ndarray) -> Tensor:
        """Return these images as uint8 (B, C, H, W). Several threads may call it."""
        if self.pixels is not None:  # copied row by row; an index would copy byte by byte
            return torch.from_numpy(self.pixels.numpy().take(rows, axis=0))
        pool = decoders() if self.in_processes and len(self) >= MANY else None
        device = resizing_device() if pool is not None and self.room else None
        pixels = new_pixels(len(rows), self.shape, device)
        missing = list[int]()
        for place, (row, image) in enumerate(zip(rows.tolist(), pixels.numpy(), strict=True)):
            if (known := self.cache.get(self.sources[row])) is None:
                missing.append(place)
            else:
                image[:] = known
        sources, images = [self.sources[rows[i]] for i in missing], [pixels[i] for i in missing]
        if pool is not None and device is not None and sources:
            decode_on(device, images, sources, self.room, pool)
        else:
            decode_into([image.numpy() for image in images], sources, decode=self.decode, pool=pool)
        for source, image in zip(sources, images, strict=True):
            self.cache.add(source, image.numpy())
        return pixels

    @staticmethod
    def decode(source: ImageSource, shape: Shape) -> np.ndarray:
        return decode_image(source, shape)

    def rows(self, numbers: Sequence[int]) -> Self:
        """Return a dataset of these rows."""
        pixels = None if self.pixels is None else self.read(np.array(numbers, dtype=np.int64))
        sources = [self.sources[i] for i in numbers] if self.sources else []
        names = [self.names[i] for i in numbers]
        return type(self)(names, pixels, sources, self.shape, self.cache, self.room)

    def __getitem__(self, rows: slice) -> list[Tensor]:
        """Return a list of images (C, H, W)."""
        return list(self.read(np.arange(*rows.indices(len(self)))))

    @property
    def notes(self) -> list[str]:
        if self.pixels is not None:
            return []
        size, limit = len(self) * int(np.prod(self.shape)) / 2**30, self.cache.max_bytes / 2**30
        return [
            f"{self.noun} of {size:.1f} GB are too large to keep in memory; all but {limit:.1f} GB "
            "(data.memory_gb) are decoded again when needed"
        ]

    def keys(self) -> list[bytes]:
        """Return keys that equal images share: their pixels; of many, the size and beginning of files."""
        if self.pixels is not None:
            return [hashlib.sha256(image.contiguous().numpy().data).digest() for image in self.pixels]
        return [source.key() for source in self.sources]

    def fingerprint(self) -> str:
        """Return a SHA-256 of all images: of their files, or of their pixels if there are no files."""
        sha = hashlib.sha256(f"{len(self)} {self.shape}".encode())
        for source in self.sources:
            if isinstance(source, FileBytes):
                sha.update(source.key())
                continue
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
        """Return mean and standard deviation of each channel, from 0 to 1, over up to a thousand images."""
        channels = (self.read(self._sample_rows()).double() / 255).transpose(0, 1).flatten(1)
        return channels.mean(1).tolist(), channels.std(1).clamp(min=1e-3).tolist()

    def _sample_rows(self) -> np.ndarray:
        return np.unique(np.linspace(0, len(self) - 1, 1000, dtype=np.int64))


# Decoding


@functools.cache
def decoding_threads() -> ThreadPoolExecutor:
    """The threads that decode, or wait for decoding processes."""
    return ThreadPoolExecutor(processors(), "decode")


def run_chunks(count: int, size: int, run: Callable[[slice], None], advance: Callable[[int], None]) -> None:
    """Call `run` on slices of range(count), in several threads. The first error ends all of them."""
    slices = [slice(i, min(i + size, count)) for i in range(0, count, size)]
    jobs: list[Future[None]] = [decoding_threads().submit(run, each) for each in slices]
    try:
        for each, job in zip(slices, jobs, strict=True):
            job.result()
            advance(each.stop - each.start)
    except BaseException:
        for job in jobs:
            job.cancel()  # don't decode thousands of others first
        for job in jobs:
            if not job.cancelled():
                job.exception()  # wait for those that run: they write to the same memory
        raise


def decode_images(
    sources: Sequence[ImageSource],
    shape: Shape,
    advance: Callable[[int], None] = lambda n: None,
    decode: Callable[[ImageSource, Shape], np.ndarray] = decode_image,
    pool: Decoders | None = None,
) -> Tensor:
    """Decode images to uint8 (B, C, H, W), in several threads or processes."""
    pixels = torch.empty(len(sources), *shape, dtype=torch.uint8)
    decode_into(list(pixels.numpy()), sources, advance, decode, pool)
    return pixels


def decode_into(
    images: Sequence[np.ndarray],  # (C, H, W) each
    sources: Sequence[ImageSource],
    advance: Callable[[int], None] = lambda n: None,
    decode: Callable[[ImageSource, Shape], np.ndarray] = decode_image,
    pool: Decoders | None = None,  # instead of `decode`
) -> None:
    """Decode each image to its place, in several threads or processes."""

    def fill(chunk: slice) -> None:
        if pool is not None:
            pool.decode(sources[chunk], images[chunk])
            return
        for image, source in zip(images[chunk], sources[chunk], strict=True):
            image[:] = decode(source, image.shape)

    size = 1 if pool is None else pool_chunk(len(sources), pool)
    run_chunks(len(sources), size, fill, advance)


def pool_chunk(count: int, pool: Decoders) -> int:
    """The number of images that a process decodes at a time."""
    return max(1, min(CHUNK, count // (4 * pool.count)))


def new_pixels(count: int, shape: tuple[int, int, int], device: torch.device | None) -> Tensor:
    """Memory for `count` images, pinned if a GPU will read it: torch uses that again for the next ones."""
    pinned = device is not None and device.type == "cuda"
    return torch.empty(count, *shape, dtype=torch.uint8, pin_memory=pinned)


def decode_on(
    device: torch.device,
    images: Sequence[Tensor],  # (C, H, W) each
    sources: Sequence[ImageSource],
    room: int,
    pool: Decoders,
) -> None:
    """Decode each image in a process and resize it on a device, to the same pixels as `decode_into`."""
    shape: Shape = tuple(images[0].shape)  # type: ignore[assignment]
    size = max(4 * pool.count, MAX_ROOMS // (room * room * shape[0]))
    for first in range(0, len(sources), size):
        group = sources[first : first + size]
        rooms, parts = new_pixels(len(group), (room, room, shape[0]), device), dict[int, list[Part]]()
        decode_parts(group, shape, rooms, parts, pool)
        in_order = [part for start in sorted(parts) for part in parts[start]]
        resized = resize_parts(rooms.to(device, non_blocking=True), in_order, shape)
        for image, pixels in zip(images[first : first + size], resized, strict=True):
            image.copy_(pixels, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


def decode_parts(
    sources: Sequence[ImageSource], shape: Shape, rooms: Tensor, parts: dict[int, list[Part]], pool: Decoders
) -> None:
    """Decode each image into its room (R, R, C); note what is to be resized, by where a chunk begins."""

    def fill(chunk: slice) -> None:
        parts[chunk.start] = pool.decode_parts(sources[chunk], shape, list(rooms[chunk].numpy()))

    run_chunks(len(sources), pool_chunk(len(sources), pool), fill, lambda n: None)


def read_sizes(sources: Sequence[ImageSource], advance: Callable[[int], None]) -> list[Size]:
    """Read the headers of images."""
    sizes: list[Size] = []
    pool = decoders() if len(sources) >= MANY else None
    if pool is None:
        for source in sources:
            sizes.append(read_size(source))
            advance(1)
        return sizes
    chunks: dict[int, list[Size]] = {}

    def read(chunk: slice) -> None:
        chunks[chunk.start] = pool.sizes(sources[chunk])

    run_chunks(len(sources), 64, read, advance)
    return list(itertools.chain.from_iterable(chunks[start] for start in sorted(chunks)))


def find_image(path: str) -> ImageSource:
    """Return the file at a path of this machine."""
    if not is_file(path):
        raise UserError(f"{path}: no such image; give the path of one, such as a PNG, JPEG or WebP")
    return find_source(path)


def read_pixels(image: object, shape: Shape) -> Tensor:
    """Return the pixels (C, H, W) of an image, decoded if necessary. Strings are not paths here."""
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
    sources: Sequence[ImageSource],
    size: int | None,
    channels: int | None,
    max_size: int = DEFAULT_WIDTH,
    memory: int | None = None,
) -> ImageDataset:
    """Read the headers of all images, then decode them if they fit in `memory` bytes (None: MAX_MEMORY).

    The default size is about the median of their shorter sides, up to `max_size`; by default there is one
    channel if all images are grey.
    """
    for source in sources:
        record_file(source.path)
    with refuse_bombs(), progress("reading image headers", len(sources)) as advance:
        sizes = read_sizes(sources, advance)
    size = size or default_size(int(np.median([min(width, height) for width, height, _ in sizes])), max_size)
    shape = (channels or (1 if all(grey for *_, grey in sizes) else 3), size, size)
    names, memory = [source.name for source in sources], MAX_MEMORY if memory is None else memory
    if len(sources) * int(np.prod(shape)) > memory:
        return ImageDataset(names, None, sources, shape, PixelCache(memory), room_for(sizes, shape))
    pool = decoders() if len(sources) >= MANY else None
    with progress("decoding images", len(sources)) as advance:
        return ImageDataset(names, decode_images(sources, shape, advance, pool=pool), sources, shape)
