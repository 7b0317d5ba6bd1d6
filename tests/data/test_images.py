"""Decoding images: what is read, and what is refused."""

import struct
import zlib

import numpy as np
import torch
from PIL import Image

from helpers.errors import user_error
from helpers.images import noise, save
from regard.data import images
from regard.data.image_readers import read_image_classes
from regard.data.images import find_image, read_pixels
from regard.vision import decoding


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
    pixels = noise(7, 14, 1).view(np.uint16)
    image = load_image(str(save(tmp_path / "a.png", pixels)), 7, 1)
    assert torch.equal(image[0], torch.from_numpy((pixels >> 8).astype(np.uint8)))


def test_jpeg_is_near(tmp_path):
    smooth = np.add.outer(np.arange(40), 3 * np.arange(40)).astype(np.uint8)
    image = load_image(str(save(tmp_path / "a.jpg", smooth, quality=95)), 40, 1)
    assert (image[0].int() - torch.from_numpy(smooth).int()).abs().max() < 6


def test_damaged_images_are_named(tmp_path):
    raw = save(tmp_path / "whole.png", noise(40, 40)).read_bytes()
    jpeg = save(tmp_path / "whole.jpg", noise(40, 40)).read_bytes()
    for n, data in enumerate([b"", b"hello", raw[:500], raw[:20], jpeg[:600], b"RIFF" + raw]):
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
    monkeypatch.setattr(decoding, "MAX_PIXELS", 48)
    user_error(
        lambda: load_image(str(save(tmp_path / "a.png", noise())), 7, 3), "a.png: 7 x 7 is over 48 pixels"
    )


def test_transparent_images_are_put_on_white_strip_by_strip(tmp_path, monkeypatch):
    rgba = Image.fromarray(noise(13, 11, 4))
    palette = rgba.quantize(17)
    palette.info["transparency"] = 3
    keyed = Image.fromarray(noise(13, 11))
    keyed.putpixel((2, 5), (1, 2, 3))
    keyed.info["transparency"] = (1, 2, 3)
    grey = Image.fromarray(noise(13, 11, 2), "LA")
    monkeypatch.setattr(decoding, "STRIP", 3 * 11)
    for image in (rgba, palette, keyed, grey):
        with_alpha = image.convert("RGBA")
        want = Image.alpha_composite(Image.new("RGBA", image.size, "white"), with_alpha).convert("RGB")
        for mode in ("RGB", "L"):
            assert decoding.put_on_white(image, mode).tobytes() == want.convert(mode).tobytes()


def test_number_of_decoded_pixels_is_limited(tmp_path):
    """A JPEG counts as it is decoded: at a fraction of its size, if that is enough."""
    png, jpeg = (save(tmp_path / f"a.{kind}", noise(64, 64)) for kind in ("png", "jpg"))
    for path in (png, jpeg):
        source, shape = find_image(str(path)), (3, 8, 8)
        if path == jpeg:
            assert decoding.decode_image(source, shape, 8 * 8).shape == shape
        else:
            user_error(lambda s=source, h=shape: decoding.decode_image(s, h, 64 * 64 - 1), "64 x 64", "4,095")


def test_pixels_for_another_model():
    pixels = torch.from_numpy(noise(12, 12)).permute(2, 0, 1)
    assert images.resize_pixels(pixels, (3, 12, 12)).equal(pixels)
    assert images.resize_pixels(pixels, (1, 5, 7)).shape == (1, 5, 7)
    assert images.resize_pixels(pixels[:1], (3, 5, 7)).shape == (3, 5, 7)
