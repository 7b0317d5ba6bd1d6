"""Processes that decode images give what threads give, and a bounded number of images is kept."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from helpers.images import noise, save
from regard.data import images
from regard.data.decoders import Decoders
from regard.data.images import ImageDataset, PixelCache, decode_images, load_images
from regard.vision.decoding import ImageSource, ImageTooLarge, decode_image, read_size

SHAPE = 3, 11, 11


@pytest.fixture(scope="module")
def pool():
    pool = Decoders(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    paths = [
        save(folder / f"{n}.{kind}", noise(13 + n, 17))
        for n in range(9)
        for kind in ("jpg", "png", "webp", "bmp")
    ]
    return [ImageSource(str(path), path.name) for path in paths]


def expected(sources):
    return torch.from_numpy(np.stack([decode_image(source, SHAPE) for source in sources]))


def test_processes_decode_as_this_one_does(pool, sources):
    assert torch.equal(decode_images(sources, SHAPE, pool=pool), expected(sources))
    assert torch.equal(decode_images(sources, SHAPE), expected(sources))
    assert pool.sizes(sources) == [read_size(source) for source in sources]


def test_memory_grows_with_images(pool, sources):
    for side in (7, 300, 11):
        shape = 3, side, side + 2
        plain = [decode_image(source, shape) for source in sources]
        assert torch.equal(decode_images(sources, shape, pool=pool), torch.from_numpy(np.stack(plain)))


def test_errors_come_back_as_they_are(pool, sources, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    bad = ImageSource(str(tmp_path / "bad.jpg"), "bad.jpg")
    message = user_error(lambda: decode_image(bad, SHAPE), "bad.jpg")
    assert user_error(lambda: decode_images([*sources, bad], SHAPE, pool=pool), "bad.jpg") == message
    assert torch.equal(decode_images(sources, SHAPE, pool=pool), expected(sources))  # in step again
    huge = ImageSource(str(save(tmp_path / "huge.png", np.zeros((8193, 8193), np.uint8))), "huge.png")
    with pytest.raises(ImageTooLarge, match="huge"):
        pool.sizes([huge])


def test_a_process_that_dies_is_done_without(sources):
    pool = Decoders(2)
    try:
        for _ in range(2):
            worker = pool.idle.get()
            worker.process.kill()
            worker.process.wait()
            pool.idle.put(worker)
        assert torch.equal(decode_images(sources, SHAPE, pool=pool), expected(sources))
        assert pool.sizes(sources[:1]) == [read_size(sources[0])]
    finally:
        pool.close()


def test_processes_need_no_torch(pool, sources):
    worker = pool.idle.get()
    with open(f"/proc/{worker.process.pid}/maps") as file:
        assert "libtorch" not in file.read()
    pool.idle.put(worker)


def test_many_images_are_read_by_processes(pool, sources, monkeypatch):
    monkeypatch.setattr(images, "decoders", lambda: pool)
    monkeypatch.setattr(images, "MANY", 20)
    monkeypatch.setattr(images, "decode_image", None)  # not in this process
    monkeypatch.setattr(images, "read_size", None)
    loaded = load_images(sources, 11, None)
    streamed = load_images(sources, 11, None, memory=0)
    rows = np.array([5, 0, 26, 5])
    assert torch.equal(loaded.read(rows), expected([sources[row] for row in rows]))
    assert torch.equal(streamed.read(rows), loaded.read(rows))


# What is kept


def test_no_more_bytes_are_kept_than_allowed(sources):
    size, decoded = int(np.prod(SHAPE)), []

    class Counted(ImageDataset):
        @staticmethod
        def decode(source, shape):
            decoded.append(source)
            return decode_image(source, shape)

    cache = PixelCache(7 * size + 5)
    data = Counted([s.name for s in sources], None, sources, SHAPE, cache)
    rows = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
    for _ in range(2):
        assert torch.equal(data.read(rows), expected([sources[row] for row in rows]))
    assert cache.bytes == 7 * size == sum(image.nbytes for image in cache.images.values())
    assert len(decoded) == len(rows) + np.isin(rows, [8]).sum()  # the other seven were kept
    part = data.rows([9, 3])
    assert part.cache is cache
    assert torch.equal(part.read(np.array([1])), expected([sources[3]]))


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_several_threads_read_at_once(sources, share):
    memory = int(share * len(sources) * np.prod(SHAPE))
    data = load_images(sources, 11, None, memory=memory)
    assert (data.pixels is None) == (share < 1)
    wanted = expected(sources)
    rows = [np.roll(np.arange(len(sources)), n) for n in range(12)]
    with ThreadPoolExecutor(4) as threads:
        for order, pixels in zip(rows, threads.map(data.read, rows), strict=True):
            assert torch.equal(pixels, wanted[order])
    assert data.cache.bytes <= memory
