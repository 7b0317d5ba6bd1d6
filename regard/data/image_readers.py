"""Read images with classes or captions: class folders, IDX files and tables."""

import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from regard.data.archives import find_source, is_file, is_folder, list_entries
from regard.data.columns import Field, Guess, Layout, read_records
from regard.data.files import (
    content_suffix,
    list_files,
    open_file,
)
from regard.data.images import DEFAULT_WIDTH, ImageDataset, default_size, load_images
from regard.data.memory import is_pillow_image
from regard.data.reading import reading_version, record_source
from regard.data.tables import Row
from regard.errors import UserError, first_line
from regard.files.regular import check_name
from regard.vision.decoding import FileBytes, ImageSource, readable_suffixes, resize_image

IMAGE = Field(
    "image",
    ("file_name", "filename", "file", "path", "image_path", "image_name", "img", "image_file"),
    "file",
)


def guess_files(file: str, learned: str, suffixes: Callable[[], Set[str]]) -> Guess:
    """Return a function that takes the only column with bytes or paths of files for the field `file`; if
    there are two columns, the other one is for the field `learned`."""

    def is_file_cell(cell: Any) -> bool:
        if isinstance(cell, dict):
            return "bytes" in cell
        is_path = isinstance(cell, str) and Path(cell.lower()).suffix in suffixes()
        return is_path or isinstance(cell, bytes) or is_pillow_image(cell)

    def guess(names: list[str], rows: list[Row], known: dict[str, int]) -> dict[str, int]:
        columns = [index for index, name in enumerate(names) if "." not in name]
        files = [index for index in columns if rows and all(is_file_cell(cells[index]) for _, cells in rows)]
        if len(files) != 1 or file in known:
            return {}
        other = [index for index in columns if index != files[0]]
        return {file: files[0]} | ({learned: other[0]} if len(other) == 1 else {})

    return guess


CLASSES = Layout(
    (IMAGE, Field("label", ("class", "category", "labels", "target"), "label")),
    "image and label",
    guess_files("image", "label", readable_suffixes),
)
CAPTIONS = Layout(
    (IMAGE, Field("caption", ("captions", "text", "description", "sentences", "raw"), "texts")),
    "image and caption",
    guess_files("image", "caption", readable_suffixes),
)
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})  # formats of version 1


def read_image_classes(
    paths: Sequence[str],
    size: int | None = None,
    channels: int | None = None,
    max_size: int = DEFAULT_WIDTH,
    memory: int | None = None,
) -> tuple[ImageDataset, list[str]]:
    """Read images and the class of each: folders of class folders; IDX files of images, with their labels
    beside them; tables of `image` and `label`."""
    idx_paths = [path for path in paths if is_idx(path)]
    if idx_paths and len(idx_paths) < len(paths):
        raise UserError(f"{idx_paths[0]}: IDX files and others cannot be mixed; give one kind")
    if idx_paths:
        return read_idx_images(idx_paths, size, channels, max_size)
    sources, labels = [], []
    for path in map(str, paths):
        if is_folder(path):
            pairs = read_class_folders(path)
        else:
            pairs = ((source, row["label"]) for source, row in read_files(path, CLASSES))
        for source, label in pairs:
            sources.append(source)
            labels.append(label)
    return load_images(sources, size, channels, max_size, memory), labels


def read_captions(
    paths: Sequence[str],
    size: int | None = None,
    channels: int | None = None,
    memory: int | None = None,
) -> tuple[ImageDataset, list[list[str]]]:
    """Read images and the captions of each: tables of `image` and `caption`, a row per caption, or a list of
    captions in a row."""
    captions: dict[ImageSource, list[str]] = {}
    for path in map(str, paths):
        if is_folder(path):
            raise UserError(
                f"{path}: a folder; give a table with the columns image and caption, beside this folder"
            )
        for source, row in read_files(path, CAPTIONS):
            captions.setdefault(source, []).extend(row["caption"])
    return load_images(list(captions), size, channels, memory=memory), list(captions.values())


# Folders and tables


def read_class_folders(folder: str) -> Iterator[tuple[ImageSource, str]]:
    """Yield each image of FOLDER/CLASS/any/where.png, and its class."""
    if any(is_idx(name) for name, _ in list_entries(folder)):
        raise UserError(f"{folder}: a folder of IDX files; give {folder}/...images-idx3-ubyte")
    suffixes = readable_suffixes() if reading_version() > 1 else SUFFIXES
    source = record_source(folder, "image")
    for path in list_files(folder, suffixes, "image"):
        name, *below = Path(path).relative_to(folder).parts
        check_name(name)
        if not below:
            raise UserError(f"{path}: in no class; put images in folders named after their classes")
        source.add({"image": os.path.relpath(path, folder), "label": name})
        yield find_source(path), name


def read_files(path: str, layout: Layout) -> Iterator[tuple[ImageSource, dict[str, Any]]]:
    """Yield each file that a table names in its first field, an image or a recording, and its row."""
    find, file = image_finder(path), layout.fields[0].name
    for where, record in read_records(path, layout):
        if isinstance(data := record[file], bytes):
            yield FileBytes(path, where, length=len(data), data=data), record
            continue
        source = find(data)
        if source is None:
            raise UserError(f"{where}: no {file} {record[file][:80]!r} beside this file; add it")
        yield source, record


def image_finder(path: str) -> Callable[[str], ImageSource | None]:
    """Return a function that finds the images named in a table: in the .tar or the folder of the table's
    name, or in the table's own folder, or in the only folder there."""
    suffix = content_suffix(path)
    stem = path[: path.lower().rindex(suffix)] if suffix else path
    if os.path.isfile(tar := f"{stem}.tar"):
        try:
            with tarfile.open(tar, "r:") as file:
                members = [m for m in file if m.isreg() and not m.issparse()]
        except (tarfile.TarError, OSError, EOFError) as error:
            raise UserError(f"{tar}: not a complete .tar ({first_line(error)}); get it again") from None
        return {m.name: ImageSource(tar, f"{tar}:{m.name}", m.offset_data, m.size) for m in members}.get
    folders = [stem, f"{stem}.zip"]
    where, name = os.path.split(stem)
    if name.startswith("captions_"):  # of COCO: annotations/captions_val2017.json and val2017/
        name = name.removeprefix("captions_")
        folders += [os.path.join(where, name), os.path.join(os.path.dirname(where), name)]
    folder = next((path for path in folders if is_folder(path)), os.path.dirname(path))
    beside = [name for name, is_dir in list_entries(folder or ".") if is_dir] if folder not in folders else []
    places = [folder, os.path.join(folder, beside[0])] if len(beside) == 1 else [folder]

    def find(name: str) -> ImageSource | None:
        files = [os.path.join(place, name) for place in places]
        return next((find_source(file) for file in files if is_file(file)), None)

    return find


# IDX, the format of MNIST


def is_idx(path: str) -> bool:
    return "-idx" in os.path.basename(path) and not is_folder(path)


def read_idx_images(
    paths: Sequence[str], size: int | None, channels: int | None, max_size: int
) -> tuple[ImageDataset, list[str]]:
    """Read images from ...images-idx3-ubyte, and their classes from ...labels-idx1-ubyte beside it."""
    names, labels, parts = [], [], []
    for path in paths:
        if "images-idx3" not in os.path.basename(path):
            raise UserError(f"{path}: not an IDX file of images; give the file ...images-idx3-ubyte")
        pixels = read_idx(path, 3)
        classes = read_idx(idx_labels_path(path), 1)
        if len(classes) != len(pixels):
            raise UserError(
                f"{path}: {len(pixels):,} images, but {len(classes):,} labels beside them; get both again"
            )
        source = record_source(path, "image")
        for number, label in enumerate(classes.tolist(), 1):
            source.add({"image": number, "label": label})
        H, W = pixels.shape[1:]
        side = size or default_size(min(H, W), max_size)
        shape = channels or 1, side, side
        if (1, H, W) == shape:
            parts.append(torch.from_numpy(pixels)[:, None])
        else:
            resized = [resize_image(Image.fromarray(image), shape) for image in pixels]
            parts.append(torch.from_numpy(np.stack(resized)))
        names += [f"{path}:{i}" for i in range(1, len(pixels) + 1)]
        labels += [str(label) for label in classes.tolist()]
        if parts[-1].shape[1:] != parts[0].shape[1:]:
            raise UserError(f"{path}: images of another size than in {paths[0]}; set task.size={side}")
    return ImageDataset(names, torch.cat(parts), [], shape), labels


def idx_labels_path(path: str) -> str:
    """Return the path of the labels that belong to an IDX file of images."""
    name = os.path.basename(path).replace("images-idx3", "labels-idx1")
    plain = os.path.join(os.path.dirname(path), name.removesuffix(".gz"))
    for candidate in (plain, f"{plain}.gz"):
        if is_file(candidate):
            return candidate
    raise UserError(f"{path}: its labels are missing; put {os.path.basename(plain)} beside it")


def read_idx(path: str, dimensions: int) -> np.ndarray:
    """Read an IDX file: two zero bytes, a type (8: uint8), the number of dimensions, their sizes, data."""
    with open_file(path) as file:
        head = file.read(4 + 4 * dimensions)
        if head[:4] != bytes([0, 0, 8, dimensions]) or len(head) < 4 + 4 * dimensions:
            raise UserError(f"{path}: not IDX of unsigned bytes in {dimensions} dimensions; get it again")
        shape = struct.unpack(f">{dimensions}I", head[4:])
        if (size := int(np.prod(shape, dtype=object))) > 2**36 or min(shape) < 1:
            raise UserError(
                f"{path}: its header says {' x '.join(map(str, shape))} bytes, which is wrong; get it again"
            )
        data = bytearray()  # grows with what is there, not with what the header says
        while len(data) <= size and (block := file.read(min(2**20, size + 1 - len(data)))):
            data += block
    if len(data) != size:
        raise UserError(
            f"{path}: {size:,} bytes should follow its header, but {len(data):,} do; get it again"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
