"""ONNX graphs: onnxruntime computes what the model computes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.exports import train_tokens, trained_model
from helpers.folders import CONTEXT, VOCAB
from regard.convert.onnx.recurrent import encoder_graph
from regard.core.layers import Stack
from regard.describe.export import Graph
from regard.models import GPT, MODELS, GPTConfig, Seq2Seq
from regard.runs.export import export
from regard.runs.model import Model
from regard.tasks import Request

pytest.importorskip("onnxscript")
onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
CLASSES = {"labels": ["good", "bad", "neither"]}


def session(model: Any) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(model, options)


def run_readme(folder: Path, monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> dict[str, Any]:
    """Run the README's example in the folder; the last line's value is `last`."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0].rstrip().splitlines()
    *lines, last = code
    monkeypatch.chdir(folder)
    exec("\n".join([*lines, last if " = " in last else f"last = {last}"]), inputs)
    return inputs


def padding_mask(rows: int, T: int) -> torch.Tensor:
    """True for all T tokens of the first row, and for fewer in the other rows."""
    return torch.arange(T) < torch.tensor([[max(1, T - 5 * row)] for row in range(rows)])


@torch.no_grad()
def test_gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained_model("gpt", "write", train_tokens("bpe", "write"), {}, depth=1, kv_heads=2)
    assert "model's own" in export(ours, tmp_path / "out", "onnx")
    graph = session(str(tmp_path / "out/model.onnx"))
    for shape in (1, 1), (3, CONTEXT), (7, 5):
        ids = torch.randint(VOCAB, shape)
        (logits,) = graph.run(None, {"input_ids": ids.numpy()})
        assert_close(torch.from_numpy(logits), ours.model(ids), atol=1e-5, rtol=1e-5)
    ids = ours.tokenizer.encode("The cat")
    for _ in range(11):
        (logits,) = graph.run(None, {"input_ids": torch.tensor([ids]).numpy()})
        ids.append(int(logits[0, -1].argmax()))
    new = ids[len(ours.tokenizer.encode("The cat")) :]
    new = new[: new.index(ours.tokenizer.end)] if ours.tokenizer.end in new else new
    assert ours.tokenizer.decode(new) == ours.ask("The cat", temperature=0.0, max_new_tokens=11)
    result = run_readme(tmp_path / "out", monkeypatch)["result"]
    assert_close(torch.from_numpy(result), ours.model(torch.tensor([ours.tokenizer.encode("A text.")])))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["context"] == CONTEXT
    assert config["graphs"] == {"model": {"inputs": ["input_ids"], "outputs": ["logits"]}}
    assert (tmp_path / "out/generation_config.json").exists()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["transformer", pytest.param("gru", marks=pytest.mark.slow)])
def test_encoder_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Sources of unequal length, and the README's example."""
    sizes: dict[str, Any] = {"pre": True} if kind == "transformer" else {"attention": "additive"}
    two = train_tokens("bpe", "translate"), train_tokens("wordpiece", "translate")
    ours = trained_model(kind, "translate", two[0], {}, two[1], depth=1, **sizes)
    export(ours, tmp_path / "out", "onnx")
    encoder, decoder = (session(str(tmp_path / f"out/{name}_model.onnx")) for name in ("encoder", "decoder"))
    for rows, S, T in (3, 17, 5), (1, 1, 1):
        source, attention_mask = torch.randint(VOCAB, (rows, S)), padding_mask(rows, S)
        target = torch.randint(two[1].vocab, (rows, T))
        memory, *state = encoder.run(
            None, {"input_ids": source.numpy(), "attention_mask": attention_mask.long().numpy()}
        )
        y = ours.model(source, target, attention_mask)
        for t in range(T):
            inputs = {
                "input_ids": target[:, : t + 1].numpy(),
                "encoder_hidden_states": memory,
                "encoder_attention_mask": attention_mask.long().numpy(),
            }
            if state:
                inputs |= {"input_ids": target[:, t : t + 1].numpy(), "state": state[0]}
            logits, *state = decoder.run(None, inputs)
            assert_close(torch.from_numpy(logits[:, -1]), y[:, t], atol=1e-5, rtol=1e-5)
    results = run_readme(tmp_path / "out", monkeypatch)
    assert results["last"] == ours.ask("A text.", num_beams=1, max_new_tokens=CONTEXT)


def test_configurations_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has such a model, whose padding has a mask."""
    monkeypatch.setattr("regard.convert.onnx.export.write_graph", lambda *_: None)
    monkeypatch.setattr("regard.convert.onnx.export.check_graphs", lambda *_: "")
    configs = {}
    for kind, task, section in (
        ("bert", "classify", CLASSES),
        ("transformer", "translate", {}),
        ("gru", "translate", {}),
        ("gpt", "write", {}),
    ):
        ours = trained_model(kind, task, train_tokens("bpe", task), section, depth=1)
        export(ours, tmp_path / kind, "onnx")
        configs[kind] = json.loads((tmp_path / kind / "config.json").read_text())
        assert configs[kind]["graphs"]
    types = {kind: config.get("model_type") for kind, config in configs.items()}
    assert types == {"bert": "bert", "transformer": "marian", "gru": None, "gpt": None}
    assert list(configs["bert"]["id2label"].values()) == CLASSES["labels"]


@pytest.mark.slow
@torch.no_grad()
def test_optimum_loads_the_folders(tmp_path: Path) -> None:
    """In its classes for texts, by the names that it looks for. Masks are those of a tokenizer."""
    optimum, transformers = pytest.importorskip("optimum.onnxruntime"), pytest.importorskip("transformers")
    for kind, task, end in (
        ("bert", "classify", "SequenceClassification"),
        ("bert", "tag", "TokenClassification"),
        ("bert", "span", "QuestionAnswering"),
        ("bert", "fill", "MaskedLM"),
        ("transformer", "translate", "Seq2SeqLM"),
        ("t5", "restore", "Seq2SeqLM"),
    ):
        section = CLASSES if task in ("classify", "tag") else {}
        reads = end != "Seq2SeqLM"
        ours = trained_model(
            kind, task, train_tokens("wordpiece" if reads else "bpe", task), section, depth=1
        )
        export(ours, tmp_path / task, "onnx")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / task / "tokenizer.json")
        )
        options = {} if reads else {"use_cache": False}
        theirs = getattr(optimum, f"ORTModelFor{end}").from_pretrained(tmp_path / task, **options)
        inputs = tokenizer("A text.", return_tensors="pt", return_token_type_ids=reads)
        if reads:
            (y, *_) = theirs(**inputs).values()
            x = ours.model(inputs["input_ids"], inputs["attention_mask"].bool(), inputs["token_type_ids"])
            assert_close(y, x[..., 0] if task == "span" else x, atol=1e-5, rtol=1e-5)
        else:
            (ids,) = theirs.generate(**inputs, max_new_tokens=8, num_beams=1, do_sample=False)
            source = ours.model.begin(inputs["input_ids"], inputs["attention_mask"].bool())
            logits = ours.model.logits(ours.model.decode(ids[None, :-1], source))
            assert logits[0].argmax(-1).tolist() == ids[1:].tolist()


@torch.no_grad()
@pytest.mark.parametrize("attention", ["none", "dot"])
@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_encoders(cell: str, both_ways: bool, attention: str) -> None:
    """Several layers, for sources of unequal length."""
    built, config, _ = MODELS[cell]
    sizes = {"context": 19, "dim": 10, "depth": 3, "bidirectional": both_ways, "attention": attention}
    model = built(config(vocab=23, **sizes)).eval()
    for p in model.parameters():
        p.add_(0.2 * torch.randn_like(p))
    graph = encoder_graph(model)
    onnx.checker.check_model(graph, full_check=True)
    source, attention_mask = torch.randint(23, (4, 17)), padding_mask(4, 17)
    outputs = session(graph.SerializeToString()).run(
        None, {"input_ids": source.numpy(), "attention_mask": attention_mask.long().numpy()}
    )
    state = model.begin(source, attention_mask)
    for a, b in zip(outputs, (state.source, torch.cat(state.hidden)), strict=True):
        assert_close(torch.from_numpy(a), b, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained_model("bert", "classify", train_tokens("wordpiece", "classify"), CLASSES, depth=1)
    export(ours, tmp_path / "out", "onnx")
    graph = session(str(tmp_path / "out/model.onnx"))
    ids, attention_mask = torch.randint(ours.tokenizer.vocab, (3, 13)), padding_mask(3, 13)
    inputs = {"input_ids": ids, "attention_mask": attention_mask, "token_type_ids": torch.randint(2, (3, 13))}
    (logits,) = graph.run(None, {name: t.long().numpy() for name, t in inputs.items()})
    assert_close(torch.from_numpy(logits), ours.model(*inputs.values()), atol=1e-5, rtol=1e-5)
    result = run_readme(tmp_path / "out", monkeypatch)["result"]
    assert CLASSES["labels"][int(result[0].argmax())] == ours.ask("A text.")
    assert "good, bad, neither" in (tmp_path / "out/README.md").read_text()


def test_a_wrong_graph_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder's weights are in another order than the graph's."""
    ours = trained_model("gru", "translate", train_tokens("bpe", "translate"), {}, depth=1)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    user_error(lambda: export(ours, tmp_path / "out", "onnx"), 'pip install "regard[onnx]"')
    monkeypatch.undo()
    graphs = Seq2Seq.graphs
    monkeypatch.setattr(Seq2Seq, "graphs", lambda model: graphs(model)[:1])
    monkeypatch.setattr("regard.convert.onnx.export.onnx_card", lambda *_, **__: "")
    monkeypatch.setattr("regard.convert.onnx.recurrent.GATES", {"GRU": [0, 1, 2]})
    user_error(lambda: export(ours, tmp_path / "out", "onnx"), "from the model's own", "nothing was kept")
    with monkeypatch.context() as patch:  # as where the disk fails
        patch.setattr("regard.convert.onnx.export.write_graph", lambda path, *_: path.write_bytes(b"cut"))
        user_error(lambda: export(ours, tmp_path / "out", "onnx"), "onnxruntime can't load")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    monkeypatch.setattr(Seq2Seq, "graphs", lambda model: graphs(model)[:1])
    monkeypatch.setattr("regard.convert.onnx.export.onnx_card", lambda *_, **__: "")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "onnxruntime is missing" in export(ours, tmp_path / "out", "onnx")


class NoisyBlock(nn.Module):
    """A block of a new kind."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        before = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return x + torch.tanh(self.mix(before))


class RunningMean(GPT):
    """A new family, which needs no change in convert/: a GPT whose blocks average the previous tokens."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__(c)
        self.blocks = Stack(NoisyBlock(c.dim) for _ in range(c.depth))


class Bigram(nn.Module):
    """A new family that is not a GPT."""

    def __init__(self, c: GPTConfig) -> None:
        super().__init__()
        self.config, self.table = c, nn.Embedding(c.vocab, c.vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)

    def graphs(self) -> list[Graph]:
        return [Graph("model", self.forward, {"input_ids": ("batch", "length")})]


@torch.no_grad()
@pytest.mark.parametrize("family", [RunningMean, Bigram])
def test_a_new_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Any) -> None:
    monkeypatch.setitem(MODELS, "gpt", (family, GPTConfig, {}))
    ours = trained_model("gpt", "write", train_tokens("char", "write"), {}, depth=2)
    assert type(ours.model) is family
    assert "model's own" in export(ours, tmp_path / "out", "onnx")
    ids = torch.randint(ours.tokenizer.vocab, (3, 11))
    (logits,) = session(str(tmp_path / "out/model.onnx")).run(None, {"input_ids": ids.numpy()})
    assert_close(torch.from_numpy(logits), ours.model(ids), atol=1e-5, rtol=1e-5)
    user_error(lambda: export(ours, tmp_path / "hf", "hf"), family.__name__)


def test_a_model_that_declares_no_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained_model("gpt", "write", train_tokens("char", "write"), {}, depth=1)
    monkeypatch.delattr(GPT, "graphs")
    user_error(lambda: export(ours, tmp_path / "out", "onnx"), "GPT", "--to hf")
    assert not list(tmp_path.iterdir())


# The others: torch's exporter takes seconds for each

PICTURES = {"labels": ["cat", "dog"], "size": 12, "channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3}
SIZES = {"size": 12, "channels": 3}
PICTURE_SIZES = SIZES | {"patch": 4}
SOUNDS = {"labels": ["yes", "no"], "seconds": 0.24, "mels": 5, "mean": [0.5], "std": [0.2]}
HEARD = {"size": 24, "channels": 1, "mels": 5, "patch": 4}
OTHER_CASES: list[tuple[str, str, str | None, dict[str, Any], dict[str, Any]]] = [
    *(("gpt", "write", "char", {}, {"positions": p}) for p in ("none", "sinusoidal", "alibi", "relative")),
    ("gpt", "write", "char", {}, {"positions": "learned", "norm": "layer", "ffn": "gelu_tanh", "bias": True}),
    ("gpt", "write", "char", {}, {"sliding_window": 3, "qk_norm": True, "head_dim": 6, "tied": False}),
    ("gpt", "classify", "wordpiece", CLASSES, {}),
    ("transformer", "translate", "bpe", {}, {}),
    ("transformer", "chat", "bpe", {}, {"positions": "rotary", "norm": "rms", "ffn": "swiglu"}),
    ("t5", "restore", "bpe", {}, {}),
    ("rnn", "translate", "bpe", {}, {"attention": "none"}),
    ("lstm", "translate", "bpe", {}, {"attention": "general"}),
    ("bert", "fill", "wordpiece", {}, {}),
    ("bert", "fill", "wordpiece", {"replaced": True}, {"segments": 0}),
    ("bert", "fill", "wordpiece", {}, {"window": 2, "positions": "rotary"}),
    ("bert", "tag", "wordpiece", CLASSES, {"pre": True}),
    ("bert", "span", "wordpiece", {}, {"norm": "rms", "ffn": "swiglu"}),
    *(("bert", "embed", "wordpiece", {"pooling": p}, {}) for p in ("mean", "first")),
    ("bert", "classify", "wordpiece", CLASSES | {"mean": True}, {}),
    *(("vit", "see", None, PICTURES, {**PICTURE_SIZES, "pool": p}) for p in ("first", "mean")),
    *(("vit", "hear", None, SOUNDS, {**HEARD, "pool": p}) for p in ("first", "mean")),
    *(
        ("captioner", "caption", "wordpiece", SIZES, SIZES | {"decoder": d, "encoder": e})
        for d, e in (("lstm", "cnn"), ("transformer", "vit"))
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "task", "tokenizer_kind", "section", "sizes"), OTHER_CASES, ids=str)
def test_other_models(
    tmp_path: Path,
    kind: str,
    task: str,
    tokenizer_kind: str | None,
    section: dict[str, Any],
    sizes: dict[str, Any],
) -> None:
    """The export checks inputs of two sizes; this test has a smaller tolerance."""
    ours: Model = trained_model(
        kind, task, tokenizer_kind and train_tokens(tokenizer_kind, task), section, depth=1, **sizes
    )
    said = export(ours, tmp_path / "out", "onnx")
    assert float(said.split()[-1]) < 1e-5


@pytest.mark.slow
def test_spectrograms_are_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's example gives what the model says of a shorter recording alone."""
    ours = trained_model("vit", "hear", None, SOUNDS, depth=2, **HEARD)
    assert "model's own" in export(ours, tmp_path / "out", "onnx")
    x = torch.randint(1, 256, (1, 5, 16), dtype=torch.uint8)
    result = run_readme(tmp_path / "out", monkeypatch, spectrogram=x.numpy())["result"]
    (best,) = ours.task.answers(ours.model, Request([x]))
    assert torch.from_numpy(result).softmax(-1).max().item() == pytest.approx(best[0].score, abs=1e-5)
