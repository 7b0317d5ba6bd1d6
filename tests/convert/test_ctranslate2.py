"""CTranslate2's folders: the engine gives the same texts as the model."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.exports import train_tokens, trained_model
from helpers.folders import CONTEXT, save_folder
from helpers.slow import slow_after
from regard.cli import main
from regard.convert.ctranslate2 import ACTIVATIONS, is_tie
from regard.core.layers import FeedForward
from regard.runs.export import export, sample_texts
from regard.runs.load import load
from regard.runs.model import Model

engine = pytest.importorskip("ctranslate2")
ON_CPU: dict[str, Any] = {"device": "cpu", "compute_type": "float32"}
TODAY = {"positions": "rotary", "norm": "rms", "ffn": "swiglu", "bias": False, "pre": True}  # as translators
GPT2 = {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}
LEARNT = {"positions": "learned", "ffn": "gelu", "output_bias": True, "decoder_depth": 3}
TRANSLATORS: list[tuple[str, dict[str, Any], bool]] = [
    ("transformer", {}, False),
    ("t5", {"ffn": "gelu_tanh"}, False),
    ("transformer", {"pre": True, "tied": False}, True),
    ("transformer", TODAY, False),
    ("transformer", TODAY | {"kv_heads": 1, "hidden": 53}, True),
    ("transformer", LEARNT, False),
    ("transformer", {"ffn": "geglu", "head_dim": 6, "tied": False}, False),
    ("transformer", {"ffn": "silu", "positions": "none"}, False),
    ("transformer", {"decoder_heads": 2, "decoder_hidden": 53, "decoder_depth": 1}, False),
    ("transformer", TODAY | {"decoder_heads": 10, "head_dim": 6}, False),
]


def names(tokenizer: Any, rows: Any) -> list[list[str]]:
    return [[tokenizer.inner.id_to_token(int(id)) for id in ids] for ids in rows]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "sizes", "two"), slow_after(5, TRANSLATORS), ids=str)
def test_encoder_decoder(tmp_path: Path, kind: str, sizes: dict[str, Any], two: bool) -> None:
    """Probabilities of random targets, and 200 greedy answers."""
    other = train_tokens("wordpiece", "chat") if two else None
    ours = trained_model(kind, "chat", train_tokens("bpe", "chat"), {}, other, depth=2, **sizes)
    assert "200 of 200" in export(ours, tmp_path / "out", "ctranslate2")
    theirs, task = engine.Translator(str(tmp_path / "out"), **ON_CPU), ours.task
    sources = [[*ids, task.source_end] for ids in torch.randint(5, 190, (5, 17)).tolist()]
    targets = torch.randint(5, task.output_tokenizer.vocab - 1, (5, 11))
    scores = theirs.score_batch(names(ours.tokenizer, sources), names(task.output_tokenizer, targets))
    first, last = (torch.full((5, 1), id) for id in (task.begin, task.end))
    y = ours.model(torch.tensor(sources), torch.cat([first, targets], 1)).log_softmax(-1)
    y = y.gather(2, torch.cat([targets, last], 1)[..., None])[..., 0]
    assert_close(torch.tensor([row.log_probs for row in scores]), y, atol=1e-4, rtol=1e-4)
    texts = sample_texts("translate")[:200]
    rows = [task.source(ids) for text in texts for ids in task.parts(text)]
    options = {"min_decoding_length": 0, "max_decoding_length": 20}
    answers = theirs.translate_batch(names(ours.tokenizer, rows), beam_size=1, **options)
    decoded = [
        task.output_tokenizer.decode([task.output_tokenizer.id(t) for t in a.hypotheses[0]]) for a in answers
    ]
    assert len(set(decoded)) > (30 if sizes.get("tied") is False else 3)
    assert decoded == ours.ask(texts, max_new_tokens=20, num_beams=1)


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_a_folder_with_sides_of_unequal_size(tmp_path: Path, kind: str) -> None:
    sizes = {"encoder_layers": 3, "decoder_layers": 1, "encoder_ffn_dim": 53, "decoder_ffn_dim": 31}
    sizes |= {"encoder_attention_heads": 5, "decoder_attention_heads": 2}
    save_folder(tmp_path / "theirs", kind, 1, **sizes)
    assert "200 of 200" in export(load(tmp_path / "theirs", "cpu"), tmp_path / "out", "ctranslate2")


def test_beams(tmp_path: Path) -> None:
    """The same answers, with a patience as large as the number of beams."""
    other = train_tokens("wordpiece", "chat")
    ours = trained_model(
        "transformer", "chat", train_tokens("bpe", "chat"), {}, other, depth=1, pre=True, tied=False
    )
    export(ours, tmp_path / "out", "ctranslate2")
    theirs, texts = engine.Translator(str(tmp_path / "out"), **ON_CPU), sample_texts("chat")[:60]
    rows = [ours.task.source(ids) for text in texts for ids in ours.task.parts(text)]
    options = {"min_decoding_length": 0, "max_decoding_length": 20, "beam_size": 4, "patience": 4}
    answers = theirs.translate_batch(names(ours.tokenizer, rows), **options)
    decoded = [other.decode([other.id(t) for t in a.hypotheses[0]]) for a in answers]
    assert decoded == ours.ask(texts, max_new_tokens=20, num_beams=4)


WRITERS: list[dict[str, Any]] = [
    {},
    GPT2,
    GPT2 | {"tied": False, "eps": 1e-3, "kv_heads": 2},
    {"base": 500.0, "qkv_bias": True},
    {"qk_norm": True, "head_dim": 6},
    {"positions": "alibi", "dim": 30, "heads": 5},
    {"positions": "sinusoidal", "ffn": "relu"},
]


@torch.no_grad()
@pytest.mark.parametrize("sizes", WRITERS, ids=str)
def test_decoder(tmp_path: Path, sizes: dict[str, Any]) -> None:
    ours = trained_model("gpt", "write", train_tokens("bpe", "write"), {}, depth=2, **sizes)
    assert "200 of 200" in export(ours, tmp_path / "out", "ctranslate2")
    theirs = engine.Generator(str(tmp_path / "out"), **ON_CPU)
    ids = torch.randint(5, 190, (3, 29))
    y = torch.from_numpy(np.array(theirs.forward_batch(ids.tolist())))
    assert_close(y, ours.model(ids), atol=1e-4, rtol=1e-4)


READERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("embed", {}, {}),
    ("embed", {}, {"positions": "rotary", "norm": "rms", "ffn": "swiglu", "bias": False, "pre": True}),
    ("classify", {"labels": ["good", "bad"]}, {"segments": 0, "pooler": "relu"}),
    ("tag", {"labels": ["O", "B-PET"]}, {"positions": "relative", "ffn": "gelu_tanh"}),
]


@torch.no_grad()
@pytest.mark.parametrize(("task", "section", "sizes"), READERS, ids=str)
def test_encoder(tmp_path: Path, task: str, section: dict[str, Any], sizes: dict[str, Any]) -> None:
    """Texts of unequal length; the head is in a separate file."""
    ours = trained_model("bert", task, train_tokens("wordpiece", task), section, depth=2, **sizes)
    export(ours, tmp_path / "out", "ctranslate2")
    theirs = engine.Encoder(str(tmp_path / "out"), **ON_CPU)
    ids = torch.randint(5, ours.tokenizer.vocab, (2, 13))
    attention_mask = torch.arange(13) < torch.tensor([[13], [7]])
    outputs = theirs.forward_batch([row[m].tolist() for row, m in zip(ids, attention_mask, strict=True)])
    x, pooled = (torch.from_numpy(np.array(y)) for y in (outputs.last_hidden_state, outputs.pooler_output))
    inner = ours.model if task == "embed" else ours.model.model
    assert_close(x[attention_mask], inner.encode(ids, attention_mask)[attention_mask], atol=1e-5, rtol=1e-5)
    if task != "embed":
        head = load_file(tmp_path / "out/head.safetensors")
        y = (x if task == "tag" else pooled) @ head["weight"].T + head["bias"]
        mine = ours.model(ids, attention_mask)
        assert_close(
            *((y[attention_mask], mine[attention_mask]) if task == "tag" else (y, mine)), atol=1e-5, rtol=1e-5
        )


def test_settings_that_are_refused(tmp_path: Path) -> None:
    def refused(kind: str, task: str, *words: str, section: Any = None, **sizes: Any) -> None:
        ours = trained_model(kind, task, train_tokens("wordpiece", task), section or {}, **sizes)
        user_error(lambda: export(ours, tmp_path / "out", "ctranslate2"), *words)
        assert not list(tmp_path.iterdir())

    refused("gpt", "write", "model.positions=relative", "train with", positions="relative")
    refused("gpt", "write", "model.rope_scaling", "train without", rope_scaling=(8.0, 1.0, 4.0, 19.0))
    refused("gpt", "write", "model.sliding_window=5", "train without", sliding_window=5)
    refused("gpt", "write", "model.qk_norm=True", norm="layer", qk_norm=True)
    refused("bert", "embed", "model.window=5", "train without", window=5)
    refused("bert", "fill", "Bert", "fill", "--to onnx")
    refused("gpt", "classify", "GPT", "classify", section={"labels": ["a", "b"]})
    refused("gru", "translate", "Seq2Seq", "--to onnx")


def test_parts_that_are_not_standard(tmp_path: Path) -> None:
    class LeakyFeedForward(FeedForward):
        pass

    for kind, task in (("gpt", "write"), ("transformer", "translate"), ("bert", "embed")):
        ours = trained_model(kind, task, train_tokens("wordpiece", task), {}, depth=2, ffn="relu")
        ours.model.blocks[-1].ffn.f = LeakyFeedForward(40)
        user_error(lambda m=ours: export(m, tmp_path / "out", "ctranslate2"), "LeakyFeedForward", "--to onnx")
        ours.model.blocks[-1].ffn.f = FeedForward(40, f=torch.tanh)
        user_error(lambda m=ours: export(m, tmp_path / "out", "ctranslate2"), "activation", "--to onnx")
        assert not list(tmp_path.iterdir())


def test_a_wrong_folder_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another activation function than the model's."""
    for kind, task in (("transformer", "translate"), ("gpt", "write"), ("bert", "embed")):
        ours = trained_model(kind, task, train_tokens("wordpiece", task), {}, depth=1)
        with monkeypatch.context() as patch:
            patch.setattr("regard.convert.ctranslate2.ACTIVATIONS", dict.fromkeys(ACTIVATIONS, "Tanh"))
            user_error(lambda m=ours: export(m, tmp_path / "out", "ctranslate2"), "nothing was kept")
        with monkeypatch.context() as patch:
            patch.setattr(engine.specs.ModelSpec, "save", cut)
            user_error(lambda m=ours: export(m, tmp_path / "out", "ctranslate2"), "ctranslate2 can't load")
        assert not list(tmp_path.iterdir())


def cut(spec: Any, folder: str) -> None:
    """What a disk may leave."""
    (Path(folder) / "model.bin").write_bytes(b"")


@torch.no_grad()
def test_ties() -> None:
    """Texts may differ only from a token on where two logits are equal."""
    model = trained_model("gpt", "write", train_tokens("char", "write"), {}).model
    model.embed.weight[3] = model.embed.weight[4]
    assert is_tie(model, [], [5, 6, 3, 7], [5, 6, 4], None)
    assert not is_tie(model, [], [5, 6, 3, 7], [5, 6, 8], None)
    assert is_tie(model, [], [5, 6, 3, 7], [5, 6], 4)  # one goes on, the other ends
    assert not is_tie(model, [], [5, 6, 3], [5, 6], None)


def run_readme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the README's example in the folder; the last line's value is `last`."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0].rstrip().splitlines()
    names: dict[str, Any] = {}
    monkeypatch.chdir(folder)
    exec("\n".join([*code[:-1], f"last = {code[-1]}"]), names)
    return names


@pytest.mark.parametrize("two", [False, True])
def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: bool) -> None:
    other = train_tokens("bpe", "translate") if two else None
    ours = trained_model(
        "transformer", "translate", train_tokens("wordpiece", "translate"), {}, other, pre=True, depth=1
    )
    export(ours, tmp_path / "out", "ctranslate2")
    assert run_readme(tmp_path / "out", monkeypatch)["last"] == ours.ask("A text.", max_new_tokens=CONTEXT)
    assert (tmp_path / "out/target_tokenizer.json").exists() == two


def test_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = trained_model("gpt", "write", train_tokens("bpe", "write"), {}, depth=1)
    export(ours, tmp_path / "hf")

    def left(*arguments: str) -> int:
        with pytest.raises(SystemExit) as caught:
            main(["export", str(tmp_path / "hf"), str(tmp_path / "out"), *arguments])
        return int(caught.value.code or 0)

    assert left("--to", "ctranslate2") == 0
    out, said = capsys.readouterr()
    assert out == f"{tmp_path / 'out'}\n"
    assert "200 of 200" in said
    assert json.loads((tmp_path / "out/config.json").read_text())["eos_token"] == "<|endoftext|>"
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert left("--to", "ctranslate2") == 2
    assert 'pip install "regard[ctranslate2]"' in capsys.readouterr().err


def test_formats_are_known(tmp_path: Path) -> None:
    ours: Model = trained_model("gpt", "write", train_tokens("char", "write"), {}, depth=1)
    user_error(lambda: export(ours, tmp_path / "out", "gguf2"), "gguf2", "ctranslate2")
