import importlib.util
import json

import pytest
import torch

from regard import bench
from regard.cli import main


def test_it_measures_and_ends_with_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["bench", "--size", "pico", "--seconds", "0.02"])
    assert status.value.code == 0
    *told, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)["tokens_per_second"]
    assert set(found) == {"learning", "writing, 1 at once", "writing, 16 at once"}
    for job, rates in found.items():
        assert list(rates) == ["regard", "transformers"]
        assert all(rate > 0 for rate in rates.values())
        assert any(line.startswith(job) and " x transformers" in line for line in told)


def test_without_the_other_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rates = bench.bench("pico", 0.01)
    assert all(list(found) == ["regard"] for found in rates.values())
    assert "pip install transformers" in capsys.readouterr().err


def test_both_have_the_same_size() -> None:
    device = torch.device("cpu")
    vocab, _, shape = bench.sizes("pico")
    ours = bench.GPT(bench.GPTConfig(vocab=vocab, **shape))
    assert sum(p.numel() for p in ours.parameters()) == bench.theirs("pico", device).num_parameters()


def test_both_write_as_much() -> None:
    device = torch.device("cpu")
    assert bench.writing("pico", device, 3)() == bench.their_writing("pico", device, 3)() == 3 * 8
    assert bench.their_learning("pico", device)() == 3 * 32
