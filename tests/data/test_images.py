"""Decoding images: what is read, and what is refused."""

import struct
import zlib

import numpy as np
import torch
from PIL import Image

from helpers.errors import user_error
from helpers.images import RNG, noise, save
from regard.data import images
from regard.data.image_readers import read_image_classes
from regard.data.images import find_image, read_pixels


def load_image(path, size, channels):
    return read_pixels(find_image(path), (channels, size, size))


def test_a_camera_may_say_which_side_is_up(tmp_path):
    pixels = noise()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    path = save(tmp_path / "a.png", pixels, exif=exif)
    assert torch.equal(
        load_image(str(path), 7, 3), torch.from_numpy(np.rot90(pixels, -1).copy()).permute(2, 0, 1)
    )


def test_what_is_transparent_lies_on_white(tmp_path):
    pixels = np.dstack([noise(), np.zeros((7, 7), dtype=np.uint8)])
    pixels[2, 3, 3] = 255
    image = load_image(str(save(tmp_path / "a.png", pixels)), 7, 3)
    assert image[:, 2, 3].tolist() == pixels[2, 3, :3].tolist()
    image[:, 2, 3] = 255
    assert (image == 255).all()


def test_sixteen_bits_become_eight(tmp_path):
    pixels = RNG.integers(0, 2**16, (7, 7)).astype(np.uint16)
    image = load_image(str(save(tmp_path / "a.png", pixels)), 7, 1)
    assert torch.equal(image[0], torch.from_numpy((pixels >> 8).astype(np.uint8)))


def test_jpeg_is_near(tmp_path):
    smooth = np.add.outer(np.arange(40), 3 * np.arange(40)).astype(np.uint8)
    image = load_image(str(save(tmp_path / "a.jpg", smooth, quality=95)), 40, 1)
    assert (image[0].int() - torch.from_numpy(smooth).int()).abs().max() < 6


def test_damaged_images_are_named(tmp_path):
    raw = save(tmp_path / "whole.png", noise(40, 40)).read_bytes()
    jpeg = save(tmp_path / "whole.jpg", noise(40, 40)).read_bytes()
    for n, data in enumerate([b"", b"hello", raw[:500], raw[:20], jpeg[:600], b"GIF89a" + raw]):
        for path in (tmp_path / f"{n}.png", tmp_path / f"data{n}" / "owl" / "bad.jpg"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        single, folder = str(tmp_path / f"{n}.png"), str(tmp_path / f"data{n}")
        user_error(lambda path=single: load_image(path, 7, 3), f"{n}.png:", "PNG, JPEG or WebP")
        user_error(lambda path=folder: read_image_classes([path]), "owl/bad.jpg:", "PNG, JPEG or WebP")
    user_error(lambda: load_image(str(tmp_path / "none.png"), 7, 3), "none.png: no such image")


def test_huge_images_are_refused_by_their_header(tmp_path, monkeypatch):
    """A decompression bomb: only its header is written."""
    head = struct.pack(">2I5B", 20_000, 10_000, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bomb = tmp_path / "data" / "owl" / "bomb.png"
    bomb.parent.mkdir(parents=True)
    bomb.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    user_error(lambda: load_image(str(bomb), 7, 3), "bomb.png: over", "make it smaller")
    user_error(lambda: read_image_classes([str(tmp_path / "data")]), "bomb.png: over", "make it smaller")
    monkeypatch.setattr(images, "MAX_PIXELS", 48)
    user_error(
        lambda: load_image(str(save(tmp_path / "a.png", noise())), 7, 3), "a.png: 7 x 7 is over 48 pixels"
    )
