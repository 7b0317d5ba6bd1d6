"""Pictures over HTTP: a limit for pixels, checked before decoding, and for how many are decoded at once."""

import base64
import io
import json
import struct
import threading
import time
import zlib

import pytest
from PIL import Image

from helpers.images import noise
from helpers.looking import captioner, reader, seer
from helpers.looking import noise as pixels
from helpers.serving import serve_models, serve_session
from regard.errors import UserError
from regard.serve import page, registry, requests
from regard.viewer.session import Session
from regard.vision import decoding


def png(width, height):
    """A PNG that says in its header how large it is, and has nothing behind it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def encode(data):
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def server():
    with serve_models({"see": seer(), "caption": captioner(), "write": reader("write", "gpt")}) as server:
        yield server


def requests_with(picture):
    for model in ("see", "caption"):
        yield "/api/ask", {"picture": encode(picture), "model": model}
    yield "/api/trace", {"picture": encode(picture)}
    yield "/api/trace", {"picture": encode(picture), "model": 0}


@pytest.mark.parametrize("size", [(8192, 8192), (2**24 + 1, 1), (2**20, 2**20), (2**31 - 1, 2**31 - 1)])
def test_too_many_pixels_are_refused(server, size, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    for path, body in requests_with(png(*size)):
        server.check_error(413, "pixels", path, body)
    server.check_error(413, "pixels", "/api/ask", png(*size), {"Content-Type": "image/png"})


def test_a_picture_of_millions_of_rows_is_refused(server, monkeypatch):
    """Pillow allocates each row for itself, and nothing else runs meanwhile."""
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    for size in ((1, 2**24), (2**24, 1), (1, 2**18 + 1)):
        server.check_error(413, "on a side", "/api/ask", {"picture": encode(png(*size)), "model": "see"})


def test_limit_is_that_of_decoded_pixels(server, monkeypatch):
    """A JPEG is decoded at a fraction of its size."""
    monkeypatch.setattr(requests, "MAX_PIXELS", 48 * 48)
    for kind, status in (("JPEG", 200), ("PNG", 413), ("WEBP", 413)):
        file = io.BytesIO()
        Image.fromarray(noise(96, 96)).save(file, kind)
        assert server.ask("/api/ask", file.getvalue(), {"Content-Type": f"image/{kind.lower()}"})[0] == status


def test_few_pictures_are_decoded_at_once(server, monkeypatch):
    now, highest, lock, decode = [0], [0], threading.Lock(), decoding.decode_image

    def slow(*args):
        with lock:
            now[0] += 1
            highest[0] = max(highest[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return decode(*args)

    monkeypatch.setattr(decoding, "decode_image", slow)
    file = io.BytesIO()
    Image.fromarray(noise(9, 9)).save(file, "PNG")
    picture = encode(file.getvalue())
    statuses = []
    model = seer()
    with serve_session(Session(model, pixels(6))) as other:
        change = {"kind": "take", "part": other.first.whatif.patchable[0], "picture": picture}
        sent = [
            *[(server, "/api/ask", {"picture": picture, "model": "see"})] * 8,
            *[(other, "/api/change", {"trace": other.first.id, "changes": [change]})] * 8,
        ]
        threads = [
            threading.Thread(target=lambda s=s, p=p, b=b: statuses.append(s.ask(p, b)[0])) for s, p, b in sent
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}
    assert highest[0] <= page.HEAVY + registry.WORKERS


def test_compared_models_read_pictures_of_their_own_size():
    """A text model is compared with two that read images: each gets the picture in its own shape."""
    file = io.BytesIO()
    Image.fromarray(noise(12, 12)).save(file, "PNG")
    picture = encode(file.getvalue())
    writer, vit, caption = reader("write", "gpt"), seer(), captioner()
    with serve_session(Session(writer, "the fox"), [vit, caption]) as server:
        for i in (0, 1):
            assert server.ask("/api/trace", {"picture": picture, "model": i})[0] == 200
            for text in ({}, {"input": "the fox"}):  # an example of its own: a text is never a path
                status, _, data = server.ask("/api/trace", {"model": i} | text)
                assert (status, json.loads(data)["input"]) == (200, None)
        server.check_error(400, "reads texts", "/api/trace", {"picture": picture})
    with serve_session(Session(vit, pixels(6)), [caption, writer]) as server:
        assert server.ask("/api/trace", {"model": 0})[0] == 200  # the first picture, in another size
        assert server.ask("/api/trace", {"model": 1, "input": "the fox"})[0] == 200
        status, _, data = server.ask("/api/trace", {"model": 1})
        assert (status, json.loads(data)["input"]) == (200, writer.task.example_input())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "TGA"])
def test_clients_send_the_formats_of_the_web(kind):
    """Files of the user's own may have any format; what strangers may send is a decoder to attack."""
    file = io.BytesIO()
    Image.fromarray(noise()).save(file, kind)
    if kind in decoding.WEB:
        assert requests.decode_file(seer(), file.getvalue()).shape == (3, 6, 6)
    else:
        with pytest.raises(UserError, match="PNG, JPEG or WebP"):
            requests.decode_file(seer(), file.getvalue())
