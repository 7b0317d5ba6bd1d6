"""Pictures: folders of classes, IDX files, tables with captions; whatever is wrong with them is named.

Shapes: B batch, C channels, H height, W width.
"""

import hashlib
import io
import os
import struct
import tarfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.display import progress
from regard.errors import Mistake
from regard.text import one_line

from .reading import decoded, empty, holds, in_folder, lines, missing, opened, why

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
LARGEST = 2**26  # pixels of a picture, told by its header: more would fill the memory
WIDEST = 224  # to which pictures are made smaller, if no size is asked for
SMALL = 32  # up to this, their own size is the usual one; larger ones are rounded, to divide into patches
IN_MEMORY = 2 * 2**30  # bytes of pixels that are decoded once and kept
GREY = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}  # Pillow's names of pictures without colour
THREADS = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Place:
    """Where the bytes of a picture are: a file, or a part of a .tar."""

    path: str
    name: str  # as people know it
    start: int = 0
    length: int = -1

    def opened(self) -> str | io.BytesIO:
        """What Pillow opens: of a whole file, it reads no more than it needs."""
        if self.length < 0:
            return self.path
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return io.BytesIO(file.read(self.length))


class Pictures:
    """Pictures of one size: kept as `pixels`, or read at their `places` again and again."""

    def __init__(self, names: Sequence[str], pixels: Tensor | None, places: Sequence[Place], shape: "Shape"):
        self.names, self.pixels, self.places, self.shape = list(names), pixels, list(places), shape

    def __len__(self) -> int:
        return len(self.names)

    def describe(self) -> str:
        C, H, W = self.shape
        return f"{len(self):,} pictures of {W} x {H}{' in colour' if C == 3 else ''}"

    def read(self, rows: np.ndarray) -> Tensor:
        """uint8 (B, C, H, W)."""
        if self.pixels is not None:
            return self.pixels[torch.from_numpy(np.asarray(rows, dtype=np.int64))]
        return decoded_pictures([self.places[row] for row in rows.tolist()], self.shape)

    def rows(self, numbers: Sequence[int]) -> "Pictures":
        """Only these."""
        pixels = None if self.pixels is None else self.pixels[torch.tensor(numbers, dtype=torch.int64)]
        places = [self.places[i] for i in numbers] if self.places else []
        return Pictures([self.names[i] for i in numbers], pixels, places, self.shape)

    def __getitem__(self, some: slice) -> list[Tensor]:
        """These pictures (C, H, W), one by one."""
        return list(self.read(np.arange(*some.indices(len(self)))))

    @property
    def notes(self) -> list[str]:
        if self.pixels is not None:
            return []
        size = len(self) * int(np.prod(self.shape)) / 2**30
        return [f"pictures of {size:.1f} GB are too many to keep; each is decoded again when it is needed"]

    def fingerprint(self) -> str:
        """SHA-256 of the number of pictures and of up to a thousand of them: are these the same data?"""
        sha = hashlib.sha256(f"{len(self)} {self.shape}".encode())
        for rows in np.array_split(np.unique(np.linspace(0, len(self) - 1, 1000, dtype=np.int64)), 10):
            sha.update(self.read(rows).numpy().tobytes())
        return sha.hexdigest()

    def moments(self) -> tuple[list[float], list[float]]:
        """Mean and deviation of each channel, black 0 and white 1, of up to a thousand of them."""
        some = self.read(np.unique(np.linspace(0, len(self) - 1, 1000, dtype=np.int64))).double() / 255
        each = some.transpose(0, 1).flatten(1)
        return each.mean(1).tolist(), each.std(1).clamp(min=1e-3).tolist()


Shape = tuple[int, int, int]  # channels, height, width


# Decoding


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise Mistake("reading pictures needs one more package: pip install pillow") from None
    return Image


def opened_picture(place: Place) -> Any:
    """Pillow's picture, of which only the header is read; one that is broken or huge is refused."""
    Image = pillow()
    try:
        image = Image.open(place.opened(), formats=("PNG", "JPEG", "WEBP"))
    except PermissionError as error:
        raise Mistake(f"{place.name}: cannot be read ({why(error)}); check its permissions") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Mistake(f"{place.name}: over {LARGEST:,} pixels; make it smaller") from None
    except Exception as error:  # Pillow's readers raise all kinds of them
        raise broken(place, error) from None
    if image.width * image.height > LARGEST:
        image.close()
        raise Mistake(
            f"{place.name}: {image.width} x {image.height} is over {LARGEST:,} pixels; make it smaller"
        )
    return image


def broken(place: Place, error: Exception) -> Mistake:
    if isinstance(error, Mistake):
        return error
    reason = "" if "cannot identify" in str(error) else f" ({one_line(error)})"  # which names no file
    return Mistake(f"{place.name}: not a whole PNG, JPEG or WebP{reason}; remove it or get it again")


def decoded_picture(place: Place, shape: Shape) -> np.ndarray:
    """uint8 (C, H, W): made smaller or larger until its shorter side fits, then cut on both sides."""
    C, H, W = shape
    try:
        with opened_picture(place) as image:
            image.draft(
                "L" if C == 1 else "RGB", (W, H)
            )  # a JPEG comes half as large, or less, for less work
            image.load()
            return fitted(image, shape)
    except Exception as error:  # whatever the bytes are, it is this picture that is wrong
        raise broken(place, error) from None


def fitted(image: Any, shape: Shape) -> np.ndarray:
    from PIL import Image, ImageOps

    C, H, W = shape
    image = ImageOps.exif_transpose(image)  # a camera's way of saying which side is up
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:  # it lies on white paper
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if C == 1 else "RGB")
    if image.size != (W, H):
        image = ImageOps.fit(image, (W, H), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(H, W, C).transpose(2, 0, 1)


def decoded_pictures(
    places: Sequence[Place], shape: Shape, advance: Callable[[int], None] = lambda n: None
) -> Tensor:
    """uint8 (B, C, H, W), read by several threads."""
    pillow()  # is missed here, and not in a thread
    found = torch.empty(len(places), *shape, dtype=torch.uint8)
    array = found.numpy()

    def fill(i: int) -> None:
        array[i] = decoded_picture(places[i], shape)

    with ThreadPoolExecutor(THREADS) as threads:
        try:
            for _ in threads.map(fill, range(len(places))):
                advance(1)
        except BaseException:
            threads.shutdown(cancel_futures=True)  # or thousands of others would come first
            raise
    return found


def one(path: str, size: int, channels: int) -> Tensor:
    """One picture to ask about, uint8 (C, H, W)."""
    if not os.path.isfile(path):
        raise Mistake(f"{path}: no such picture; give the path of a PNG, JPEG or WebP")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pillow().DecompressionBombWarning)
        return torch.from_numpy(decoded_picture(Place(path, path), (channels, size, size)).copy())


def usual(side: int, widest: int) -> int:
    return side if side <= SMALL else min(widest, side // 8 * 8)


def gathered(
    places: Sequence[Place], size: int | None, channels: int | None, widest: int = WIDEST
) -> Pictures:
    """Pictures at these places: all headers are looked at first, then what fits in memory is decoded.

    Without a size, it is about the median of their shorter sides, up to the widest; without channels, there
    is one if all are grey.
    """
    sides, grey = [], True
    with warnings.catch_warnings(), progress("looking at pictures", len(places)) as advance:
        warnings.simplefilter("error", pillow().DecompressionBombWarning)
        for place in places:
            with opened_picture(place) as image:
                sides.append(min(image.size))
                grey = grey and image.mode in GREY
            advance(1)
    size = size or usual(int(np.median(sides)), widest)
    shape = (channels or (1 if grey else 3), size, size)
    pixels = None
    if len(places) * int(np.prod(shape)) <= IN_MEMORY:
        with progress("decoding pictures", len(places)) as advance:
            pixels = decoded_pictures(places, shape, advance)
    return Pictures([place.name for place in places], pixels, places, shape)


# Reading


def classed(
    paths: Sequence[str], size: int | None = None, channels: int | None = None, widest: int = WIDEST
) -> tuple[Pictures, list[str]]:
    """Pictures with the class of each: folders of class folders; IDX files of pictures, their labels beside
    them; tables (.tsv) of `image` and `label`."""
    idx = [path for path in paths if is_idx(path)]
    if idx and len(idx) < len(paths):
        raise Mistake(f"{idx[0]}: IDX files and others don't mix; give one kind")
    if idx:
        return from_idx(idx, size, channels, widest)
    places, labels = [], []
    for path in map(str, paths):
        for place, label in in_classes(path) if os.path.isdir(path) else table(path, "label"):
            places.append(place)
            labels.append(label)
    return gathered(places, size, channels, widest), labels


def captioned(
    paths: Sequence[str], size: int | None = None, channels: int | None = None
) -> tuple[Pictures, list[list[str]]]:
    """Pictures with the captions of each: tables (.tsv) of `image` and `caption`, a line for each caption."""
    captions: dict[Place, list[str]] = {}
    for path in map(str, paths):
        if os.path.isdir(path):
            raise Mistake(f"{path}: a folder; give the .tsv of image and caption, with this folder beside it")
        for place, caption in table(path, "caption"):
            captions.setdefault(place, []).append(caption)
    return gathered(list(captions), size, channels), list(captions.values())


def in_classes(folder: str) -> Iterator[tuple[Place, str]]:
    """FOLDER/CLASS/any/where.png: each picture, and its class."""
    if any(is_idx(name) for name in os.listdir(folder)):
        raise Mistake(f"{folder}: IDX files; give that of the pictures, {folder}/...images-idx3-ubyte")
    for path in in_folder(folder, SUFFIXES, "picture"):
        name, *below = Path(path).relative_to(folder).parts
        if not below:
            raise Mistake(f"{path}: in no class; pictures lie in folders named as their classes")
        yield Place(path, path), name


def table(path: str, wanted: str) -> Iterator[tuple[Place, str]]:
    """Pictures by their names in a .tsv, and what the column `wanted` says of each."""
    if holds(path) != ".tsv":
        if not os.path.exists(path):
            raise missing(path)
        raise Mistake(f"{path}: no table of pictures; give a .tsv with a header: image, {wanted}")
    there = beside(path)
    columns: list[str] = []
    rows = 0
    for number, line in enumerate(lines(path), 1):
        cells = [cell.strip() for cell in decoded(line, path, number).rstrip("\r\n").split("\t")]
        if not columns:
            columns = cells
            if not {"image", wanted} <= set(columns):
                raise Mistake(f"{path}:1: the columns are named {', '.join(cells)[:80]}, not image, {wanted}")
            continue
        if cells == [""]:
            continue
        if len(cells) != len(columns):
            raise Mistake(f"{path}:{number}: {len(cells)} columns, but the header has {len(columns)}")
        row = dict(zip(columns, cells, strict=True))
        if not row[wanted]:
            raise Mistake(f"{path}:{number}: an empty {wanted}; fill it in or remove the line")
        place = there(row["image"])
        if place is None:
            raise Mistake(f"{path}:{number}: no picture {row['image'][:80]!r} beside this file; add it")
        rows += 1
        yield place, row[wanted]
    if not rows:
        raise empty(path)


def beside(path: str) -> Callable[[str], Place | None]:
    """Where the pictures named in a table are: the .tar or the folder of its name, or its own folder."""
    bare = path[: path.lower().rindex(".tsv")]
    if os.path.isfile(tar := f"{bare}.tar"):
        try:
            with tarfile.open(tar, "r:") as file:
                members = [m for m in file if m.isreg()]
        except (tarfile.TarError, OSError, EOFError) as error:
            raise Mistake(f"{tar}: not a whole .tar ({one_line(error)}); get it again") from None
        return {m.name: Place(tar, f"{tar}:{m.name}", m.offset_data, m.size) for m in members}.get
    folder = bare if os.path.isdir(bare) else os.path.dirname(path)

    def find(name: str) -> Place | None:
        at = os.path.join(folder, name)
        return Place(at, at) if os.path.isfile(at) else None

    return find


# IDX, in which MNIST came


def is_idx(path: str) -> bool:
    return "-idx" in os.path.basename(path) and not os.path.isdir(path)


def from_idx(
    paths: Sequence[str], size: int | None, channels: int | None, widest: int
) -> tuple[Pictures, list[str]]:
    """The pictures of ...images-idx3-ubyte, and their classes from ...labels-idx1-ubyte beside it."""
    names, labels, parts = [], [], []
    for path in paths:
        name = os.path.basename(path)
        if "images-idx3" not in name:
            raise Mistake(f"{path}: not the pictures; give the file ...images-idx3-ubyte")
        pixels = idx(path, 3)
        told = idx(labels_beside(path), 1)
        if len(told) != len(pixels):
            raise Mistake(f"{path}: {len(pixels):,} pictures, but {len(told):,} labels beside them")
        H, W = pixels.shape[1:]
        side = size or usual(min(H, W), widest)
        shape = channels or 1, side, side
        if (1, H, W) == shape:
            parts.append(torch.from_numpy(pixels)[:, None])
        else:
            Image = pillow()
            parts.append(torch.from_numpy(np.stack([fitted(Image.fromarray(one), shape) for one in pixels])))
        names += [f"{path}:{i}" for i in range(1, len(pixels) + 1)]
        labels += [str(label) for label in told.tolist()]
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            raise Mistake(f"{path}: pictures of another size than in {paths[0]}; set task.size={side}")
    return Pictures(names, torch.cat(parts), [], shape), labels


def labels_beside(path: str) -> str:
    name = os.path.basename(path).replace("images-idx3", "labels-idx1")
    bare = os.path.join(os.path.dirname(path), name.removesuffix(".gz"))
    for other in (bare, f"{bare}.gz"):
        if os.path.isfile(other):
            return other
    raise Mistake(f"{path}: its labels should lie beside it, in {os.path.basename(bare)}")


def idx(path: str, axes: int) -> np.ndarray:
    """Bytes after two zeros, a type (8: unsigned bytes), the number of axes and the length of each."""
    with opened(path) as file:
        head = file.read(4 + 4 * axes)
        if head[:4] != bytes([0, 0, 8, axes]) or len(head) < 4 + 4 * axes:
            raise Mistake(f"{path}: not IDX of unsigned bytes in {axes} dimensions; get it again")
        shape = struct.unpack(f">{axes}I", head[4:])
        if (want := int(np.prod(shape, dtype=object))) > 2**36 or min(shape) < 1:
            raise Mistake(f"{path}: its header tells of {' x '.join(map(str, shape))} bytes; get it again")
        data = bytearray(file.read(want + 1))
    if len(data) != want:
        raise Mistake(f"{path}: {want:,} bytes should follow its header, but {len(data):,} do; get it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
