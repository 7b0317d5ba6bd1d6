"""Exports go by what a model declares, not by its class."""

from pathlib import Path

import pytest
from torch import nn

from helpers.exports import train_tokens, trained_model
from regard.files.tensors import read_tensors
from regard.runs.export import export


class OtherHead(nn.Module):
    """A head like ModelWithHead's, in a class that exports have never seen."""

    has_task_head = True

    def __init__(self, model: nn.Module, head: nn.Module, mean: bool):
        super().__init__()
        self.model, self.head, self.mean = model, head, mean


@pytest.mark.parametrize("mean", [False, True])
def test_a_head_is_what_a_model_declares(tmp_path: Path, mean: bool) -> None:
    model = trained_model("bert", "classify", train_tokens("word", "classify"), {"labels": ["a", "b"]})
    export(model, tmp_path / "own")
    model.model = OtherHead(model.model.model, model.model.head, mean)
    export(model, tmp_path / "other")
    if mean:
        assert read_tensors(tmp_path / "other/2_Dense/model.safetensors")["linear.weight"].shape == (2, 40)
        return
    own, other = (read_tensors(tmp_path / name / "model.safetensors") for name in ("own", "other"))
    assert own.keys() == other.keys()
    assert all(own[name].equal(other[name]) for name in own)
    assert "classifier.weight" in own
