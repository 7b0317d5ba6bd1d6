"""A process that decodes images for `regard.data.decoders`, into memory that both share.

A request is a line of JSON: the shape, or null for headers alone, and the sources. The reply is a line of
JSON; before it is sent, the pixels of all sources are in the memory whose file descriptor is the argument.
"""

import json
import mmap
import os
import sys
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.vision.decoding import ImageSource, ImageTooLarge, Shape, decode_image, read_size, refuse_bombs


class SharedPixels:
    """Pixels in a file that two processes map into their memory."""

    def __init__(self, file: int):
        self.file, self.map = file, np.zeros(0, np.uint8)

    def reserve(self, count: int, shape: Shape) -> None:
        """Make the file large enough for `count` images."""
        if (size := count * int(np.prod(shape))) > os.fstat(self.file).st_size:
            os.ftruncate(self.file, size)

    def view(self, count: int, shape: Shape) -> np.ndarray:
        """The first images (count, C, H, W) of a file that is large enough."""
        size = count * int(np.prod(shape))
        if size > len(self.map):
            self.map = np.frombuffer(mmap.mmap(self.file, 0), np.uint8)
        return self.map[:size].reshape(count, *shape)


def reply(request: dict[str, Any], pixels: SharedPixels) -> dict[str, Any]:
    sources = [ImageSource(*fields) for fields in request["sources"]]
    try:
        if request["shape"] is None:
            return {"sizes": [read_size(source) for source in sources]}
        C, H, W = request["shape"]
        for source, place in zip(sources, pixels.view(len(sources), (C, H, W)), strict=True):
            place[:] = decode_image(source, (C, H, W))
        return {}
    except UserError as error:
        return {"error": str(error), "too_large": isinstance(error, ImageTooLarge)}


def main() -> None:
    out, pixels = sys.stdout.buffer, SharedPixels(int(sys.argv[1]))
    with refuse_bombs():
        for line in sys.stdin.buffer:  # until the other process closes its end
            out.write(json.dumps(reply(json.loads(line), pixels)).encode() + b"\n")
            out.flush()


if __name__ == "__main__":
    main()
