"""Decode images to pixels of one shape, with a limit on their size.

It needs no torch, so that processes that only decode start quickly and stay small.

Shapes: C channels, H height, W width.
"""

import hashlib
import importlib.util
import io
import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import PIL
from PIL import Image, ImageOps

from regard.errors import UserError, first_line, os_reason

MAX_PIXELS = 2**26  # in the header of an image: more would fill the memory
MAX_SIDE = 2**18  # pixels: Pillow allocates rows one by one, and lets no other thread run meanwhile
STRIP = 2**20  # pixels that are converted at a time
BLOCK = 2**26  # bytes of a large image that Pillow allocates at once

WEB = ("PNG", "JPEG", "WEBP")  # formats that clients may send
# Formats that Pillow only recognises, or hands to other programs.
NOT_READ = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
COLUMNS_MAY_BE_FIRST = int(PIL.__version__.partition(".")[0]) >= 13  # before, Pillow began with the rows
HEAD = 2**16  # first bytes of a file, by which its format is recognised
GREY = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}  # Pillow's modes without colour

# malloc gives blocks of more than 32 MiB back to the system at once. Of smaller ones, as Pillow's usual
# 16 MiB, it keeps some for each thread that has decoded an image.
Image.core.set_block_size(BLOCK)

Shape = tuple[int, int, int]  # channels, height, width
Size = tuple[int, int, bool]  # width and height of an image, and whether it is grey
Box = tuple[float, float, float, float]  # left, top, right, bottom
Axis = tuple[float, float, int, int]  # from where to where, of how many pixels, and how many are left out
Part = tuple[Axis, Axis, bool]  # what is resized of width and height, and whether columns come first


@dataclass(frozen=True)
class ImageSource:
    """Where the bytes of an image are: a file, or a part of a .tar or .zip."""

    path: str
    name: str  # for messages
    start: int = 0
    length: int = -1
    unpacked: int = -1  # its bytes, where those in the archive are deflated

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that it may have; a user's own file may have any that Pillow reads."""
        return readable_formats()

    def key(self) -> bytes:
        """Return a digest of the size and the first bytes, which hardly any other image has."""
        with open(self.path, "rb") as file:
            size = self.length if self.length >= 0 else os.fstat(file.fileno()).st_size
            if self.unpacked >= 0:
                size, head = self.unpacked, self._unpack(HEAD)
            else:
                file.seek(self.start)
                head = file.read(min(size, HEAD))
            return hashlib.sha256(str(size).encode() + head).digest()

    def open(self) -> str | io.BytesIO:
        """Return what Pillow opens; for a whole file its path, so that Pillow reads no more than it needs."""
        if self.length < 0:
            return self.path
        if self.unpacked >= 0:
            return io.BytesIO(self._unpack(self.unpacked))
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return io.BytesIO(file.read(self.length))

    def _unpack(self, limit: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            data = file.read(self.length)
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, limit) if limit else b""
        except zlib.error as error:
            raise UserError(f"{self.name}: damaged in the zip ({first_line(error)}); get it again") from None


@dataclass(frozen=True)
class FileBytes(ImageSource):
    """The bytes of an image or a recording in memory: from a cell of a table, a program, or a request."""

    data: bytes = b""

    def key(self) -> bytes:
        return hashlib.sha256(self.data).digest()

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.data)


def encode_image(image: Image.Image) -> bytes:
    """Encode an image losslessly, upright as `resize_image` would make it."""
    file = io.BytesIO()
    mode_of_png = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
    upright = ImageOps.exif_transpose(image)
    upright.save(file, "PNG" if mode_of_png else "TIFF", **({"compress_level": 1} if mode_of_png else {}))
    return file.getvalue()


@cache
def readable_formats() -> tuple[str, ...]:
    """Return the formats that are read; the usual ones are tried first."""
    Image.init()
    if importlib.util.find_spec("pillow_heif") is not None:  # HEIC, the format of phones
        importlib.import_module("pillow_heif").register_heif_opener()
    return *WEB, *sorted(Image.OPEN.keys() - {*WEB, *NOT_READ})


@cache
def readable_suffixes() -> frozenset[str]:
    """Return the suffixes of image files that are read."""
    formats = readable_formats()
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in formats)


class ImageTooLarge(UserError):
    """An image has more pixels than are decoded."""


@contextmanager
def refuse_bombs() -> Iterator[None]:
    """Turn Pillow's warning about a huge image into an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def open_image(source: ImageSource) -> Image.Image:
    """Read the header of an image; raise UserError if it is damaged or too large."""
    try:
        image = Image.open(source.open(), formats=source.formats)
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


def read_size(source: ImageSource) -> Size:
    """Read the header of an image."""
    with open_image(source) as image:
        return image.width, image.height, image.mode in GREY


def check_pixels(source: ImageSource, image: Image.Image, limit: int) -> None:
    reason = None
    if image.width * image.height > limit:
        reason = f"over {limit:,} pixels"
    elif max(image.size) > MAX_SIDE:
        reason = f"over {MAX_SIDE:,} pixels on a side"
    if reason is not None:
        image.close()
        raise ImageTooLarge(f"{source.name}: {image.width} x {image.height} is {reason}; make it smaller")


def damaged_image(source: ImageSource, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    reason = "" if "cannot identify" in str(error) else f" ({first_line(error)})"  # it names no file
    if source.name.lower().endswith((".heic", ".heif")) and importlib.util.find_spec("pillow_heif") is None:
        return UserError(f"{source.name}: HEIC; convert it to .png or .jpg, or: pip install 'regard[heic]'")
    known = "PNG, JPEG or WebP" if source.formats == WEB else "image, such as a PNG, JPEG or WebP"
    return UserError(f"{source.name}: not a complete {known}{reason}; remove it or get it again")


def decode_image(source: ImageSource, shape: Shape, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode an image to uint8 (C, H, W): resized until its shorter side fits, then cropped in the middle.

    `max_pixels` limits the pixels that are decoded; a JPEG's file may have more.
    """
    with load_image(source, shape, max_pixels) as image:
        return resize_image(image, shape)


@contextmanager
def load_image(source: ImageSource, shape: Shape, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """Decode an image, a JPEG at a fraction of its size if that is enough for the shape."""
    C, H, W = shape
    try:
        with open_image(source) as image:
            image.draft("L" if C == 1 else "RGB", (W, H))  # a JPEG can be decoded at half the size or less
            check_pixels(source, image, max_pixels)
            image.load()
            yield image
    except Exception as error:  # any error that Pillow raises is caused by this image
        raise damaged_image(source, error) from None


def resize_image(image: Image.Image, shape: Shape) -> np.ndarray:
    """Return the pixels (C, H, W): upright, on a white background, in grey or RGB, resized and cropped."""
    C, H, W = shape
    image = set_upright(image, "L" if C == 1 else "RGB")
    if image.size != (W, H):
        image = image.resize((W, H), Image.Resampling.BICUBIC, box=fit_box(image.size, shape))
    return np.asarray(image).reshape(H, W, C).transpose(2, 0, 1)


def set_upright(image: Image.Image, mode: str) -> Image.Image:
    """Return the image upright, on a white background, in grey or RGB."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = put_on_white(image, mode)
    return image if image.mode == mode else image.convert(mode)


def fit_box(size: tuple[int, int], shape: Shape) -> Box:
    """The largest part with the proportions of the shape, in the middle of an image, as `ImageOps.fit`."""
    (width, height), (_, H, W) = size, shape
    ratio, w, h = W / H, float(width), float(height)
    if width / height > ratio:
        w = ratio * height
    elif width / height < ratio:
        h = width / ratio
    left, top = (width - w) * 0.5, (height - h) * 0.5
    return left, top, left + w, top + h


# Images that another device resizes


def decode_part(source: ImageSource, shape: Shape, room: np.ndarray) -> Part:
    """Decode an image into `room` (R, R, C), at least as large as the shape: the part of it that resizing
    reads, or the resized image if the room is too small. Return what is to be resized of it."""
    with load_image(source, shape) as image:
        return part_of(image, shape, room)


def part_of(image: Image.Image, shape: Shape, room: np.ndarray) -> Part:
    C, H, W = shape
    image = set_upright(image, "L" if C == 1 else "RGB")
    left, top, right, bottom = fit_box(image.size, shape)
    x, width = margins(left, right, image.width, W)
    y, height = margins(top, bottom, image.height, H)
    if max(width, height) > len(room):
        room[:H, :W] = resize_image(image, shape).transpose(1, 2, 0)
        return (0, W, W, 0), (0, H, H, 0), False
    pixels = np.asarray(image).reshape(image.height, image.width, C)
    room[:height, :width] = pixels[y : y + height, x : x + width]
    # Pillow's rule: whichever makes the second pass shorter by much
    columns_first = COLUMNS_MAY_BE_FIRST and image.height - H > max(0, 2 * (image.width - W))
    return (left, right, image.width, x), (top, bottom, image.height, y), columns_first


def margins(start: float, end: float, size: int, out: int) -> tuple[int, int]:
    """Where the pixels begin that bicubic resizing of a part to `out` pixels reads, and their number."""
    reach = 2 * max(1.0, (end - start) / out) + 1
    first = max(0, int(start - reach))
    return first, min(size, int(end + reach) + 1) - first


def put_on_white(image: Image.Image, mode: str) -> Image.Image:
    """Return an image in RGB or grey on a white background. In strips, since each step needs a copy."""
    result = Image.new(mode, image.size)
    height = max(1, STRIP // image.width)
    for top in range(0, image.height, height):
        box = 0, top, image.width, min(top + height, image.height)
        strip = image.crop(box).convert("RGBA")
        opaque = Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip)
        result.paste(opaque.convert(mode), box)
    return result
