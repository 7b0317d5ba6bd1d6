"""What the page is made of and what it is told; in one file it needs nothing else."""

import base64
import gzip
import hashlib
import json
import re

import pytest
import torch
from browsing import MODELS, WORDS, hostile, shown
from looking import noise, reader

import regard
from regard.look import page
from regard.look.page import HERE, Shown
from regard.look.sums import operands, sums, weights


def needed(name):
    """A file, and those that it cannot do without."""
    found = {name}
    for other in re.findall(r'from "\./([\w.]+)"', (HERE / name).read_text("utf-8")):
        found |= needed(other)
    return found


def test_the_first_view_is_small():
    """150 KB, and 40 KB packed: what a browser loads before it draws; other views come when opened."""
    index = (HERE / "index.html").read_text("utf-8")
    assert set(re.findall(r'modulepreload" href="/page/([\w.]+)"', index)) == needed("app.js") - {"app.js"}
    first = [(HERE / name).read_bytes() for name in {"index.html", "page.css", *needed("app.js")}]
    assert len(first) < len(list(HERE.iterdir()))
    assert sum(map(len, first)) < 150_000
    assert sum(len(gzip.compress(data)) for data in first) < 40_000


def test_every_file_is_known():
    assert {path.name for path in HERE.iterdir()} == {*page.FILES, "index.html", "page.css"}
    before = set()
    for name in page.FILES:  # each needs only those before it
        text = (HERE / name).read_text("utf-8")
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= before
        before.add(name)
    app = (HERE / "app.js").read_text("utf-8")
    assert tuple(re.findall(r'^  \["(\w+)", .*(?:import|async)', app, re.MULTILINE)) == page.VIEWS


def test_nothing_is_parsed_as_html_and_nothing_comes_from_elsewhere():
    for path in HERE.iterdir():
        text = path.read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in text, f"{path.name}: {word}"
        addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


@pytest.mark.parametrize("kind", MODELS)
def test_sums_name_what_is_there(kind):
    it = shown(kind)
    made, known = sums(it.model, it.trace), set(it.trace) | set(weights(it.model))
    for name, how in made.items():
        assert name in it.trace
        assert operands(how) <= known
    kinds = re.compile(r"\.(q|v|scores|weights|heads|out|residual|down)$")
    blocks = [name for name in it.trace if kinds.search(name) and "layers" not in name]
    opened = [name for name in blocks if name in made or name == "decoder.look.q"]
    assert opened == blocks


def test_the_graph_is_the_models():
    columns = shown("transformer").manifest["graph"]
    titles = [[box["title"] for box in column["boxes"]] for column in columns]
    block = ["Masked self-attention", "Cross-attention", "Feed-forward"]
    assert titles[0] == ["Embedding + positions", *["Self-attention", "Feed-forward"] * 2]
    assert titles[1] == ["Embedding + positions", *block * 2, "Linear", "Softmax"]
    crossing = [box["from"] for box in columns[1]["boxes"] if box["title"] == "Cross-attention"]
    assert crossing == [columns[0]["boxes"][-1]["name"]] * 2
    (alone,) = shown("vit").manifest["graph"]
    assert [box["title"] for box in alone["boxes"]][:2] == ["Picture", "Patches"]


def test_what_heads_do():
    w = torch.eye(5)[None].repeat(2, 1, 1)
    w[1] = 0.2
    itself, even = page.kinds(w)
    assert itself == pytest.approx({"entropy": 0, "diagonal": 1, "previous": 0, "first": 0.2})
    assert even["entropy"] == pytest.approx(2.321928, abs=1e-5)


def test_rollout_is_that_of_the_picture():
    it = shown("vit")
    maps = regard.look(it.model, noise(6), "rollout").scene
    assert maps.title.startswith(it.answer.split()[0])
    assert it.rollout.sum(1) == pytest.approx(torch.ones(10), abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "captioner", "hostile"])
def test_one_file_is_all_there_is(kind):
    html = (hostile() if kind == "hostile" else shown(kind)).html({"view": "walk"})
    assert len(html) < 8_000_000
    assert not re.search(r'(?:src|href)="(?!data:,|#)', html)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 2
    assert "<" not in scripts[0]
    kept = json.loads(scripts[0])
    assert kept["state"] == {"view": "walk"}
    assert not re.search(r"^(import|export) ", scripts[1], re.MULTILINE)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    for text in (scripts[1], style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "unsafe" not in policy


def test_a_file_stays_small_whatever_the_model(monkeypatch):
    monkeypatch.setattr(page, "IN_FILE", 3000)
    kept = shown("gpt").kept()["tensors"]
    assert "blocks.1.attn.weights" in kept
    assert "@embed.weight" not in kept
    assert sum(len(base64.b64decode(one["data"])) for one in kept.values()) <= 3000


def test_of_a_long_input_one_block_is_kept(monkeypatch):
    """5 tokens: 5 x 5 weights of 3 heads in 2 blocks; weights in a file are the largest of neighbours."""
    monkeypatch.setattr(page, "MOST_NUMBERS", 149)
    model = reader("write", "gpt")
    it = Shown(model, WORDS)
    assert (it.manifest["layers"], it.manifest["depth"]) == ([1], 2)
    assert it.trace.attentions == ["blocks.1.attn"]
    assert [one["layer"] for one in it.manifest["attentions"]["masked"]] == [1]
    assert Shown(model, WORDS, layers=[0]).trace.attentions == ["blocks.0.attn"]
    assert Shown(model, "the quick").manifest["layers"] is None
    monkeypatch.setattr(page, "POOLED", 2)
    assert it.kept()["tensors"]["blocks.1.attn.weights"]["shape"] == [3, 2, 2]


def test_a_file_is_whole_or_not_there(tmp_path):
    it = shown("gpt")
    it.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(FileNotFoundError):
        it.save(tmp_path / "none" / "a.html")
