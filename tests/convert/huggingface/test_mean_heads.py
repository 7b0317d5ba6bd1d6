"""Classifiers that read the mean of all tokens, as the plan trains them: a folder of sentence-transformers,
whose last module is the head."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.exports import train_tokens, trained_model
from helpers.folders import TEXT
from regard.files.tensors import read_tensors
from regard.runs.export import export
from regard.runs.info import describe_huggingface
from regard.runs.load import load
from regard.runs.model import Model

LABELS = ["good", "bad", "so-so"]


def classifier(kind: str = "wordpiece", **sizes: Any) -> Model:
    section = {"labels": LABELS, "mean": True}
    return trained_model("bert", "classify", train_tokens(kind, "classify"), section, depth=2, **sizes)


@torch.no_grad()
@pytest.mark.parametrize(
    ("tokens", "sizes", "their_class"),
    [
        ("wordpiece", {"pre": True}, hf.MegatronBertModel),
        ("wordpiece", {}, hf.BertModel),
        ("bpe", {"segments": 0}, hf.RobertaModel),
        ("wordpiece", {"pooler": "gelu"}, hf.ElectraModel),
        ("wordpiece", {"pooler": "relu", "segments": 0}, hf.DistilBertModel),
    ],
    ids=["pre", "post", "roberta", "electra", "distilbert"],
)
def test_there_and_back(tmp_path: Path, tokens: str, sizes: dict[str, Any], their_class: type[Any]) -> None:
    """Encoder, mean and dense layer give our logits, of padded texts, too; and Regard loads the folder."""
    ours, out = classifier(tokens, **sizes), tmp_path / "out"
    export(ours, out)
    modules = [module["type"].rpartition(".")[2] for module in json.loads((out / "modules.json").read_text())]
    assert modules == ["Transformer", "Pooling", "Dense"]
    assert json.loads((out / "1_Pooling/config.json").read_text())["pooling_mode_mean_tokens"]
    theirs, loading = hf.AutoModel.from_pretrained(out, output_loading_info=True)
    assert isinstance(theirs, their_class)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.id2label == dict(enumerate(LABELS))
    batch = hf.AutoTokenizer.from_pretrained(out)(TEXT[:3], return_tensors="pt", padding=True)
    mask = batch["attention_mask"]
    assert not mask.all()
    x = theirs.eval()(**batch).last_hidden_state
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    dense = read_tensors(out / "2_Dense/model.safetensors")
    logits = mean @ dense["linear.weight"].T + dense["linear.bias"]
    y = ours.model(batch["input_ids"], mask.bool(), batch.get("token_type_ids"))
    assert y.std() > 0.1
    assert_close(y, logits, atol=1e-5, rtol=1e-5)
    again = load(out, "cpu")
    assert again.task.config.mean
    assert again.task.config.labels == tuple(LABELS)
    assert again.answers(TEXT[0]) == ours.answers(TEXT[0])
    assert describe_huggingface(out)["task"] == "classify"


def test_other_dense_layers_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(classifier(), out)
    dense, pooling = out / "2_Dense/config.json", out / "1_Pooling/config.json"
    assert "SentenceTransformer" in (out / "README.md").read_text()
    text = dense.read_text()
    dense.write_text(text.replace("Identity", "Tanh"))
    user_error(lambda: load(out, "cpu"), dense, "Identity")
    dense.write_text(text)
    pooling.write_text('{"pooling_mode": "cls"}')
    user_error(lambda: load(out, "cpu"), dense, "mean")
