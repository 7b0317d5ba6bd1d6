"""Files to train on: folders of JPEGs and of recordings, whose content does not affect the speed."""

import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10


def make_jpegs(folder: Path, count: int, side: int) -> Path:
    """Draw waves with noise, in ten classes; each side of an image is 1 to 1.33 times as long as `side`."""
    noise = np.random.default_rng(0).normal(0, 12, (2 * side, 2 * side, 3)).astype(np.float32)

    def draw(n: int) -> None:
        rng = np.random.default_rng(n)
        H, W = rng.integers(side, side * 4 // 3 + 1, size=2)
        y, x = np.ogrid[0:H, 0:W]
        waves = rng.uniform(0.01, 0.2, (3, 2))
        bands = [np.sin(a * x) * np.cos(b * y) for a, b in waves]
        top, left = rng.integers(0, 2 * side - side * 4 // 3, size=2)
        pixels = 128 + 90 * np.stack(bands, axis=-1) + noise[top : top + H, left : left + W]
        path = folder / f"class{n % CLASSES}" / f"{n}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=85)

    for n in range(CLASSES):
        (folder / f"class{n}").mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as threads:
        list(threads.map(draw, range(count)))
    return folder


def make_captions(folder: Path, count: int, side: int) -> str:
    """A table of images with a caption each; return its path."""
    make_jpegs(folder / "images", count, side)
    names = sorted(path.relative_to(folder / "images").as_posix() for path in folder.rglob("*.jpg"))
    lines = [f"{name}\ta picture of waves, number {n} of {count}" for n, name in enumerate(names)]
    (folder / "images.tsv").write_text("\n".join(["image\tcaption", *lines]) + "\n")
    return str(folder / "images.tsv")


def make_sounds(folder: Path, count: int, seconds: float) -> Path:
    """Recordings of noise in two classes."""
    rng = np.random.default_rng(0)
    for n in range(count):
        path = folder / f"class{n % 2}" / f"{n}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(rng.integers(-9000, 9000, int(16_000 * seconds)).astype("<i2").tobytes())
    return folder
