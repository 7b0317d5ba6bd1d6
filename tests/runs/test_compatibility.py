"""Run folders written by an earlier version load, answer and resume as they did then.

`fixtures/` holds small runs, stopped after two steps, and what that version went on to compute.
The results are the same bit for bit wherever a matrix product and an exponential round as they did there.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.files.tensors import digest, read_tensors

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
RUNS: dict[str, dict[str, Any]] = EXPECTED["runs"]
BUILTIN = Path(regard.__file__).parent / "builtin"


def rounds_alike() -> bool:
    """Return whether this machine rounds like the one that wrote the fixtures."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(37, 53, generator=g), torch.randn(53, 29, generator=g)
    y = torch.softmax(torch.nn.functional.layer_norm(torch.tanh(a @ b), (29,)), -1).exp()
    return hashlib.sha256(y.numpy().tobytes()).hexdigest() == EXPECTED["probe"]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / request.param
    shutil.copytree(FIXTURES / request.param, copy)
    recipe = copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("BUILTIN", str(BUILTIN)))
    return copy


@pytest.mark.parametrize("folder", RUNS, indirect=True)
def test_an_old_run_loads_and_answers(folder: Path) -> None:
    want = RUNS[folder.name]
    assert digest(read_tensors(folder / "model.safetensors")) == want["loaded"]
    model = regard.load(folder, device="cpu")
    assert digest(dict(model.model.state_dict())) == want["loaded"]
    if "ask" in want and rounds_alike():
        assert model.ask(want["ask"], **want["options"]) == want["answer"]


@pytest.mark.parametrize("folder", RUNS, indirect=True)
def test_an_old_run_resumes_bit_for_bit(folder: Path) -> None:
    want = RUNS[folder.name]
    task = json.loads((folder / "config.json").read_text())["task"]["name"]
    regard.train(task, out=folder, steps=4, resume=True)
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "lr" in row]
    assert losses == pytest.approx(want["losses"], rel=1e-4)
    if rounds_alike():
        assert losses == want["losses"]
        weights = read_tensors(folder / "checkpoints" / "step-4" / "model.safetensors")
        assert digest(weights) == want["resumed"]
