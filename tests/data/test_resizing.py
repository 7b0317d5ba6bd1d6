"""A GPU resizes images to the same pixels as Pillow; the operations are the same on a CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from helpers.errors import user_error
from helpers.images import noise, save
from regard.data import images, resizing
from regard.data.decoders import Decoders
from regard.data.images import load_images
from regard.data.resizing import resize_parts, resizes_exactly, room_for
from regard.vision import decoding
from regard.vision.decoding import (
    FileBytes,
    ImageSource,
    decode_image,
    decode_part,
    fit_box,
    resize_image,
)

CPU = torch.device("cpu")
NEVER_COLUMNS_FIRST = not decoding.COLUMNS_MAY_BE_FIRST
SIZES = [(31, 37), (37, 31), (89, 19), (19, 89), (29, 23), (5, 7), (61, 61), (90, 47), (53, 24), (46, 58)]
SHAPES = [(3, 29, 23), (1, 17, 17), (3, 7, 41)]


@pytest.fixture(scope="module")
def pool():
    pool = Decoders(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, exif = tmp_path_factory.mktemp("images"), Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    paths = [save(folder / f"{n}.{('jpg', 'png')[n % 2]}", noise(*size)) for n, size in enumerate(SIZES)]
    paths.append(save(folder / "turned.jpg", noise(34, 67), exif=exif))
    paths.append(save(folder / "transparent.png", noise(34, 67, 4)))
    return [ImageSource(str(path), path.name) for path in paths]


@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_are_those_of_pillow(sources, shape):
    wanted = np.stack([decode_image(source, shape) for source in sources])
    for side in (max(shape), 48, 99):  # room for none of the larger images, for some, for all
        rooms = np.full((len(sources), side, side, shape[0]), 99, np.uint8)
        parts = [decode_part(*each) for each in zip(sources, [shape] * len(sources), rooms, strict=True)]
        resized = resize_parts(torch.from_numpy(rooms), parts, shape)
        assert torch.equal(resized, torch.from_numpy(wanted))


@pytest.mark.parametrize("dim", [-1, -2])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_kernel_and_plain_operations_agree(dim, channels):
    pytest.importorskip("triton")
    from regard.data import resizing_kernel

    random, device = torch.Generator().manual_seed(0), "cuda" if torch.cuda.is_available() else "cpu"
    rooms = torch.randint(256, (5, 23, 23, channels), generator=random, dtype=torch.uint8).to(device)
    x = rooms.permute(0, 3, 1, 2)[:, :, :19] if dim == -1 else rooms.permute(0, 3, 1, 2)[..., :17]
    axes = [(8.0, 22.0, 24, 4), (0.0, 11.0, 11, 0), (0.5, 14.5, 15, 0), (2.0, 13.0, 31, 0), (0.0, 7.0, 7, 0)]
    first, weights = resizing.filters(axes, 7, torch.device(device))
    wanted = resizing.plain_resample(x, dim, first, weights)
    assert torch.equal(resizing_kernel.resample(x, dim, first, weights, resizing.BITS), wanted)


def test_before_its_version_13_pillow_began_with_rows(monkeypatch):
    monkeypatch.setattr(decoding, "COLUMNS_MAY_BE_FIRST", False)
    shape, image, room = (3, 29, 23), Image.fromarray(noise(67, 34)), np.zeros((1, 99, 99, 3), np.uint8)
    left, top, right, bottom = fit_box(image.size, shape)
    rows = image.resize((23, 67), Image.Resampling.BICUBIC, box=(left, 0, right, 67))
    wanted = np.asarray(rows.resize((23, 29), Image.Resampling.BICUBIC, box=(0, top, 23, bottom)))
    resized = resize_parts(torch.from_numpy(room), [decoding.part_of(image, shape, room[0])], shape)
    assert np.array_equal(resized[0].permute(1, 2, 0).numpy(), wanted)
    assert np.array_equal(wanted, resize_image(image, shape).transpose(1, 2, 0)) == NEVER_COLUMNS_FIRST


@pytest.mark.skipif(NEVER_COLUMNS_FIRST, reason="Pillow before 13 always begins with rows")
def test_both_orders_are_used(sources):
    rooms = np.zeros((len(sources), 99, 99, 3), np.uint8)
    orders = [decode_part(source, (3, 29, 23), room)[2] for source, room in zip(sources, rooms, strict=True)]
    assert {*orders} == {False, True}


def test_a_few_are_resized_at_a_time(sources, monkeypatch):
    rooms, shape = np.zeros((len(sources), 99, 99, 3), np.uint8), (3, 29, 23)
    parts = [decode_part(source, shape, room) for source, room in zip(sources, rooms, strict=True)]
    at_once = resize_parts(torch.from_numpy(rooms), parts, shape)
    monkeypatch.setattr(resizing, "AT_ONCE", 2 * rooms[0].size)
    assert torch.equal(resize_parts(torch.from_numpy(rooms), parts, shape), at_once)


def test_a_device_is_compared_with_pillow_first(monkeypatch):
    assert resizes_exactly(CPU)
    monkeypatch.setattr(resizing, "bicubic", lambda x: (1 - x.abs()).clamp(min=0))
    assert not resizes_exactly.__wrapped__(CPU)


def test_the_part_is_that_of_image_ops_fit():
    for width, height in SIZES:
        image = Image.fromarray(noise(height, width))
        fitted = ImageOps.fit(image, (23, 29), Image.Resampling.BICUBIC)
        box = fit_box(image.size, (3, 29, 23))
        assert image.resize((23, 29), Image.Resampling.BICUBIC, box=box).tobytes() == fitted.tobytes()


def test_room_is_for_most_images():
    shape = 3, 20, 20
    assert room_for([(20, 20, False)] * 9, shape) < 40
    small = room_for([(30, 25, False)] * 99 + [(9000, 7000, False)], shape)
    assert 30 < small < 45  # one large image does not count
    assert room_for([(170, 500, False)], shape) == room_for([(85, 250, False)] * 2, shape)  # JPEGs, halved
    assert room_for([(39, 10**6, False)], shape) <= 2 * 20 + 17


def test_a_set_is_read_by_processes_and_the_device(pool, sources, monkeypatch, tmp_path):
    monkeypatch.setattr(images, "decoders", lambda: pool)
    monkeypatch.setattr(images, "MANY", 1)
    plain = load_images(sources, 13, 3)
    data = load_images(sources, 13, 3, memory=2 * 3 * 13 * 13)
    monkeypatch.setattr(images, "resizing_device", lambda: CPU)
    monkeypatch.setattr(images, "decode_into", None)  # not by Pillow alone
    rows = np.array([4, 11, 0, 10, 4, 7, 1, 2, 3, 5, 6, 8])
    monkeypatch.setattr(images, "MAX_ROOMS", 0)  # eight at a time
    for _ in range(2):  # the second time two of them are kept
        assert torch.equal(data.read(rows), plain.read(rows))
        assert len(data.cache.images) == 2
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    data.sources[7] = ImageSource(str(tmp_path / "bad.jpg"), "bad.jpg")
    user_error(lambda: data.read(rows), "bad.jpg:", "PNG, JPEG or WebP")
    data.sources[7] = FileBytes("", "7", data=Path(sources[7].path).read_bytes())
    assert torch.equal(data.rows([7]).read(np.array([0])), plain.read(np.array([7])))
