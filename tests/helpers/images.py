"""Images of random pixels for the tests."""

import torch
from PIL import Image


def noise(H=7, W=7, C=3):
    """Return random pixels (H, W, C), or (H, W) for one channel; the same, whichever tests came before."""
    return torch.randint(256, (H, W, C) if C > 1 else (H, W), dtype=torch.uint8).numpy()


def save(path, pixels, **options):
    """Save pixels as an image file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path
