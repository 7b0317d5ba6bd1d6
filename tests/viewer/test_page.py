"""The files of the page, its manifest, and the page in one file."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

import regard
from helpers.browsing import MODELS, WORDS, hostile, shown
from helpers.looking import noise, reader
from regard.describe.values import operands
from regard.errors import UserError
from regard.tracing import limits
from regard.viewer import html, trace_data
from regard.viewer.html import PAGE_FOLDER, VIEWS
from regard.viewer.manifest import head_statistics
from regard.viewer.onefile import all_modules, index
from regard.viewer.session import Session
from regard.viewer.sums import describe_trace, weights


def imported(name):
    """A module and all that it imports statically."""
    modules = {name}
    for other in re.findall(r'from "\./([\w.]+)"', (PAGE_FOLDER / name).read_text("utf-8")):
        modules |= imported(other)
    return modules


def test_each_module_is_read_once(monkeypatch):
    """Not once for each way to it, which were 4,000."""
    names, read_text = [], Path.read_text

    def read(path, *args, **options):
        names.append(path.name)
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", read)
    modules = all_modules(PAGE_FOLDER, engine=True)
    assert sorted(names) == sorted(modules)
    for name in modules:
        assert imported(name) <= {*modules[: modules.index(name) + 1]}


def test_the_first_view_is_small():
    """200 KB, and 60 KB packed: what a browser loads before it draws; other views come when opened."""
    page = index(PAGE_FOLDER)
    assert set(re.findall(r'modulepreload" href="/page/([\w.]+)"', page)) == imported("app.js") - {"app.js"}
    first = [
        page.encode(),
        *((PAGE_FOLDER / name).read_bytes() for name in {"page.css", *imported("app.js")}),
    ]
    assert len(first) < len(list(PAGE_FOLDER.iterdir()))
    assert sum(map(len, first)) < 200_000
    assert sum(len(gzip.compress(data)) for data in first) < 60_000


def test_every_file_is_known():
    files = all_modules(PAGE_FOLDER, engine=True)
    assert {path.name for path in PAGE_FOLDER.iterdir()} == {*files, "index.html", "page.css", "types.d.ts"}
    before, loaded = set(), imported("app.js") | imported("local.js")
    for name in files:  # each needs only those before it
        text = (PAGE_FOLDER / name).read_text("utf-8")
        assert set(re.findall(r'from "\./([\w.]+)"', text)) <= before
        before.add(name)
        for other in re.findall(r'(?:=>|await) import\("\./([\w.]+)"\)', text):
            loaded |= imported(other)
    assert loaded == set(files)  # no module is left over
    views = (PAGE_FOLDER / "views.js").read_text("utf-8")
    assert tuple(re.findall(r'^  \{ name: "(\w+)", title: ', views, re.MULTILINE)) == VIEWS


def test_no_text_is_parsed_as_html_and_nothing_is_loaded_from_elsewhere():
    for path in PAGE_FOLDER.iterdir():
        text = path.read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in text, f"{path.name}: {word}"
        addresses = set(re.findall(r"https?://[^\"'\s)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


@pytest.mark.parametrize("kind", MODELS)
def test_sums_name_known_tensors(kind):
    it = shown(kind)
    (listed, _), known = describe_trace(it.model, it.trace), set(it.trace) | set(weights(it.model))
    for name, how in listed.items():
        assert name in it.trace
        assert operands(how) <= known
    kinds = re.compile(r"\.(q|v|scores|weights|heads|out|residual|down)$")
    blocks = [name for name in it.trace if kinds.search(name) and "layers" not in name]
    opened = [name for name in blocks if name in listed or name == "decoder.look.q"]
    assert opened == blocks


def test_graph():
    columns = shown("transformer").manifest["graph"]
    titles = [[box["title"] for box in column["boxes"]] for column in columns]
    block = ["Masked self-attention", "Cross-attention", "Feed-forward"]
    assert titles[0] == ["Embedding + positions", *["Self-attention", "Feed-forward"] * 2]
    assert titles[1] == ["Embedding + positions", *block * 2, "Linear", "Softmax"]
    crossing = [box["from"] for box in columns[1]["boxes"] if box["title"] == "Cross-attention"]
    assert crossing == [columns[0]["boxes"][-1]["name"]] * 2
    (alone,) = shown("vit").manifest["graph"]
    assert [box["title"] for box in alone["boxes"]][:2] == ["Picture", "Patches"]


def test_head_statistics():
    w = torch.eye(5)[None].repeat(2, 1, 1)
    w[1] = 0.2
    itself, even = head_statistics(w)
    assert itself == pytest.approx({"entropy": 0, "diagonal": 1, "previous": 0, "first": 0.2})
    assert even["entropy"] == pytest.approx(2.321928, abs=1e-5)


def test_rollout():
    it = shown("vit")
    maps = regard.look(it.model, noise(6), "rollout").scene
    assert maps.title.startswith(it.answer.split()[0])
    assert it.rollout.sum(1) == pytest.approx(torch.ones(10), abs=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "captioner", "hostile"])
def test_one_file_needs_no_other(kind):
    text = (hostile() if kind == "hostile" else shown(kind)).html({"view": "walk"})
    assert len(text) < 8_000_000
    assert not re.search(r'(?:src|href)="(?!data:,|#)', text)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    assert "<" not in scripts[0]
    data = json.loads(scripts[0])
    assert data["state"] == {"view": "walk"}
    assert not re.search(r"^(import|export) ", scripts[1], re.MULTILINE)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; ")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    for code in (scripts[1], style):
        assert base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() in policy
    assert "unsafe" not in policy


def test_size_of_a_file_is_limited(monkeypatch):
    monkeypatch.setattr(html, "MAX_TENSOR_BYTES", 3000)
    names = shown("gpt").data()["tensors"]
    assert "blocks.1.attn.weights" in names
    assert "@embed.weight" not in names
    assert sum(len(base64.b64decode(one["data"])) for one in names.values()) <= 3000


def test_long_input_is_traced_in_one_block(monkeypatch):
    """5 tokens: 5 x 5 weights of 3 heads in 2 blocks; weights in a file are the largest of neighbours."""
    monkeypatch.setattr(trace_data, "MAX_SCORES", 149)
    model = reader("write", "gpt")
    it = Session(model, WORDS)
    assert (it.manifest["layers"], it.manifest["depth"]) == ([1], 2)
    assert it.trace.attentions == ["blocks.1.attn"]
    assert [one["layer"] for one in it.manifest["attentions"]["masked"]] == [1]
    assert Session(model, WORDS, layers=[0]).trace.attentions == ["blocks.0.attn"]
    assert Session(model, "the quick").manifest["layers"] is None
    monkeypatch.setattr(html, "POOLED_SIDE", 2)
    assert it.data()["tensors"]["blocks.1.attn.weights"]["shape"] == [3, 2, 2]


def test_a_trace_that_would_be_too_large_is_not_made(monkeypatch):
    """5 tokens: 3 times 5 x 5 weights of 3 heads in each of 2 blocks, and 5 rows of outputs."""
    model = reader("write", "gpt")
    outputs = 2 * 5 * model.model.config.vocab
    monkeypatch.setattr(limits, "MAX_NUMBERS", outputs + 450)
    it = Session(model, WORDS)
    assert it.whatif.trace_other(WORDS, "blocks.1.output").shape == (5, 12)
    monkeypatch.setattr(limits, "MAX_NUMBERS", outputs + 449)
    for layers in (None, [0, 1], [0, -1]):
        with pytest.raises(UserError, match=r"5 tokens.*shorter text"):
            Session(model, WORDS, layers=layers)
    assert Session(model, WORDS, layers=[0]).trace.attentions == ["blocks.0.attn"]
    assert Session(model, WORDS, layers=[-1]).trace.attentions == ["blocks.1.attn"]
    monkeypatch.setattr(limits, "MAX_NUMBERS", outputs + 224)
    for layers in (None, [0], [-1]):
        with pytest.raises(UserError, match="5 tokens"):
            Session(model, WORDS, layers=layers)
    monkeypatch.setattr(limits, "MAX_NUMBERS", 224)  # nor for another input, whose part What if takes
    with pytest.raises(UserError, match="5 tokens"):
        it.whatif.trace_other(WORDS, "blocks.1.output")


def test_a_trace_of_two_sides_that_would_be_too_large_is_not_made(monkeypatch):
    """The decoder's own weights, those to the source, and the encoder's."""
    model = reader("translate", "transformer")
    (T, S), heads = (4, 6), 3
    answer = "der Fuchs springt"  # each side has a token more, where it begins or ends
    numbers = 2 * T * model.model.config.vocab + 3 * heads * 2 * (T * T + T * S + S * S)
    it = Session(model, WORDS, answer)
    assert [len(it.trace.tokens[side]) for side in ("target", "source")] == [T, S]
    monkeypatch.setattr(limits, "MAX_NUMBERS", numbers)
    Session(model, WORDS, answer)
    monkeypatch.setattr(limits, "MAX_NUMBERS", numbers - 1)
    with pytest.raises(UserError, match="6 and 4 tokens"):
        Session(model, WORDS, answer)
    monkeypatch.setattr(limits, "MAX_NUMBERS", 3)
    with pytest.raises(UserError, match="3 and 4 tokens"):
        it.whatif.trace_other("the quick", "encoder.0.output")


def test_save(tmp_path):
    it = shown("gpt")
    it.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(FileNotFoundError):
        it.save(tmp_path / "none" / "a.html")
