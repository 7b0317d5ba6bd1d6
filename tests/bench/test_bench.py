"""`regard bench`: what it prints and draws, and that all libraries do the same work."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from helpers.errors import user_error
from regard import bench
from regard.bench import jobs, peers
from regard.bench.measure import Options, Row, measure
from regard.cli import main
from regard.models import GPT, GPTConfig


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(torch.device("cpu"), repeat=2, seconds=0.001, small=True, scratch=tmp_path)


def test_it_measures_and_ends_with_one_json_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    with pytest.raises(SystemExit) as status:
        main(["bench", "learning", "writing", "--size", "pico", "--seconds", "0.02", "--save", str(picture)])
    assert status.value.code == 0
    *lines, last = capsys.readouterr().out.splitlines()
    measured = json.loads(last)["tokens_per_second"]
    assert set(measured) == {"learning", "writing, 1 at once", "writing, 16 at once"}
    for job, rates in measured.items():
        assert list(rates) == ["regard", "transformers"]
        assert all(rate > 0 for rate in rates.values())
        assert any(line.startswith(job) and " x transformers" in line for line in lines)
    more = json.loads(last)["measured"]
    assert 0 < more["learning"]["results"]["regard"]["flops_share"] < 1
    assert 0 < more["writing, 1 at once"]["results"]["regard"]["bandwidth_share"] < 1
    assert sum("ready after" in line for line in lines) == len(measured)  # with compiling, apart
    assert "writing, 16 at once" in picture.read_text()


def test_without_the_other_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rates = bench.bench("pico", 0.01, ["writing"])
    assert all(list(by_library) == ["regard"] for by_library in rates.values())
    assert "pip install transformers" in capsys.readouterr().err


def test_rows_and_folders_that_are_not_there_are_named(tmp_path: Path) -> None:
    user_error(lambda: bench.bench("pico", 0.01, ["dancing"]), "dancing", "training, see")
    user_error(lambda: bench.bench("pico", 0.01, nanogpt=str(tmp_path)), tmp_path, "model.py")


def test_every_family_is_trained() -> None:
    from regard.runs import recipe

    kinds = {recipe.read(name)["model"]["kind"] for name in jobs.FAMILIES} | {"gpt"}
    assert kinds == {recipe.read(name)["model"]["kind"] for name in recipe.names()}


def test_a_family_is_counted_in_its_own_unit(options: Options) -> None:
    row = jobs.learning_family("see", "pico", options)
    assert row.unit == "images"
    result = measure(row, options)
    assert not result["failed"]
    assert list(result["results"]) == ["regard", "transformers"]
    assert all(each["rate"] > 0 for each in result["results"].values())


@pytest.mark.slow
def test_all_rows() -> None:
    rates = bench.bench("pico", 0.01)
    assert {name.split(",")[0] for name in rates} == {"learning", "writing", "beams", "serving", "training"}
    assert all(rate > 0 for by_library in rates.values() for rate in by_library.values())


def test_a_contender_that_fails_does_not_stop_the_others(options: Options) -> None:
    def broken() -> None:
        raise RuntimeError("no such kernel\nmore")

    row = Row("tokens", {"peer": broken, "regard": lambda: lambda: {"count": 3.0, "seconds": 2.0, "ms": 7.0}})  # type: ignore[dict-item]
    reports: list[int] = []
    result = measure(row, options, lambda: reports.append(1))
    assert result["failed"] == {"peer": "RuntimeError: no such kernel"}
    assert reports == [1]
    assert result["results"]["regard"]["rates"] == [1.5, 1.5]
    assert result["results"]["regard"]["ms"] == 7.0


def test_both_have_the_same_size(options: Options) -> None:
    vocab, _, shape = jobs.model_sizes("pico")
    ours = GPT(GPTConfig(vocab=vocab, **shape))
    assert sum(p.numel() for p in ours.parameters()) == peers.hf_gpt2(shape, vocab, options).num_parameters()


def test_both_count_the_same_tokens(options: Options) -> None:
    options.seconds = 0.0
    writing = jobs.writing("pico", 3, options).contenders
    assert [build()()["count"] for build in writing.values()] == [3 * 8, 3 * 8]
    learning = jobs.learning("pico", options).contenders
    assert [build()()["count"] for build in learning.values()] == [3 * 32, 3 * 32]
