"""Read untrusted requests: bodies, texts, images, recordings and numbers, each with a limit."""

import base64
import binascii
import itertools
import json
import json.scanner
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from starlette.requests import Request

from regard.cancel import CancellableLock, check_cancelled
from regard.data.sounds import SoundTooLarge
from regard.runs.model import Model
from regard.serve.errors import APIError
from regard.serve.schema import MAX_TEXT, is_unicode
from regard.vision import decoding

MAX_PIXELS = 2**24  # of an image that are decoded, each of 4 bytes
FILE_FIELDS = {"image": "picture", "audio": "audio"}  # by a task's kind of input, and by content type
MAX_VALUES = 2**19  # values of JSON: small ones take many times the memory of their text
FAST_VALUES = 2**13  # values that are parsed at once, in a few milliseconds
PAUSE_VALUES = 2**8  # values after which the event loop may catch up
MAX_KEYS = 2**14  # keys of one object, which are hashed at once
LARGE = 2**18  # bytes; larger bodies are parsed one at a time
ONE_AT_A_TIME = CancellableLock()
MAX_INT = 2**53  # whole numbers that JavaScript can hold


@dataclass(frozen=True)
class ImageBytes(decoding.FileBytes):
    """An image or a recording that came with a request."""

    formats = decoding.WEB


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


async def read_body(request: Request, files: bool = False) -> bytes:
    """The body of a JSON request; with `files`, it may be an image or a recording as well.

    Other content types are refused: a form on another website could send them.
    """
    kind = content_type(request)
    if kind != "application/json" and not (files and file_field(kind)):
        raise APIError(415, "send JSON, as application/json")
    return await request.body()


def file_field(kind: str) -> str | None:
    """The field of a request that a body of this content type stands for, if it is a file."""
    return FILE_FIELDS.get(kind.split("/")[0])


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse the JSON object in a body; NaN and infinity are not JSON. Other threads run during a long one."""
    with ONE_AT_A_TIME if len(data) > LARGE else nullcontext():
        if (count := sum(map(data.count, (b",", b"[", b"{")))) > MAX_VALUES:
            raise APIError(413, f"the body has over {MAX_VALUES:,} values; send less")
        try:
            value = make_decoder(count).decode(data.decode(json.detect_encoding(data), "surrogatepass"))
        except (ValueError, RecursionError):
            raise APIError(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise APIError(400, "send one JSON object")
    return value


def make_decoder(count: int) -> json.JSONDecoder:
    """Make a decoder for `count` values.

    The standard library's scanner in C lets no other thread run before it ends. For many values, the scanner
    in Python is used, which also waits now and then while the event loop is behind.
    """
    decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)
    if count <= FAST_VALUES:
        return decoder
    values = itertools.count(1)

    def pausing(parse: Callable[..., Any], scan_at: int, limit: float) -> Callable[..., Any]:
        def parse_pausing(*arguments: Any) -> Any:
            scan, own_values = arguments[scan_at], itertools.count(1)

            def scan_pausing(text: str, at: int) -> Any:
                if next(values) % PAUSE_VALUES == 0:
                    check_cancelled()
                if next(own_values) > limit:
                    raise APIError(413, f"an object of the body has over {limit:,} keys; send less")
                return scan(text, at)

            return parse(*arguments[:scan_at], scan_pausing, *arguments[scan_at + 1 :])

        return parse_pausing

    decoder.parse_object = pausing(json.decoder.JSONObject, 2, MAX_KEYS)  # type: ignore[attr-defined]
    decoder.parse_array = pausing(json.decoder.JSONArray, 1, math.inf)  # type: ignore[attr-defined]
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def check_text(value: object, name: str = "input") -> str:
    """Check that a string is not too long and can be encoded."""
    if not isinstance(value, str):
        raise APIError(400, f"{name}: give a text")
    if len(value) > MAX_TEXT:
        raise APIError(413, f"{name}: the text has {len(value):,} letters; up to {MAX_TEXT:,} are read")
    if not is_unicode(value):
        raise APIError(400, f"{name}: the text has half of a surrogate pair")
    return value


def decode_file(model: Model, file: object) -> torch.Tensor:
    """The pixels of an image, in the size that the model reads, or of a recording's spectrogram: of a PNG,
    JPEG, WebP or WAV file, as bytes or in base64."""
    if (name := FILE_FIELDS.get(model.task.reads)) is None:
        raise APIError(400, "this model reads texts; give it one", "picture")
    try:
        data = file if isinstance(file, bytes) else base64.b64decode(file, validate=True)  # type: ignore[arg-type]
    except (binascii.Error, TypeError, ValueError):
        raise APIError(400, f"{name}: give it in base64", name) from None
    source = ImageBytes("", name, data=data)
    try:
        if name == "audio":
            return model.task.pixels(source)
        return torch.from_numpy(decoding.decode_image(source, model.task.image_shape, MAX_PIXELS).copy())
    except (decoding.ImageTooLarge, SoundTooLarge) as error:
        raise APIError(413, str(error), name) from None


def body_int(body: dict[str, Any], name: str) -> int | None:
    """A whole number in a body, if there is one."""
    value = body.get(name)
    if value is not None and not is_int(value):
        raise APIError(400, f"{name}: give a whole number")
    return value


def is_int(value: object) -> bool:
    return type(value) is int and -MAX_INT <= value <= MAX_INT


def query_int(request: Request, name: str, low: int = 0) -> int | None:
    """A whole number in the query string, if there is one."""
    text = request.query_params.get(name)
    return None if text is None else _parse_int(text, name, low)


def query_slice(request: Request, name: str) -> slice:
    """A range of the query string such as 3:5; without one, everything."""
    text = request.query_params.get(name)
    if text is None:
        return slice(None)
    ends = text.split(":")
    if len(ends) != 2:
        raise APIError(400, f"{name}={text[:20]}: give a range like 0:8")
    return slice(*(_parse_int(end, name) for end in ends))


def _parse_int(text: str, name: str, low: int = 0) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= low):
        raise APIError(400, f"{name}={text[:20]}: give a whole number from {low} up")
    return int(text)
