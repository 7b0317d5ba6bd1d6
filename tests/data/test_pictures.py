"""Pictures from class folders, tables and IDX files: what is read, and what is refused with which words."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from mistakes import mistake
from PIL import Image

from regard.data import pictures
from regard.data.pictures import captioned, classed, one

RNG = np.random.default_rng(0)


def noise(H=7, W=7, C=3):
    return RNG.integers(0, 256, (H, W, C) if C > 1 else (H, W), dtype=np.uint8)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def idx(path, pixels, labels=None):
    """As MNIST's files are."""
    packed = gzip.compress if path.suffix == ".gz" else bytes
    path.write_bytes(packed(b"\0\0\x08\x03" + struct.pack(">3I", *pixels.shape) + pixels.tobytes()))
    if labels is not None:
        beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
        beside.write_bytes(packed(b"\0\0\x08\x01" + struct.pack(">I", len(labels)) + bytes(labels)))
    return str(path)


# Classes


def test_the_folder_is_the_class(tmp_path):
    kept = {}
    for label, name in (("owl", "b.png"), ("owl", "deep/a.webp"), ("cat", "z.png")):
        kept[f"{label}/{name}"] = noise()
        save(
            tmp_path / label / name, kept[f"{label}/{name}"], **({"lossless": True} if "webp" in name else {})
        )
    (tmp_path / "owl" / "notes.txt").write_text("not a picture")
    found, labels = classed([str(tmp_path)])
    assert labels == ["cat", "owl", "owl"]
    assert [str(Path(name).relative_to(tmp_path)) for name in found.names] == [
        "cat/z.png",
        "owl/b.png",
        "owl/deep/a.webp",
    ]
    assert found.shape == (3, 7, 7)
    for row, name in enumerate(("cat/z.png", "owl/b.png", "owl/deep/a.webp")):
        assert torch.equal(found.read(np.array([row]))[0], torch.from_numpy(kept[name]).permute(2, 0, 1))
    assert found.describe() == "3 pictures of 7 x 7 in colour"


def test_grey_pictures_have_one_channel_unless_asked(tmp_path):
    grey = noise(C=1)
    save(tmp_path / "a" / "1.png", grey)
    save(tmp_path / "b" / "1.png", noise(C=1))
    found, _ = classed([str(tmp_path)])
    assert torch.equal(found.read(np.array([0]))[0, 0], torch.from_numpy(grey))
    coloured, _ = classed([str(tmp_path)], channels=3)
    assert torch.equal(coloured.read(np.array([0]))[0], torch.from_numpy(grey).expand(3, -1, -1))
    save(tmp_path / "b" / "2.png", noise())
    assert classed([str(tmp_path)])[0].shape == (3, 7, 7)


def test_the_size_is_the_median_of_shorter_sides_and_wide_ones_are_cut(tmp_path):
    """As Pillow does it."""
    from PIL import ImageOps

    wide = noise(11, 29)
    save(tmp_path / "a" / "1.png", wide)
    save(tmp_path / "a" / "2.png", noise(13, 13))
    save(tmp_path / "b" / "3.png", noise(31, 17))
    found, _ = classed([str(tmp_path)])
    assert found.shape == (3, 13, 13)
    fit = ImageOps.fit(Image.fromarray(wide), (13, 13), Image.Resampling.BICUBIC)
    assert torch.equal(
        found.read(np.array([0]))[0], torch.from_numpy(np.asarray(fit).copy()).permute(2, 0, 1)
    )
    assert classed([str(tmp_path)], size=5)[0].read(np.arange(3)).shape == (3, 3, 5, 5)
    for n in range(5):
        save(tmp_path / "c" / f"{n}.png", noise(53, 61))
    assert classed([str(tmp_path)])[0].shape == (3, 48, 48)  # which divides well
    assert classed([str(tmp_path)], widest=40)[0].shape == (3, 40, 40)


def test_what_is_too_much_to_keep_is_read_again(tmp_path, monkeypatch):
    for n in range(5):
        save(tmp_path / "ab"[n % 2] / f"{n}.png", noise())
    kept, _ = classed([str(tmp_path)])
    monkeypatch.setattr(pictures, "IN_MEMORY", 5 * 3 * 7 * 7 - 1)
    again, _ = classed([str(tmp_path)])
    assert again.pixels is None
    assert kept.notes == []
    assert "decoded again" in again.notes[0]
    rows = np.array([4, 0, 3, 3])
    assert torch.equal(again.read(rows), kept.read(rows))
    assert again.fingerprint() == kept.fingerprint()
    assert torch.equal(again.rows([3, 1]).read(np.array([1])), kept.rows([3, 1]).read(np.array([1])))
    assert torch.equal(torch.stack(again[1:3]), kept.pixels[1:3])
    assert again.moments() == kept.moments()


def test_means_and_deviations(tmp_path):
    pixels = np.stack([noise(), noise()])
    for n, some in enumerate(pixels):
        save(tmp_path / "ab"[n] / "1.png", some)
    mean, std = classed([str(tmp_path)])[0].moments()
    assert mean == pytest.approx((pixels / 255).mean((0, 1, 2)).tolist())
    assert std == pytest.approx((pixels / 255).std((0, 1, 2), ddof=1).tolist())


def test_other_data_have_another_fingerprint(tmp_path):
    pixels = RNG.integers(0, 256, (9, 5, 5), dtype=np.uint8)
    first = classed([idx(tmp_path / "a-images-idx3-ubyte", pixels, [0, 1, 2] * 3)])[0].fingerprint()
    assert classed([idx(tmp_path / "b-images-idx3-ubyte", pixels, [0, 1, 2] * 3)])[0].fingerprint() == first
    pixels[4, 2, 3] ^= 1
    assert classed([idx(tmp_path / "a-images-idx3-ubyte", pixels, [0, 1, 2] * 3)])[0].fingerprint() != first


# Single pictures


def test_a_camera_may_say_which_side_is_up(tmp_path):
    pixels = noise()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    path = save(tmp_path / "a.png", pixels, exif=exif)
    assert torch.equal(one(str(path), 7, 3), torch.from_numpy(np.rot90(pixels, -1).copy()).permute(2, 0, 1))


def test_what_is_transparent_lies_on_white(tmp_path):
    pixels = np.dstack([noise(), np.zeros((7, 7), dtype=np.uint8)])
    pixels[2, 3, 3] = 255
    found = one(str(save(tmp_path / "a.png", pixels)), 7, 3)
    assert found[:, 2, 3].tolist() == pixels[2, 3, :3].tolist()
    found[:, 2, 3] = 255
    assert (found == 255).all()


def test_sixteen_bits_become_eight(tmp_path):
    pixels = RNG.integers(0, 2**16, (7, 7)).astype(np.uint16)
    found = one(str(save(tmp_path / "a.png", pixels)), 7, 1)
    assert torch.equal(found[0], torch.from_numpy((pixels >> 8).astype(np.uint8)))


def test_jpeg_is_near(tmp_path):
    smooth = np.add.outer(np.arange(40), 3 * np.arange(40)).astype(np.uint8)
    found = one(str(save(tmp_path / "a.jpg", smooth, quality=95)), 40, 1)
    assert (found[0].int() - torch.from_numpy(smooth).int()).abs().max() < 6


def test_broken_pictures_are_named(tmp_path):
    whole = save(tmp_path / "whole.png", noise(40, 40)).read_bytes()
    jpeg = save(tmp_path / "whole.jpg", noise(40, 40)).read_bytes()
    for n, some in enumerate([b"", b"hello", whole[:500], whole[:20], jpeg[:600], b"GIF89a" + whole]):
        for place in (tmp_path / f"{n}.png", tmp_path / f"data{n}" / "owl" / "bad.jpg"):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(some)
        mistake(lambda: one(str(tmp_path / f"{n}.png"), 7, 3), f"{n}.png: not a whole PNG, JPEG or WebP")  # noqa: B023
        mistake(lambda: classed([str(tmp_path / f"data{n}")]), "owl/bad.jpg: not a whole")  # noqa: B023
    mistake(lambda: one(str(tmp_path / "none.png"), 7, 3), "none.png: no such picture")


def test_huge_pictures_are_refused_by_their_header(tmp_path, monkeypatch):
    """Of a bomb, only the header is there."""
    head = struct.pack(">2I5B", 20_000, 10_000, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        import zlib

        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bomb = tmp_path / "data" / "owl" / "bomb.png"
    bomb.parent.mkdir(parents=True)
    bomb.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    mistake(lambda: one(str(bomb), 7, 3), "bomb.png: over", "make it smaller")
    mistake(lambda: classed([str(tmp_path / "data")]), "bomb.png: over", "make it smaller")
    monkeypatch.setattr(pictures, "LARGEST", 48)
    mistake(lambda: one(str(save(tmp_path / "a.png", noise())), 7, 3), "a.png: 7 x 7 is over 48 pixels")


# Tables


def table(path, *rows):
    path.write_text("".join("\t".join(row) + "\n" for row in (("image", "caption"), *rows)))
    return str(path)


@pytest.mark.parametrize("where", ["tar", "folder", "beside"])
def test_pictures_of_a_table_have_several_captions(tmp_path, where):
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
    found, captions = captioned([path])
    assert captions == [["a dog", "some dog"], ["an owl"]]
    assert torch.equal(found.read(np.array([0, 1])), torch.from_numpy(np.stack([b, a])).permute(0, 3, 1, 2))
    assert [name.endswith(end) for name, end in zip(found.names, ("b.png", "a.png"), strict=True)]


def test_a_table_may_have_labels(tmp_path):
    save(tmp_path / "a.png", noise())
    (tmp_path / "t.tsv").write_text("label\timage\nowl\ta.png\n")
    assert classed([str(tmp_path / "t.tsv")])[1] == ["owl"]


def test_what_is_wrong_with_a_table_is_named(tmp_path):
    save(tmp_path / "a.png", noise())
    t = tmp_path / "t.tsv"

    def said(text, *words):
        t.write_text(text)
        mistake(lambda: captioned([str(t)]), *words)

    said("", "t.tsv", "empty")
    said("image\tcaption\n", "t.tsv", "empty")
    said("a.png\tan owl\n", "t.tsv:1", "not image, caption")
    said("image\tcaption\na.png\tan owl\nb.png\tx\n", "t.tsv:3: no picture 'b.png'")
    said("image\tcaption\na.png\n", "t.tsv:2: 1 columns, but the header has 2")
    said("image\tcaption\na.png\t \n", "t.tsv:2: an empty caption")
    mistake(lambda: captioned([str(tmp_path)]), "a folder; give the .tsv")
    mistake(lambda: captioned([str(tmp_path / "no.tsv")]), "no such file")
    mistake(lambda: captioned([str(tmp_path / "a.png")]), "no table of pictures")
    (tmp_path / "t.tar").write_bytes(b"no tar" * 200)
    said("image\tcaption\na.png\tan owl\n", "t.tar: not a whole .tar")


# IDX


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files(tmp_path, ending):
    pixels = RNG.integers(0, 256, (11, 5, 5), dtype=np.uint8)
    path = idx(tmp_path / f"train-images-idx3-ubyte{ending}", pixels, [9, 0, 3] + [7] * 8)
    found, labels = classed([path, path])
    assert labels == (["9", "0", "3"] + ["7"] * 8) * 2
    assert found.names[12] == f"{path}:2"
    assert torch.equal(found.read(np.arange(11, 22)), torch.from_numpy(pixels)[:, None])
    larger, _ = classed([path], size=8, channels=3)
    assert larger.read(np.array([0])).shape == (1, 3, 8, 8)


def test_what_is_wrong_with_idx_files_is_named(tmp_path):
    pixels = RNG.integers(0, 256, (11, 5, 5), dtype=np.uint8)
    path = tmp_path / "x-images-idx3-ubyte"
    mistake(lambda: classed([idx(path, pixels)]), "x-labels-idx1-ubyte")
    mistake(lambda: classed([idx(path, pixels, [1] * 10)]), "11 pictures, but 10 labels")
    labels = idx(path, pixels, [1] * 11).replace("images-idx3", "labels-idx1")
    mistake(lambda: classed([labels]), "not the pictures")
    mistake(lambda: classed([str(tmp_path)]), "IDX files; give that of the pictures")
    mistake(lambda: classed([str(path), str(tmp_path)]), "don't mix")
    whole = path.read_bytes()
    for bad, words in (
        (whole[:-1], "275 bytes should follow its header, but 274 do"),
        (whole + b"x", "275 bytes"),
        (whole[:9], "not IDX"),
        (b"\0\0\x0d\x03" + whole[4:], "not IDX of unsigned bytes"),
        (whole[:4] + b"\xff" * 12, "get it again"),
        (whole[:4] + bytes(12), "get it again"),
    ):
        path.write_bytes(bad)
        mistake(lambda: classed([str(path)]), path, words)
    other = idx(tmp_path / "y-images-idx3-ubyte", pixels[:, :4, :4].copy(), [1] * 11)
    mistake(lambda: classed([idx(path, pixels, [1] * 11), other]), "another size")


def test_pictures_in_no_class_are_named(tmp_path):
    mistake(lambda: classed([str(tmp_path)]), "no picture in this folder", ".webp")
    save(tmp_path / "a.png", noise())
    mistake(lambda: classed([str(tmp_path)]), "a.png: in no class")
    mistake(lambda: classed([str(tmp_path / "nowhere")]), "no such file or folder")
