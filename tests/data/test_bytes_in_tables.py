"""Images and recordings inside tables, and images in memory; formats of images that Pillow reads."""

import base64
import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image, features

import regard
from helpers.errors import user_error
from helpers.sounds import wav_bytes
from regard.data.image_readers import read_captions, read_image_classes
from regard.data.images import find_image
from regard.data.memory import list_inputs, name_data
from regard.data.reading import describe_sources, read_together
from regard.data.sound_readers import read_sound_classes
from regard.data.sounds import open_sound
from regard.vision import decoding

RNG = np.random.default_rng(0)
PIXELS = [RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(4)]
IMAGES = [Image.fromarray(pixels) for pixels in PIXELS]
LABELS = ["owl", "fox", "owl", "fox"]


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def structs() -> list[dict[str, Any]]:
    """As the package datasets writes them."""
    return [{"bytes": png(image), "path": f"{n}.png"} for n, image in enumerate(IMAGES)]


@pytest.mark.parametrize("suffix", [".parquet", ".feather"])
@pytest.mark.parametrize("column", ["image", "img"])
def test_images_in_parquet_and_arrow(tmp_path: Path, suffix: str, column: str) -> None:
    path = tmp_path / f"a{suffix}"
    frame = pd.DataFrame({column: structs(), "label": LABELS})
    {".parquet": frame.to_parquet, ".feather": frame.to_feather}[suffix](path)
    with read_together() as reading:
        images, labels = read_image_classes([str(path)])
    assert labels == LABELS
    assert (images.read(np.arange(4)).numpy() == np.stack(PIXELS).transpose(0, 3, 1, 2)).all()
    assert reading.sources[str(path)].examples[0]["image"].endswith(" bytes")
    assert images.fingerprint() != images.rows([1, 0, 2, 3]).fingerprint()
    assert len(set(images.keys())) == 4


def test_captions_and_recordings_in_parquet(tmp_path: Path) -> None:
    captions = [["one", "two"], ["three"], ["four"], ["five"]]
    pd.DataFrame({"image": structs(), "caption": captions}).to_parquet(tmp_path / "a.parquet")
    images, read = read_captions([str(tmp_path / "a.parquet")])
    assert (len(images), read) == (4, captions)
    wav = wav_bytes(np.zeros(100))
    frame = pd.DataFrame({"audio": [{"bytes": wav, "path": None}] * 2, "label": ["yes", "no"]})
    frame.to_parquet(tmp_path / "b.parquet")
    first, _ = read_sound_classes([str(tmp_path / "b.parquet")])
    assert open_sound(first.source).read() == wav


def test_a_damaged_image_is_named_by_its_row(tmp_path: Path) -> None:
    cells = [*structs()[:3], {"bytes": b"nothing", "path": None}]
    pd.DataFrame({"image": cells, "label": LABELS}).to_parquet(tmp_path / "a.parquet")
    user_error(lambda: read_image_classes([str(tmp_path / "a.parquet")]), "a.parquet row 4", "image")


# From Python


@pytest.mark.parametrize(
    "data",
    [
        list(zip(IMAGES, LABELS, strict=True)),
        list(zip(map(png, IMAGES), LABELS, strict=True)),
        [{"label": label, "image": image} for image, label in zip(IMAGES, LABELS, strict=True)],
        pd.DataFrame({"what": LABELS, "photo": IMAGES}),
    ],
)
def test_images_in_memory(data: Any) -> None:
    images, labels = read_image_classes([name_data(data)])
    assert labels == LABELS
    assert (images.read(np.arange(4)).numpy() == np.stack(PIXELS).transpose(0, 3, 1, 2)).all()


def test_a_model_of_images_in_memory(tmp_path: Path) -> None:
    data = list(zip(IMAGES * 3, LABELS * 3, strict=True))
    settings = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "model.patch": 4, "train.device": "cpu"}
    model = regard.train("see", data, out=tmp_path / "run", steps=2, set=settings)
    assert model.ask(IMAGES[0]) in LABELS
    assert model.ask(IMAGES[:2]) == model.ask(pd.DataFrame({"image": IMAGES[:2], "label": LABELS[:2]}))
    IMAGES[0].save(tmp_path / "a.png")
    assert model.ask(tmp_path / "a.png") == model.ask(IMAGES[0]) == model.ask([png(IMAGES[0])])[0]
    assert model.score(data, details=True)["rows"] == 12
    frame = pd.DataFrame({"image": IMAGES, "label": LABELS})
    assert model.score(frame, details=True)["rows"] == 4


def test_a_frame_of_inputs() -> None:
    texts = ["a", "b"]
    assert list_inputs(pd.DataFrame({"anything": texts})) == texts
    assert list_inputs(pd.DataFrame({"id": [1, 2], "text": texts})) == texts
    assert list_inputs(texts) is texts
    user_error(lambda: list_inputs(pd.DataFrame({"a": texts, "b": texts})), "a, b", "frame[NAME]")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "F", "I", "I;16"])
def test_an_image_is_encoded_without_loss(mode: str) -> None:
    image = Image.new("I;16", (3, 2)) if mode == "I;16" else IMAGES[0].convert("L").convert(mode)
    again = Image.open(io.BytesIO(decoding.encode_image(image)))
    assert (np.asarray(again) == np.asarray(image)).all()


# Formats


SAVED = {  # what Pillow writes and reads, with the settings that lose nothing
    ".tiff": {},
    ".tif": {"compression": "tiff_lzw"},
    ".webp": {"lossless": True},
    ".ppm": {},
    ".bmp": {},
    ".gif": None,
    ".ico": {"sizes": [(8, 8)]},
    ".jp2": {"irreversible": False},
    ".tga": {},
    ".pcx": {},
}


def test_rarer_formats(tmp_path: Path) -> None:
    built = {".jp2": features.check("jpg_2000"), ".webp": features.check("webp")}
    suffixes = [suffix for suffix in SAVED if built.get(suffix, True)]
    folder = tmp_path / "owl"
    folder.mkdir()
    for suffix in suffixes:
        IMAGES[0].save(folder / f"a{suffix}", **(SAVED[suffix] or {}))
    images, labels = read_image_classes([str(tmp_path)])
    assert len(labels) == len(suffixes)
    for name, pixels in zip(images.names, images.read(np.arange(len(images))).numpy(), strict=True):
        if SAVED[Path(name).suffix] is not None:
            assert (pixels.transpose(1, 2, 0) == PIXELS[0]).all(), name


def test_heic_is_read_where_its_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(2):
        (tmp_path / "owl").mkdir(exist_ok=True)
        IMAGES[n].save(tmp_path / "owl" / f"{n}.png")
    (tmp_path / "owl" / "2.heic").write_bytes(png(IMAGES[2]))
    caches = (decoding.readable_formats, decoding.readable_suffixes)

    def read() -> tuple[int, list[str]]:
        for each in caches:
            each.cache_clear()
        with read_together() as reading:
            images, _ = read_image_classes([str(tmp_path)])
        return len(images), list(reading.notes)

    package = ModuleType("pillow_heif")
    package.__spec__ = type(sys.__spec__)("pillow_heif", None)
    extensions = dict(Image.registered_extensions())
    package.register_heif_opener = lambda: Image.EXTENSION.update({".heic": "PNG"})  # type: ignore[attr-defined]
    try:
        count, (note,) = read()
        assert count == 2
        assert "1 .heic" in note
        assert "pillow-heif" in note
        monkeypatch.setitem(sys.modules, "pillow_heif", package)
        assert read() == (3, [])
    finally:
        Image.EXTENSION.clear()
        Image.EXTENSION.update(extensions)
        for each in caches:
            each.cache_clear()


# A HEIC file of 16 x 16 pixels, as pillow-heif writes it.
HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAXxtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAAACJp"
    "bG9jAAAAAERAAAEAAQAAAAABoAABAAAAAAAAACgAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRtAAAAAAAB"
    "AAAA/GlwcnAAAADcaXBjbwAAAHVodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEA"
    "AQApQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbqrprm4CGgwIAAAAyAAAADAIRiAAEABkQBwXPBiQAAABNjb2xybmNseAABAA0ABoAAAAAU"
    "aXNwZQAAAAAAAABAAAAAQAAAAChjbGFwAAAAEAAAAAEAAAAQAAAAAf///9AAAAAC////0AAAAAIAAAAQcGl4aQAAAAADCAgIAAAAGGlw"
    "bWEAAAAAAAAAAQABBYECAwWEAAAAMG1kYXQAAAAkKAGvC0hOQ4D1/TpX/8oFvn6QZ95EheWo1WpWgJySOXqQK4Cw"
)


def test_a_real_heic_file(tmp_path: Path) -> None:
    path = tmp_path / "owl" / "IMG_0001.HEIC"
    path.parent.mkdir()
    path.write_bytes(HEIC)
    IMAGES[0].save(path.parent / "a.png")
    with read_together() as reading:
        images, _ = read_image_classes([str(tmp_path)])
    if importlib.util.find_spec("pillow_heif") is None:
        assert len(images) == 1
        (note,) = reading.notes
        assert "1 of 2 files" in note
        assert "1 .heic" in note
        lines = describe_sources(reading.sources.values(), "", notes=reading.notes)
        assert "nothing" not in lines[1]
        source = find_image(str(path))
        user_error(lambda: decoding.decode_image(source, (3, 16, 16)), path, "HEIC", "regard[heic]")
    else:
        red, green, blue = decoding.decode_image(find_image(str(path)), (3, 16, 16)).mean(axis=(1, 2))
        assert len(images) == 2
        assert red > 150 > 80 > max(green, blue)
