"""`regard bench`: what it prints, and that both libraries do the same work."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from regard import bench
from regard.cli import main


def test_it_measures_and_ends_with_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["bench", "--size", "pico", "--seconds", "0.02"])
    assert status.value.code == 0
    *lines, last = capsys.readouterr().out.splitlines()
    measured = json.loads(last)["tokens_per_second"]
    assert set(measured) == {"learning", "writing, 1 at once", "writing, 16 at once"}
    for job, rates in measured.items():
        assert list(rates) == ["regard", "transformers"]
        assert all(rate > 0 for rate in rates.values())
        assert any(line.startswith(job) and " x transformers" in line for line in lines)


def test_without_the_other_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rates = bench.bench("pico", 0.01)
    assert all(list(by_library) == ["regard"] for by_library in rates.values())
    assert "pip install transformers" in capsys.readouterr().err


def test_both_have_the_same_size() -> None:
    device = torch.device("cpu")
    vocab, _, shape = bench.model_sizes("pico")
    ours = bench.GPT(bench.GPTConfig(vocab=vocab, **shape))
    assert sum(p.numel() for p in ours.parameters()) == bench.peer_model("pico", device).num_parameters()


def test_both_count_the_same_tokens(tmp_path: Path) -> None:
    device = torch.device("cpu")
    assert bench.generate_job("pico", device, 3)() == bench.peer_generate_job("pico", device, 3)() == 3 * 8
    trainer = bench.make_trainer("pico", device, tmp_path)
    assert bench.train_job(trainer)() == bench.peer_train_job("pico", device)() == 3 * 32
