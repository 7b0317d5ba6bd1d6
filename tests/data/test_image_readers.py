"""Images from class folders, tables and IDX files: what is read, and what is refused."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from helpers.errors import user_error
from helpers.images import noise, save
from regard.data import images
from regard.data.image_readers import read_captions, read_image_classes
from regard.data.reading import read_together


def idx(path, pixels, labels=None):
    """In the format of MNIST's files."""
    packed = gzip.compress if path.suffix == ".gz" else bytes
    path.write_bytes(packed(b"\0\0\x08\x03" + struct.pack(">3I", *pixels.shape) + pixels.tobytes()))
    if labels is not None:
        beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
        beside.write_bytes(packed(b"\0\0\x08\x01" + struct.pack(">I", len(labels)) + bytes(labels)))
    return str(path)


# Classes


def test_the_folder_is_the_class(tmp_path):
    pixels = {}
    for label, name in (("owl", "b.png"), ("owl", "deep/a.webp"), ("cat", "z.png")):
        pixels[f"{label}/{name}"] = noise()
        save(
            tmp_path / label / name,
            pixels[f"{label}/{name}"],
            **({"lossless": True} if "webp" in name else {}),
        )
    (tmp_path / "owl" / "notes.txt").write_text("not an image")
    images, labels = read_image_classes([str(tmp_path)])
    assert labels == ["cat", "owl", "owl"]
    assert [str(Path(name).relative_to(tmp_path)) for name in images.names] == [
        "cat/z.png",
        "owl/b.png",
        "owl/deep/a.webp",
    ]
    assert images.shape == (3, 7, 7)
    for row, name in enumerate(("cat/z.png", "owl/b.png", "owl/deep/a.webp")):
        assert torch.equal(images.read(np.array([row]))[0], torch.from_numpy(pixels[name]).permute(2, 0, 1))
    assert images.describe() == "3 images of 7 x 7 in colour"


def test_every_format_of_pillow_is_read_and_the_rest_is_named(tmp_path):
    suffixes = ["png", "jpg", "jpeg", "webp", "bmp", "gif", "tif", "tiff"]
    suffixes += ["ppm", "pgm", "tga", "ico", "jp2", "avif", "pcx", "qoi"]
    for suffix in suffixes:
        mode = "L" if suffix == "pgm" else "RGB"
        path = tmp_path / ("cat" if len(suffix) > 3 else "owl") / f"{suffix}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise(16, 16)).convert(mode).save(path)
    for name in ("a.heic", "b.HEIC", "notes.txt", ".hidden"):
        (tmp_path / "owl" / name).write_text("not an image")
    with read_together() as reading:
        dataset, labels = read_image_classes([str(tmp_path)])
    assert len(dataset) == len(labels) == len(suffixes)
    (note,) = reading.notes
    assert str(tmp_path) in note
    assert "2 .heic" in note
    assert "1 .txt" in note
    assert "3 of 19" in note
    with read_together(version=1):
        assert len(read_image_classes([str(tmp_path)])[0]) == 4
    for program in ("a.eps", "a.wmf"):  # which would start others
        (tmp_path / program).write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        user_error(
            lambda path=tmp_path / program: images.read_pixels(images.find_image(str(path)), (3, 7, 7))
        )


def test_grey_images_have_one_channel_unless_asked(tmp_path):
    grey = noise(C=1)
    save(tmp_path / "a" / "1.png", grey)
    save(tmp_path / "b" / "1.png", noise(C=1))
    images, _ = read_image_classes([str(tmp_path)])
    assert torch.equal(images.read(np.array([0]))[0, 0], torch.from_numpy(grey))
    coloured, _ = read_image_classes([str(tmp_path)], channels=3)
    assert torch.equal(coloured.read(np.array([0]))[0], torch.from_numpy(grey).expand(3, -1, -1))
    save(tmp_path / "b" / "2.png", noise())
    assert read_image_classes([str(tmp_path)])[0].shape == (3, 7, 7)


def test_the_size_is_the_median_of_shorter_sides_and_wide_ones_are_cut(tmp_path):
    """As Pillow does it."""
    wide = noise(11, 29)
    save(tmp_path / "a" / "1.png", wide)
    save(tmp_path / "a" / "2.png", noise(13, 13))
    save(tmp_path / "b" / "3.png", noise(31, 17))
    images, _ = read_image_classes([str(tmp_path)])
    assert images.shape == (3, 13, 13)
    fit = ImageOps.fit(Image.fromarray(wide), (13, 13), Image.Resampling.BICUBIC)
    assert torch.equal(
        images.read(np.array([0]))[0], torch.from_numpy(np.asarray(fit).copy()).permute(2, 0, 1)
    )
    assert read_image_classes([str(tmp_path)], size=5)[0].read(np.arange(3)).shape == (3, 3, 5, 5)
    for n in range(5):
        save(tmp_path / "c" / f"{n}.png", noise(53, 61))
    assert read_image_classes([str(tmp_path)])[0].shape == (3, 48, 48)  # which divides well
    assert read_image_classes([str(tmp_path)], max_size=40)[0].shape == (3, 40, 40)


def test_what_is_too_much_to_keep_is_read_again(tmp_path, monkeypatch):
    for n in range(5):
        save(tmp_path / "ab"[n % 2] / f"{n}.png", noise())
    cached, _ = read_image_classes([str(tmp_path)])
    monkeypatch.setattr(images, "MAX_MEMORY", 5 * 3 * 7 * 7 - 1)
    again, _ = read_image_classes([str(tmp_path)])
    assert again.pixels is None
    assert cached.notes == []
    assert "decoded again" in again.notes[0]
    rows = np.array([4, 0, 3, 3])
    assert torch.equal(again.read(rows), cached.read(rows))
    assert again.fingerprint() == cached.fingerprint()
    assert torch.equal(again.rows([3, 1]).read(np.array([1])), cached.rows([3, 1]).read(np.array([1])))
    assert torch.equal(torch.stack(again[1:3]), cached.pixels[1:3])
    assert again.moments() == cached.moments()


def test_means_and_deviations(tmp_path):
    pixels = np.stack([noise(), noise()])
    for n, image in enumerate(pixels):
        save(tmp_path / "ab"[n] / "1.png", image)
    mean, std = read_image_classes([str(tmp_path)])[0].moments()
    assert mean == pytest.approx((pixels / 255).mean((0, 1, 2)).tolist())
    assert std == pytest.approx((pixels / 255).std((0, 1, 2), ddof=1).tolist())


def test_other_data_have_another_fingerprint(tmp_path):
    pixels = noise(9, 5, 5)
    first = read_image_classes([idx(tmp_path / "a-images-idx3-ubyte", pixels, [0, 1, 2] * 3)])[
        0
    ].fingerprint()
    assert (
        read_image_classes([idx(tmp_path / "b-images-idx3-ubyte", pixels, [0, 1, 2] * 3)])[0].fingerprint()
        == first
    )
    pixels[4, 2, 3] ^= 1
    assert (
        read_image_classes([idx(tmp_path / "a-images-idx3-ubyte", pixels, [0, 1, 2] * 3)])[0].fingerprint()
        != first
    )


# Tables


def table(path, *rows):
    path.write_text("".join("\t".join(row) + "\n" for row in (("image", "caption"), *rows)))
    return str(path)


@pytest.mark.parametrize("where", ["tar", "folder", "beside"])
def test_images_of_a_table_have_several_captions(tmp_path, where):
    a, b = noise(), noise()
    if where == "tar":
        with tarfile.open(tmp_path / "t.tar", "w") as tar:
            for name, pixels in (("x.png", noise()), ("a.png", a), ("b.png", b)):
                data = io.BytesIO()
                Image.fromarray(pixels).save(data, "png")
                member = tarfile.TarInfo(name)
                member.size = len(data.getvalue())
                tar.addfile(member, io.BytesIO(data.getvalue()))
    else:
        folder = tmp_path / "t" if where == "folder" else tmp_path
        save(folder / "a.png", a)
        save(folder / "b.png", b)
    path = table(tmp_path / "t.tsv", ("b.png", "a dog"), ("a.png", "an owl"), ("b.png", "some dog"))
    images, captions = read_captions([path])
    assert captions == [["a dog", "some dog"], ["an owl"]]
    assert torch.equal(images.read(np.array([0, 1])), torch.from_numpy(np.stack([b, a])).permute(0, 3, 1, 2))
    assert [name.endswith(end) for name, end in zip(images.names, ("b.png", "a.png"), strict=True)]


def test_a_table_may_have_labels(tmp_path):
    save(tmp_path / "a.png", noise())
    (tmp_path / "t.tsv").write_text("label\timage\nowl\ta.png\n")
    assert read_image_classes([str(tmp_path / "t.tsv")])[1] == ["owl"]


def test_what_is_wrong_with_a_table_is_named(tmp_path):
    save(tmp_path / "a.png", noise())
    t = tmp_path / "t.tsv"

    def said(text, *words):
        t.write_text(text)
        user_error(lambda: read_captions([str(t)]), *words)

    said("", "t.tsv", "empty")
    said("image\tcaption\n", "t.tsv", "no row")
    said("a\tan owl\n", "t.tsv:1", "image and caption", "--image")
    said("image\tcaption\na.png\tan owl\nb.png\tx\n", "t.tsv:3:", "'b.png'")
    said("image\tcaption\na.png\n", "t.tsv:2: 1 column", "header has 2")
    said("image\tcaption\na.png\t \n", "t.tsv:2: an empty caption")
    user_error(lambda: read_captions([str(tmp_path)]), "a folder", "image and caption")
    user_error(lambda: read_captions([str(tmp_path / "no.tsv")]), "no such file")
    user_error(lambda: read_captions([str(tmp_path / "a.png")]), "a.png:", ".tsv")
    (tmp_path / "t.tar").write_bytes(b"no tar" * 200)
    said("image\tcaption\na.png\tan owl\n", "t.tar:", "get it again")


# IDX


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files(tmp_path, ending):
    pixels = noise(11, 5, 5)
    path = idx(tmp_path / f"train-images-idx3-ubyte{ending}", pixels, [9, 0, 3] + [7] * 8)
    images, labels = read_image_classes([path, path])
    assert labels == (["9", "0", "3"] + ["7"] * 8) * 2
    assert images.names[12] == f"{path}:2"
    assert torch.equal(images.read(np.arange(11, 22)), torch.from_numpy(pixels)[:, None])
    larger, _ = read_image_classes([path], size=8, channels=3)
    assert larger.read(np.array([0])).shape == (1, 3, 8, 8)


def test_what_is_wrong_with_idx_files_is_named(tmp_path):
    pixels = noise(11, 5, 5)
    path = tmp_path / "x-images-idx3-ubyte"
    user_error(lambda: read_image_classes([idx(path, pixels)]), "x-labels-idx1-ubyte")
    user_error(lambda: read_image_classes([idx(path, pixels, [1] * 10)]), "11 images", "10 labels")
    labels = idx(path, pixels, [1] * 11).replace("images-idx3", "labels-idx1")
    user_error(lambda: read_image_classes([labels]), labels, "images-idx3")
    user_error(lambda: read_image_classes([str(tmp_path)]), tmp_path, "IDX", "images-idx3")
    user_error(lambda: read_image_classes([str(path), str(tmp_path)]), path, "IDX")
    raw = path.read_bytes()
    for bad, words in (
        (raw[:-1], "274"),
        (raw + b"x", "275 bytes"),
        (raw[:9], "not IDX"),
        (b"\0\0\x0d\x03" + raw[4:], "not IDX of unsigned bytes"),
        (raw[:4] + b"\xff" * 12, "get it again"),
        (raw[:4] + bytes(12), "get it again"),
    ):
        path.write_bytes(bad)
        user_error(lambda: read_image_classes([str(path)]), path, words)
    other = idx(tmp_path / "y-images-idx3-ubyte", pixels[:, :4, :4].copy(), [1] * 11)
    user_error(lambda: read_image_classes([idx(path, pixels, [1] * 11), other]), "another size")


def test_images_in_no_class_are_named(tmp_path):
    user_error(lambda: read_image_classes([str(tmp_path)]), "no image in this folder", ".webp")
    save(tmp_path / "a.png", noise())
    user_error(lambda: read_image_classes([str(tmp_path)]), "a.png: in no class")
    user_error(lambda: read_image_classes([str(tmp_path / "nowhere")]), "no such file or folder")
