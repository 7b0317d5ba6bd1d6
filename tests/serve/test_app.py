"""The page's server answers its own page with the model's numbers, and nobody else with anything."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from itertools import pairwise

import numpy as np
import pytest
import torch
from looking import noise, reader, seer
from PIL import Image
from runs import TINY
from serving import served

import regard
from regard import cli, serve
from regard.look.page import HERE, Shown
from regard.serve import app

WORDS = "the quick brown fox jumps"


@pytest.fixture(scope="module")
def writer():
    model = reader("write", "gpt")
    with served(model, Shown(model, WORDS)) as server:
        yield server


@pytest.fixture(scope="module")
def sees():
    model = seer()
    with served(model, Shown(model, noise(6))) as server:
        yield server


def numbers(server, **query):
    status, headers, data = server.ask("/api/tensor", trace=server.first.id, **query)
    assert status == 200, data
    shape = [int(n) for n in headers["X-Shape"].split(",")]
    kind = {"float32": np.float32, "uint8": np.uint8}[headers["X-Type"]]
    return torch.from_numpy(np.frombuffer(data, kind).reshape(shape).copy())


def refused(server, status, words, *asked, **query):
    found, _, data = server.ask(*asked, **query)
    assert (found, words in data.decode()) == (status, True), data


# Who may ask


def test_every_answer_has_a_strict_policy(writer):
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
        refused(writer, 421, "127.0.0.1", "/", headers={"Host": host})
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{writer.port}"):
        refused(writer, 403, "other pages", "/api/trace", {}, {"Origin": origin})
    refused(writer, 403, "other pages", "/api/log", headers={"Sec-Fetch-Site": "cross-site"})
    assert writer.ask("/", headers={"Host": f"localhost:{writer.port}"})[0] == 200
    assert writer.ask("/api/trace", {}, {"Origin": f"http://127.0.0.1:{writer.port}"})[0] == 200


def test_it_listens_to_this_machine_only_and_any_port_will_do():
    one = serve.bound(0)
    one.listen()
    port = one.getsockname()[1]
    other = serve.bound(port)
    assert {s.getsockname()[0] for s in (one, other)} == {"127.0.0.1"}
    assert other.getsockname()[1] != port
    one.close()
    other.close()


def test_only_the_pages_own_files(writer):
    assert writer.ask("/")[2] == (HERE / "index.html").read_bytes()
    for path in HERE.iterdir():
        assert writer.ask(f"/page/{path.name}")[2] == path.read_bytes()
    assert writer.ask("/page/app.js")[1]["Content-Type"].startswith("text/javascript")
    for name in ("page.py", "..%2fpage.py", "%2e%2e/views.py", "", "C:%5cboot.ini"):
        assert writer.ask(f"/page/{name}")[0] == 404


# Limits


def test_bodies_have_limits(writer, monkeypatch):
    refused(writer, 415, "JSON", "/api/trace", b"{}", {"Content-Type": "text/plain"})
    refused(writer, 400, "not JSON", "/api/trace", b"{")
    refused(writer, 400, "not JSON", "/api/ask", b"[" * 100_000)
    refused(writer, 400, "one JSON object", "/api/trace", [1])
    for path in ("/api/trace", "/api/ask"):
        refused(writer, 400, "give a text", path, {"input": 3})
        refused(writer, 413, "100,001 letters; up to 100,000", path, {"input": "a" * 100_001})
        refused(writer, 400, "surrogate", path, {"input": "\ud800"})
    refused(writer, 400, "nothing to trace", "/api/trace", {"input": " "})
    refused(writer, 400, "give a text", "/api/ask", {})
    refused(writer, 400, "layers", "/api/trace", {"layers": "0"})
    refused(writer, 400, "layers 0 to 1", "/api/trace", {"layers": [7]})
    refused(writer, 400, "answer", "/api/trace", {"answer": 1})
    monkeypatch.setattr(app, "LARGEST", 1000)
    refused(writer, 413, "over 1,000 bytes", "/api/trace", {"input": "a" * 2000})


def test_wrong_questions_are_told(writer):
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
        refused(writer, status, words, "/api/tensor", trace=writer.first.id, **query)
    refused(writer, 410, "reload", "/api/tensor", trace="0" * 16, name="embed")
    for ids in ("", "a", "-1", "1,,2", ",".join(["1"] * 501), "²"):
        refused(writer, 400, "ids", "/api/words", ids=ids)
    assert writer.ask("/api/trace")[0] == 405


# Numbers


def test_a_manifest_is_the_trace(writer):
    status, _, data = writer.ask("/api/trace", {"input": "lazy dog"})
    told, want = json.loads(data), regard.trace(writer.first.model, "lazy dog")
    assert status == 200
    assert told["tokens"] == want.tokens == {"text": ["lazy", "dog"]}
    assert {n: t["shape"] for n, t in told["tensors"].items()} == {
        n: list(t.shape) for n, t in want.tensors.items()
    }
    assert list(told["tensors"]) == want.names
    assert told["difference"] == want.difference
    assert told["attentions"]["masked"][1]["name"] == "blocks.1.attn"
    assert len(data) < 50_000


def test_layers_can_be_chosen(writer):
    told = json.loads(writer.ask("/api/trace", {"input": "lazy dog", "layers": [1]})[2])
    assert [one["name"] for one in told["attentions"]["masked"]] == ["blocks.1.attn"]


def test_tensors_are_torchs(writer):
    t = writer.first.trace
    for name in t:
        found = numbers(writer, name=name)
        assert torch.equal(found, t[name].to(found.dtype)), name
    w = t["blocks.1.attn.weights"]
    assert torch.equal(numbers(writer, name="blocks.1.attn.weights", head=2), w[2])
    part = numbers(writer, name="blocks.1.attn.weights", head=1, rows="1:3", columns="2:99")
    assert torch.equal(part, w[1, 1:3, 2:])
    weight = writer.first.model.model.blocks[0].attn.f.q.weight
    assert torch.equal(numbers(writer, name="@blocks.0.attn.q.weight"), weight)


def test_long_ones_are_pooled_by_the_largest(writer):
    E = writer.first.model.model.embed.weight  # (17, 12)
    found = numbers(writer, name="@embed.weight", most=6)
    assert found.shape == (6, 6)
    rows = torch.tensor([i * 17 // 6 for i in range(7)])
    want = torch.stack([E[a:b].amax(0) for a, b in pairwise(rows)])
    assert torch.equal(found, torch.nn.functional.max_pool1d(want[None], 2)[0])


def test_shares_of_the_largest_are_bytes(writer):
    w = writer.first.trace["blocks.0.attn.weights"]
    found = numbers(writer, name="blocks.0.attn.weights", **{"as": "uint8"})
    assert torch.equal(found, (255 * w / w.amax((1, 2), keepdim=True)).round().to(torch.uint8))


def test_words_and_answers(writer):
    model = writer.first.model
    assert json.loads(writer.ask("/api/words", ids="3,5")[2]) == model.tokenizer.tokens([3, 5])
    assert json.loads(writer.ask("/api/ask", {"input": WORDS})[2]) == {"output": model.ask(WORDS)}
    assert json.loads(writer.ask("/api/log")[2]) == []


def test_old_runs_are_forgotten(writer):
    ids = [
        json.loads(writer.ask("/api/trace", {"input": "fox " * n})[2])["id"] for n in range(1, app.KEPT + 2)
    ]
    status = [writer.ask("/api/tensor", trace=id, name="embed")[0] for id in ids]
    assert status == [410] + [200] * app.KEPT
    assert json.loads(writer.ask("/api/trace", {})[2])["id"] == writer.first.id  # and the first comes back
    assert writer.ask("/api/tensor", trace=writer.first.id, name="embed")[0] == 200


def test_large_runs_are_forgotten_sooner(writer, monkeypatch):
    monkeypatch.setattr(app, "MOST_BYTES", 1)
    ids = [json.loads(writer.ask("/api/trace", {"input": "fox " * n})[2])["id"] for n in (2, 3)]
    assert [writer.ask("/api/tensor", trace=id, name="embed")[0] for id in ids] == [410, 200]


def test_many_may_ask_at_once(writer):
    found = {}

    def ask(n):
        found[n] = json.loads(writer.ask("/api/trace", {"input": "fox " * n})[2])["tokens"]["text"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: ["fox"] * n for n in range(1, 8)}


def test_a_picture_can_be_sent_but_no_path(sees):
    pixels = noise(6).flip(2)
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
    told = json.loads(sees.ask("/api/trace", {"picture": base64.b64encode(file.getvalue()).decode()})[2])
    assert told["id"] != sees.first.id
    _, _, data = sees.ask("/api/tensor", trace=told["id"], name="pixels")
    assert data == pixels.numpy().tobytes()
    assert json.loads(sees.ask("/api/trace", {"input": __file__})[2])["id"] == sees.first.id
    refused(sees, 400, "base64", "/api/trace", {"picture": "!"})
    refused(sees, 400, "base64", "/api/trace", {"picture": 3})
    refused(sees, 400, "not a whole PNG", "/api/trace", {"picture": "AAAA"})
    refused(sees, 400, "reads texts", "/api/ask", {"input": "x"})


def test_a_model_that_reads_takes_no_picture(writer):
    refused(writer, 400, "reads texts", "/api/trace", {"picture": "AAAA"})


# The command


def test_the_command_serves_until_it_is_stopped(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n" * 30)
    regard.train("write", str(text), out=str(tmp_path / "run"), steps=2, set=TINY)
    command = [sys.executable, "-m", "regard", "look", str(tmp_path / "run"), "The fox", "--head", "1"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"BROWSER": "true"},
    )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/#head=1")
        with urllib.request.urlopen(address.split("#")[0] + "api/log", timeout=20) as answer:
            assert [row["step"] for row in json.load(answer)][:1] == [1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert errors.splitlines() == ["Ctrl-C ends it"]
    with pytest.raises(SystemExit) as left:
        cli.main(
            ["look", str(tmp_path / "run"), "The fox", "--save", str(tmp_path / "a.html"), "--view", "map"]
        )
    assert left.value.code == 0
    assert '"state": {"view": "map"}' in (tmp_path / "a.html").read_text("utf-8")
