"""`info` tells the same as the loaded model, without loading it."""

import subprocess
import sys
from pathlib import Path

import pytest

import regard
from helpers.errors import user_error
from regard.runs.info import info

FIXTURES = Path(__file__).parent / "fixtures"
RUNS = sorted(path for path in FIXTURES.iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_facts_are_those_of_the_model(folder: Path) -> None:
    model, facts = regard.load(folder, "cpu"), info(folder)
    assert facts["parameters"] == sum(p.numel() for p in model.model.parameters())
    assert (facts["kind"], facts["task"]) == (model.kind, model.task.config.name)
    assert facts.get("context", model.task.context) == model.task.context  # of images, the patches
    assert facts["precision"] == "float32"
    assert facts["bytes"] == (folder / "model.safetensors").stat().st_size
    if model.tokenizers and model.tokenizers[0] is not None:
        assert facts["vocabulary"] == model.tokenizers[0].vocab
    assert facts["checkpoints"] == [2]


def test_checkpoint() -> None:
    facts = info(FIXTURES / "classify" / "checkpoints" / "step-2")
    assert (facts["format"], facts["step"], facts["kind"]) == ("checkpoint", 2, "bert")
    assert facts["classes"] == ["negative", "positive"]
    assert facts["scores"]["accuracy"] == 0.5


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, regard\n"
        f"print(regard.info({str(FIXTURES / 'chat')!r})['kind'])\n"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "transformer\n[]\n"


def test_not_a_model(tmp_path: Path) -> None:
    user_error(lambda: info(tmp_path / "nowhere"), "no such model", "nowhere")
    user_error(lambda: info(tmp_path), str(tmp_path), "config.json")
    (tmp_path / "a.zip").write_bytes(b"PK")
    user_error(lambda: info(tmp_path / "a.zip"), "a.zip")


def test_word_vectors(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("2 3\na 1 2 3\nb 4 5 6\n")
    assert (info(path)["vocabulary"], info(path)["sizes"]) == (2, {"dim": 3})
    path.write_text("a 1 2 3\nb 4 5 6\n")
    assert info(path)["sizes"] == {"dim": 3}
