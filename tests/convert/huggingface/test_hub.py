"""hf:OWNER/NAME: the calls of huggingface_hub, and a cache with its layout, without a network."""

import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import regard
from helpers.errors import user_error
from helpers.ggufs import llama, weights, write
from regard.convert.huggingface.hub import download
from regard.runs.export import export

REVISION = "0123456789abcdef0123456789abcdef01234567"


def tiny(path: Path) -> Path:
    """A GGUF file with a token for each byte."""
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "he"]
    metadata = llama() | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.merges": ["Ġ t", "h e"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    return write(path, metadata, weights(len(pieces), np.random.default_rng(0)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The same model, exported in Hugging Face's layout."""
    path = tmp_path_factory.mktemp("hub")
    export(regard.load(tiny(path / "a.gguf"), "cpu"), path / "made")
    return path / "made"


def cache(monkeypatch, home: Path, *files: Path) -> None:
    """The hub's cache with one model in it, and no network."""
    from huggingface_hub import constants

    folder = home / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    (folder / "blobs").mkdir()
    (folder / "snapshots" / REVISION).mkdir(parents=True)
    for n, file in enumerate(files):
        shutil.copy(file, folder / "blobs" / str(n))
        (folder / "snapshots" / REVISION / file.name).symlink_to(folder / "blobs" / str(n))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home))


def test_what_is_asked_for(monkeypatch, folder):
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "no/such":
            raise FileNotFoundError("Repository not found\nmany lines")
        return str(folder)

    stand_in = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    assert regard.load("hf:owner/name", "cpu").folder == folder
    assert asked == [("owner/name", ["*.json", "*.jinja", "*.spm", "model*.safetensors"])]  # and no pickles
    user_error(lambda: regard.load("hf:no/such"), "hf:no/such", "Repository not found", "hf download no/such")
    user_error(lambda: download("hf:owner/name/a.gguf"), "owner/name has no a.gguf")
    for name in ("hf:", "hf:/name", "hf:owner/", "hf:owner/name/x.bin", "hf:owner/../a.gguf"):
        user_error(lambda name=name: download(name), name, "hf:OWNER/NAME")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    user_error(lambda: regard.load("hf:owner/name"), "hf:owner/name", "pip install 'regard[hub]'")


def test_a_real_cache(monkeypatch, tmp_path, folder):
    """With huggingface_hub itself, offline: cached files are used, missing ones are named."""
    gguf = tiny(tmp_path / "tiny.gguf")
    cache(monkeypatch, tmp_path / "home", *folder.iterdir(), gguf)
    options = {"temperature": 0, "max_new_tokens": 5}
    said = regard.load(folder, "cpu").ask("the", **options)
    assert regard.load("hf:owner/name", "cpu").ask("the", **options) == said
    assert regard.load("hf:owner/name/tiny.gguf", "cpu").ask("the", **options) == said
    user_error(
        lambda: regard.load("hf:owner/other"), "hf:owner/other", "not in the cache", "hf download owner/other"
    )
    user_error(lambda: regard.load("hf:owner/name/no.gguf"), "no.gguf")


def test_the_command_line(monkeypatch, tmp_path, folder, capsys):
    from regard.cli import main

    cache(monkeypatch, tmp_path / "home", *folder.iterdir())
    with pytest.raises(SystemExit) as end:
        main(["ask", "hf:owner/name", "the", "--max-new-tokens", "3", "--json"])
    said = capsys.readouterr()
    assert end.value.code == 0
    assert json.loads(said.out)["input"] == "the"
    with pytest.raises(SystemExit) as end:
        main(["ask", "hf:owner/none", "the"])
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.err.startswith("regard: hf:owner/none: not in the cache")
    assert said.err.count("\n") == 1
