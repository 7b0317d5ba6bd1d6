"""Recordings over HTTP: as base64 or as they are, never as a path, and with limits."""

import base64
import json

import pytest

from helpers.looking import hearer, reader, recording, seer
from helpers.serving import serve_models, serve_session
from helpers.sounds import tone, wav_bytes
from regard.data import sounds
from regard.serve.requests import ImageBytes
from regard.viewer.session import Session

WAV = wav_bytes(tone(500, 0.1))
HEARER = hearer()


def encode(data):
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def server():
    with serve_models({"hear": HEARER, "see": seer(), "write": reader("write", "gpt")}) as server:
        yield server


def test_recordings_are_asked_about(server):
    (expected,) = HEARER.answers([ImageBytes("", "audio", data=WAV)])
    for body, headers in (
        ({"model": "hear", "audio": encode(WAV)}, {}),
        (WAV, {"Content-Type": "audio/wav"}),
    ):
        status, _, answer = server.ask("/api/ask", body, headers)
        assert status == 200, answer
        reply = json.loads(answer)
        assert reply["output"] == expected[0].text
        assert reply["answers"][0][0]["score"] == pytest.approx(expected[0].score, rel=1e-4)


def test_what_is_no_recording(server, monkeypatch):
    for audio, words in (("/etc/passwd", "base64"), (encode(b"RIFF"), "WAV"), (encode(WAV[:60]), "WAV")):
        server.check_error(400, words, "/api/ask", {"model": "hear", "audio": audio})
    server.check_error(400, "audio", "/api/ask", {"model": "hear"})
    server.check_error(400, "audio", "/api/ask", {"model": "hear", "input": "a.wav"})
    server.check_error(400, "audio", "/api/ask", {"model": "hear", "picture": encode(WAV)})
    server.check_error(400, "picture", "/api/ask", {"model": "see", "audio": encode(WAV)})
    server.check_error(400, "texts", "/api/ask", {"model": "write", "input": "a", "audio": encode(WAV)})
    server.check_error(400, "audio", "/api/ask", {"model": "hear", "audio": 3})
    monkeypatch.setattr(sounds, "MAX_BYTES", 1000)
    server.check_error(413, "bytes", "/api/ask", {"model": "hear", "audio": encode(WAV)})


def test_page_of_a_recording():
    with serve_session(Session(HEARER, recording()), [hearer("mean")]) as server:
        for body in ({}, {"picture": encode(WAV)}, {"picture": encode(WAV), "model": 0}):
            status, _, answer = server.ask("/api/trace", body)
            assert status == 200, answer
            manifest = json.loads(answer)
            assert manifest["model"]["hears"]
            assert manifest["tensors"]["pixels"]["shape"][:2] == [1, 5]
            assert manifest["grid"] == [1, manifest["tensors"]["pixels"]["shape"][2] // 4]
        change = {"kind": "take", "part": "embed", "picture": encode(WAV)}
        status, _, answer = server.ask("/api/change", {"trace": manifest["id"], "changes": [change]})
        assert status in (200, 400), answer
        server.check_error(400, "WAV", "/api/trace", {"picture": encode(b"no")})
