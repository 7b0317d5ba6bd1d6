"""A process that decodes images for `regard.data.decoders`: requests on standard input, pixels on output.

A request is a line of JSON: the shape, or null for headers alone, and the sources. The reply is a line of
JSON, followed by the pixels of all sources one after another.
"""

import json
import sys
from typing import Any

from regard.errors import UserError
from regard.vision.decoding import ImageSource, ImageTooLarge, decode_image, read_size, refuse_bombs


def reply(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    sources = [ImageSource(*fields) for fields in request["sources"]]
    try:
        if request["shape"] is None:
            return {"sizes": [read_size(source) for source in sources]}, b""
        shape = tuple(request["shape"])
        return {}, b"".join(decode_image(source, shape).tobytes() for source in sources)
    except UserError as error:
        return {"error": str(error), "too_large": isinstance(error, ImageTooLarge)}, b""


def main() -> None:
    out = sys.stdout.buffer
    with refuse_bombs():
        for line in sys.stdin.buffer:  # until the other process closes its end
            head, data = reply(json.loads(line))
            out.write(json.dumps(head).encode() + b"\n")
            out.write(data)
            out.flush()


if __name__ == "__main__":
    main()
