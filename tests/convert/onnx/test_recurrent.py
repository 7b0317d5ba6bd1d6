"""ONNX graphs of recurrent language models, classifiers and taggers: onnxruntime agrees."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.exports import train_tokens, trained_model
from regard.runs.export import export

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
CLASSES = {"labels": ["good", "bad", "neither"]}


def session(path: Path) -> Any:
    onnx.checker.check_model(str(path), full_check=True)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options)


@torch.no_grad()
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_text_is_continued_token_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    ours = trained_model("recurrent", "write", train_tokens("char", "write"), {}, cell=cell, depth=2)
    assert "model's own" in export(ours, tmp_path / "out", "onnx")
    graph, context = session(tmp_path / "out/model.onnx"), 11
    ids = ours.tokenizer.encode("The cat")
    layers, _, dim = graph.get_inputs()[1].shape
    state, new = torch.zeros(layers, 1, dim).numpy(), ids
    for _ in range(context):
        logits, state = graph.run(None, {"input_ids": torch.tensor([new]).numpy(), "state": state})
        new = [int(logits[0, -1].argmax())]
        ids = ids + new
    expected = ours.ask("The cat", temperature=0.0, max_new_tokens=context)
    assert ours.tokenizer.decode(ids).startswith("The cat" + expected)
    code = (tmp_path / "out/README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path / "out")
    exec(code, values := dict[str, Any]())
    text = torch.tensor([ours.tokenizer.encode("A text.")])
    assert_close(torch.from_numpy(values["result"]), ours.model(text), atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("task", "section", "settings"),
    [
        ("classify", CLASSES, {"cell": "gru", "bidirectional": True, "depth": 2}),
        ("classify", CLASSES, {"cell": "rnn"}),
        ("classify", CLASSES | {"mean": True}, {"cell": "lstm", "bidirectional": True}),
        ("tag", CLASSES, {"cell": "lstm", "depth": 2, "bidirectional": True}),
    ],
    ids=["last-states", "last-state", "mean", "each"],
)
def test_texts_of_unequal_length_are_classified(
    tmp_path: Path, task: str, section: dict[str, Any], settings: dict[str, Any]
) -> None:
    ours = trained_model("recurrent", task, train_tokens("wordpiece", task), section, **settings)
    said = export(ours, tmp_path / "out", "onnx")
    assert float(said.split()[-1]) < 1e-5
    ids, mask = (
        torch.randint(ours.tokenizer.vocab, (3, 13)),
        torch.arange(13) < torch.tensor([[13], [7], [1]]),
    )
    inputs = {"input_ids": ids.numpy(), "attention_mask": mask.long().numpy()}
    (logits,) = session(tmp_path / "out/model.onnx").run(None, inputs)
    assert_close(torch.from_numpy(logits), ours.model(ids, mask), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_words_are_predicted_by_an_elmo(tmp_path: Path) -> None:
    ours = trained_model("elmo", "fill", train_tokens("wordpiece", "fill"), {})
    export(ours, tmp_path / "out", "onnx")
    graph = session(tmp_path / "out/model.onnx")
    for T in (13, 4):
        ids = torch.randint(ours.tokenizer.vocab, (3, T))
        (logits,) = graph.run(None, {"input_ids": ids.numpy()})
        assert_close(torch.from_numpy(logits), ours.model(ids), atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("task", "section"),
    [
        ("classify", CLASSES),
        ("classify", CLASSES | {"mean": True}),
        ("tag", CLASSES),
        ("span", {}),
        ("embed", {"pooling": "mean"}),
        ("embed", {"pooling": "first", "normalize": False}),
    ],
)
def test_an_elmos_vectors_of_unequal_texts(tmp_path: Path, task: str, section: dict[str, Any]) -> None:
    ours = trained_model("elmo", task, train_tokens("wordpiece", task), section)
    ours.model.get_parameter("mix.w" if task == "embed" else "model.mix.w").copy_(torch.tensor([0.3, -1.0]))
    said = export(ours, tmp_path / "out", "onnx")
    assert float(said.split()[-1]) < 1e-5
    ids = torch.randint(ours.tokenizer.vocab, (3, 13))
    mask = torch.arange(13) < torch.tensor([[13], [7], [1]])
    (out,) = session(tmp_path / "out/model.onnx").run(
        None, {"input_ids": ids.numpy(), "attention_mask": mask.long().numpy()}
    )
    want = ours.model(ids, mask) if task != "embed" else ours.task.pool(ours.model, ids, mask)
    if task == "embed" and ours.task.config.normalize:
        want = F.normalize(want, dim=1)
    assert_close(torch.from_numpy(out), want, atol=1e-5, rtol=1e-5)
