"""`info` of other libraries' files tells what loading them gives."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from helpers.folders import MAKERS, save_folder
from helpers.ggufs import llama, weights, write
from regard.runs.info import info
from regard.runs.load import load


@pytest.mark.parametrize("kind", MAKERS)
def test_huggingface(tmp_path: Path, kind: str) -> None:
    theirs = save_folder(tmp_path, kind)
    model, facts = load(tmp_path, "cpu"), info(tmp_path)
    assert (facts["format"], facts["kind"]) == ("huggingface", theirs.config.model_type)
    assert facts["task"] == model.task.config.name
    assert facts["architecture"] == type(theirs).__name__
    assert facts["bytes"] == (tmp_path / "model.safetensors").stat().st_size
    saved = load_file(tmp_path / "model.safetensors").values()
    assert facts["parameters"] == sum(t.numel() for t in saved if t.is_floating_point())
    if model.tokenizers and model.tokenizers[0] is not None:
        assert (facts["tokenizer"], facts["vocabulary"]) == ("bpe", model.tokenizers[0].vocab)
        assert facts["sizes"]["dim"] == model.model.config.dim
        assert facts["sizes"]["heads"] == model.model.config.heads


def test_shards(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    theirs = save_folder(folder, "gpt2")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert info(tmp_path / "shards")["parameters"] == info(folder)["parameters"]


def test_gguf(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "c"]}
    tensors = weights(64, np.random.default_rng(0))
    path = write(tmp_path / "a.gguf", llama() | tokens | {"general.name": "Tiny"}, tensors)
    facts = info(path)
    assert (facts["format"], facts["kind"], facts["name"]) == ("gguf", "llama", "Tiny")
    assert facts["parameters"] == sum(int(np.prod(shape)) for shape, _, _ in tensors.values())
    assert facts["precision"].split(", ") == ["Q8_0", "F32"]
    assert (facts["context"], facts["vocabulary"], facts["bytes"]) == (53, 3, path.stat().st_size)
    assert facts["sizes"] == {"dim": 96, "depth": 2, "heads": 3, "kv_heads": 1, "hidden": 160}
