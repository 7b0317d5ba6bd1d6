"""A process that decodes images for `regard.data.decoders`, into memory that both share.

A request is a line of JSON: the shape, or null for headers alone; the side of the room for an image that
another device resizes, or 0; and the sources. The reply is a line of JSON; before it is sent, the pixels of
all sources are in the memory whose file descriptor is the argument.
"""

import json
import mmap
import os
import sys
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.memory import allocator
from regard.vision.decoding import (
    ImageSource,
    ImageTooLarge,
    decode_image,
    decode_part,
    read_size,
    refuse_bombs,
)

Sides = tuple[int, int, int]  # of an image (C, H, W), or of a room for one (R, R, C)


class SharedPixels:
    """Pixels in a file that two processes map into their memory."""

    def __init__(self, file: int):
        self.file, self.map = file, np.zeros(0, np.uint8)

    def reserve(self, count: int, shape: Sides) -> None:
        """Make the file large enough for `count` images."""
        if (size := count * int(np.prod(shape))) > os.fstat(self.file).st_size:
            os.ftruncate(self.file, size)

    def view(self, count: int, shape: Sides) -> np.ndarray:
        """The first images (count, *shape) of a file that is large enough."""
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
        if room := request["room"]:
            places = zip(sources, pixels.view(len(sources), (room, room, C)), strict=True)
            return {"parts": [decode_part(source, (C, H, W), place) for source, place in places]}
        for source, place in zip(sources, pixels.view(len(sources), (C, H, W)), strict=True):
            place[:] = decode_image(source, (C, H, W))
        return {}
    except UserError as error:
        return {"error": str(error), "too_large": isinstance(error, ImageTooLarge)}


def main() -> None:
    allocator.keep()  # each image needs as much as the last one
    out, pixels = sys.stdout.buffer, SharedPixels(int(sys.argv[1]))
    with refuse_bombs():
        for line in sys.stdin.buffer:  # until the other process closes its end
            out.write(json.dumps(reply(json.loads(line), pixels)).encode() + b"\n")
            out.flush()


if __name__ == "__main__":
    main()
