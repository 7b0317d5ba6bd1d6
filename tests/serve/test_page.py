"""The page's server: security, limits, tensors equal to torch's, sessions, images and `regard look`."""

import base64
import gc
import io
import json
import os
import signal
import threading
import urllib.request
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from helpers.forking import Process
from helpers.looking import noise, reader, seer
from helpers.runs import TINY
from helpers.serving import serve_session
from regard import cli
from regard.serve import page, requests, server, sessions
from regard.serve.registry import ServerLimits
from regard.serve.server import bind_socket
from regard.tracing import limits
from regard.viewer.html import PAGE_FOLDER
from regard.viewer.onefile import index
from regard.viewer.session import Session

WORDS = "the quick brown fox jumps"


@pytest.fixture(scope="module")
def writer():
    model = reader("write", "gpt")
    with serve_session(Session(model, WORDS)) as server:
        yield server


@pytest.fixture(scope="module")
def sees():
    model = seer()
    with serve_session(Session(model, noise(6))) as server:
        yield server


def numbers(server, **query):
    status, headers, data = server.ask("/api/tensor", trace=server.first.id, **query)
    assert status == 200, data
    shape = [int(n) for n in headers["X-Shape"].split(",")]
    kind = {"float32": np.float32, "uint8": np.uint8}[headers["X-Type"]]
    return torch.from_numpy(np.frombuffer(data, kind).reshape(shape).copy())


# Access


def test_every_response_has_a_strict_policy(writer):
    for path in ("/", "/page/app.js", "/page/page.css", "/api/log", "/nowhere", "/api/tensor"):
        _, headers, _ = writer.ask(path)
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'self'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Access-Control-Allow-Origin"] is None


def test_other_hosts_and_pages_are_refused(writer):
    for host in ("evil.example", f"evil.example:{writer.port}", "127.0.0.1.evil.example", ""):
        writer.check_error(421, "127.0.0.1", "/", headers={"Host": host})
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{writer.port}"):
        writer.check_error(403, "other pages", "/api/trace", {}, {"Origin": origin})
    writer.check_error(403, "other pages", "/api/log", headers={"Sec-Fetch-Site": "cross-site"})
    assert writer.ask("/", headers={"Host": f"localhost:{writer.port}"})[0] == 200
    assert writer.ask("/api/trace", {}, {"Origin": f"http://127.0.0.1:{writer.port}"})[0] == 200


def test_local_address_and_another_port_if_one_is_in_use():
    one = bind_socket(0)
    one.listen()
    port = one.getsockname()[1]
    other = bind_socket(port)
    assert {s.getsockname()[0] for s in (one, other)} == {"127.0.0.1"}
    assert other.getsockname()[1] != port
    one.close()
    other.close()


def test_only_files_of_the_page_are_served(writer):
    assert writer.ask("/")[2] == index(PAGE_FOLDER).encode()
    for path in PAGE_FOLDER.iterdir():
        if path.name != "index.html":
            assert writer.ask(f"/page/{path.name}")[2] == path.read_bytes()
    assert writer.ask("/page/app.js")[1]["Content-Type"].startswith("text/javascript")
    for name in ("page.py", "..%2fpage.py", "%2e%2e/views.py", "", "C:%5cboot.ini"):
        assert writer.ask(f"/page/{name}")[0] == 404


# Limits


def test_bodies_have_limits(writer):
    writer.check_error(415, "JSON", "/api/trace", b"{}", {"Content-Type": "text/plain"})
    writer.check_error(400, "not JSON", "/api/trace", b"{")
    writer.check_error(400, "not JSON", "/api/ask", b"[" * 100_000)
    writer.check_error(400, "one JSON object", "/api/trace", [1])
    for path in ("/api/trace", "/api/ask"):
        writer.check_error(400, "give a text", path, {"input": 3})
        writer.check_error(413, "100,001 letters; up to 100,000", path, {"input": "a" * 100_001})
        writer.check_error(400, "surrogate", path, {"input": "\ud800"})
    writer.check_error(400, "nothing to trace", "/api/trace", {"input": " "})
    writer.check_error(400, "give a text", "/api/ask", {})
    writer.check_error(400, "layers", "/api/trace", {"layers": "0"})
    writer.check_error(400, "layers 0 to 1", "/api/trace", {"layers": [7]})
    writer.check_error(400, "answer", "/api/trace", {"answer": 1})
    with serve_session(writer.first, limits=ServerLimits(body=1000)) as small:
        small.check_error(413, "over 1,000 bytes", "/api/trace", {"input": "a" * 2000})


def test_invalid_queries(writer):
    for query, status, words in (
        ({"name": "blocks.9.attn.q"}, 400, "no such tensor"),
        ({"name": "@secret"}, 400, "no such tensor"),
        ({"name": "blocks.0.attn.q", "head": 3}, 400, "0 to 2"),
        ({"name": "blocks.0.attn.q", "head": -1}, 400, "whole number"),
        ({"name": "blocks.0.attn.q", "head": "9" * 5000}, 400, "whole number"),
        ({"name": "embed", "rows": "1"}, 400, "0:8"),
        ({"name": "embed", "rows": "a:b"}, 400, "whole number"),
        ({"name": "embed", "most": 0}, 400, "from 1 up"),
    ):
        writer.check_error(status, words, "/api/tensor", trace=writer.first.id, **query)
    writer.check_error(410, "reload", "/api/tensor", trace="0" * 16, name="embed")
    for ids in ("", "a", "-1", "1,,2", ",".join(["1"] * 501), "²"):
        writer.check_error(400, "ids", "/api/words", ids=ids)
    assert writer.ask("/api/trace")[0] == 405


def test_large_tensors_are_sent_in_parts(writer, monkeypatch):
    nbytes = writer.first.model.model.embed.weight.nbytes
    monkeypatch.setattr(page, "MAX_TENSOR_BYTES", nbytes - 1)
    query = {"trace": writer.first.id, "name": "@embed.weight"}
    writer.check_error(413, "rows", "/api/tensor", **query)
    for part in ({"rows": "0:2"}, {"columns": "0:2"}, {"most": 3}, {"as": "uint8"}):
        assert writer.ask("/api/tensor", **query | part)[0] == 200


def test_json_of_too_many_values_is_not_parsed(writer):
    body = b'{"layers": [' + b"1," * requests.MAX_VALUES + b"1]}"
    writer.check_error(413, "values", "/api/trace", body)


# Tensors and sessions


def test_manifest_describes_the_trace(writer):
    status, _, data = writer.ask("/api/trace", {"input": "lazy dog"})
    manifest, want = json.loads(data), regard.trace(writer.first.model, "lazy dog")
    assert status == 200
    assert manifest["tokens"] == want.tokens == {"text": ["lazy", "dog"]}
    assert {n: t["shape"] for n, t in manifest["tensors"].items()} == {
        n: list(t.shape) for n, t in want.tensors.items()
    }
    assert list(manifest["tensors"]) == want.names
    assert manifest["difference"] == want.difference
    assert manifest["attentions"]["masked"][1]["name"] == "blocks.1.attn"
    assert len(data) < 50_000


def test_layers_can_be_chosen(writer):
    manifest = json.loads(writer.ask("/api/trace", {"input": "lazy dog", "layers": [1]})[2])
    assert [one["name"] for one in manifest["attentions"]["masked"]] == ["blocks.1.attn"]


def test_tensors_equal_torchs(writer):
    t = writer.first.trace
    for name in t:
        values = numbers(writer, name=name)
        assert torch.equal(values, t[name].to(values.dtype)), name
    w = t["blocks.1.attn.weights"]
    assert torch.equal(numbers(writer, name="blocks.1.attn.weights", head=2), w[2])
    part = numbers(writer, name="blocks.1.attn.weights", head=1, rows="1:3", columns="2:99")
    assert torch.equal(part, w[1, 1:3, 2:])
    weight = writer.first.model.model.blocks[0].attn.f.q.weight
    assert torch.equal(numbers(writer, name="@blocks.0.attn.q.weight"), weight)


def test_of_long_tensors_the_numbers_farthest_from_zero_are_sent(writer):
    E = writer.first.model.model.embed.weight  # (17, 12)
    values = numbers(writer, name="@embed.weight", most=6)
    assert values.shape == (6, 6)
    for i, (a, b) in enumerate(pairwise(n * 17 // 6 for n in range(7))):
        for j in range(6):
            cells = E[a:b, 2 * j : 2 * j + 2].flatten()
            assert values[i, j] == cells[cells.abs().argmax()]  # also if it is below zero


def test_bytes_are_shares_of_the_largest(writer):
    w = writer.first.trace["blocks.0.attn.weights"]
    values = numbers(writer, name="blocks.0.attn.weights", **{"as": "uint8"})
    assert torch.equal(values, (255 * w / w.amax((1, 2), keepdim=True)).round().to(torch.uint8))


def test_words_and_answers(writer):
    model = writer.first.model
    assert json.loads(writer.ask("/api/words", ids="3,5")[2]) == model.tokenizer.tokens([3, 5])
    assert json.loads(writer.ask("/api/ask", {"input": WORDS})[2]) == {"output": model.ask(WORDS)}
    assert json.loads(writer.ask("/api/log")[2]) == []


def test_old_sessions_are_dropped(writer):
    ids = [
        json.loads(writer.ask("/api/trace", {"input": "fox " * n})[2])["id"]
        for n in range(1, sessions.MAX_SESSIONS + 2)
    ]
    status = [writer.ask("/api/tensor", trace=id, name="embed")[0] for id in ids]
    assert status == [410] + [200] * sessions.MAX_SESSIONS
    assert (
        json.loads(writer.ask("/api/trace", {})[2])["id"] == writer.first.id
    )  # the first session comes back
    assert writer.ask("/api/tensor", trace=writer.first.id, name="embed")[0] == 200


def test_large_sessions_are_dropped_sooner(writer, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_SESSION_BYTES", 1)
    ids = [json.loads(writer.ask("/api/trace", {"input": "fox " * n})[2])["id"] for n in (2, 3)]
    assert [writer.ask("/api/tensor", trace=id, name="embed")[0] for id in ids] == [410, 200]


def test_traces_that_would_be_too_large_are_refused(writer, monkeypatch):
    monkeypatch.setattr(limits, "MAX_NUMBERS", 10**3)
    for layers in (None, [0], [0, 1], [-1]):
        writer.check_error(400, "20 tokens", "/api/trace", {"input": "fox " * 20, "layers": layers})
    assert writer.ask("/api/trace", {"input": "fox"})[0] == 200


def test_concurrent_traces(writer):
    answers = {}

    def ask(n):
        answers[n] = json.loads(writer.ask("/api/trace", {"input": "fox " * n})[2])["tokens"]["text"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: ["fox"] * n for n in range(1, 8)}


def test_images_are_read_but_no_paths(sees):
    pixels = noise(6).flip(2)
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
    manifest = json.loads(sees.ask("/api/trace", {"picture": base64.b64encode(file.getvalue()).decode()})[2])
    assert manifest["id"] != sees.first.id
    _, _, data = sees.ask("/api/tensor", trace=manifest["id"], name="pixels")
    assert data == pixels.numpy().tobytes()
    assert json.loads(sees.ask("/api/trace", {"input": __file__})[2])["id"] == sees.first.id
    sees.check_error(400, "base64", "/api/trace", {"picture": "!"})
    sees.check_error(400, "base64", "/api/trace", {"picture": 3})
    sees.check_error(400, "PNG", "/api/trace", {"picture": "AAAA"})
    sees.check_error(400, "reads texts", "/api/ask", {"input": "x"})


def test_text_model_takes_no_image(writer):
    writer.check_error(400, "reads texts", "/api/trace", {"picture": "AAAA"})


# The command


def test_a_keystroke_waits_for_no_collection_of_what_is_there(monkeypatch):
    """A full garbage collection with torch's 200,000 objects takes 0.12 s, several times a minute."""
    counts = []

    def run(_, sockets):
        counts.append(gc.get_freeze_count())
        sockets[0].close()

    monkeypatch.setattr(server.uvicorn.Server, "run", run)
    model = reader("write", "gpt")
    try:
        server.serve_page(model, Session(model, "the fox"), open_browser=lambda url: None)
    finally:
        gc.unfreeze()
    assert counts[0] > 0


def test_command_serves_until_it_is_stopped(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n" * 30)
    regard.train("write", str(text), out=str(tmp_path / "run"), steps=2, set=TINY)
    words = ("look", tmp_path / "run", "The fox", "--head", 1)
    process = Process("-m", "regard", *words, env=os.environ | {"BROWSER": "true"})
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/#head=1")
        with urllib.request.urlopen(address.split("#")[0] + "api/log", timeout=60) as answer:
            assert [row["step"] for row in json.load(answer)][:1] == [1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1:] == ["Ctrl-C ends it"]  # before it may stand that the port is in use
    with pytest.raises(SystemExit) as left:
        cli.main(
            ["look", str(tmp_path / "run"), "The fox", "--save", str(tmp_path / "a.html"), "--view", "map"]
        )
    assert left.value.code == 0
    assert '"state": {"view": "map"}' in (tmp_path / "a.html").read_text("utf-8")
