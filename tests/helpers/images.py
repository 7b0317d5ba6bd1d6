"""Images of random pixels for the tests."""

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def noise(H=7, W=7, C=3):
    """Return random pixels (H, W, C), or (H, W) for one channel."""
    return RNG.integers(0, 256, (H, W, C) if C > 1 else (H, W), dtype=np.uint8)


def save(path, pixels, **options):
    """Save pixels as an image file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path
