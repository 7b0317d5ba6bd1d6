"""What the scripts in bench/ make of their figures; what they measure is run by hand, on a GPU."""

import argparse
import io
import json
from pathlib import Path

import pytest
import torch
from bench.rows import ROWS
from bench.rows.document import DOCUMENT, fill

from bench import cluster, gpu, precisions, scaling
from regard.bench.measure import Options

RESULT = {
    "row": "gpt2",
    "unit": "tokens",
    "results": {
        "regard AdamW": {"rate": 600e3, "GiB": 11.5, "flops_share": 0.61, "start_s": 38.7},
        "nanoGPT": {"rate": 500e3, "GiB": 21.2},
    },
    "failed": {"regard Muon": "RuntimeError: a | b"},
}


def test_a_table_has_a_line_for_each_contender() -> None:
    steps = {"row": "shakespeare", "unit": "steps", "results": {"regard": {"rate": 250.0}}, "failed": {}}
    lines = gpu.markdown([RESULT, {"row": "bert", "error": "took too long"}, steps]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    ours, theirs, failed, late, short = lines[2:]
    assert "600,000 tokens/s | 1.20 x | 11.5 GiB | 61%" in ours
    assert "ready after 39 s" in ours
    assert "500,000 tokens/s |  | 21.2 GiB" in theirs
    assert "failed: RuntimeError: a / b" in failed
    assert "bert" in late
    assert "took too long" in late
    assert "4.00 ms a step" in short


def test_every_row_and_plot_has_its_place_in_the_document() -> None:
    text = DOCUMENT.read_text()
    for name in ROWS:
        assert f"`{name}`" in text, name
    names = ["speeds", *(f"scaling {name}" for name in scaling.plots(scaling.CPU, torch.device("cpu")))]
    for name in names:
        changed = fill(text, name, "1 | 2")
        assert changed != text
        assert fill(changed, name, "3") == fill(text, name, "3")


def test_figures_by_precision(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 5)
    run = Path(__file__).parents[1] / "runs" / "fixtures" / "write"
    figures = {"file": 1.25} | precisions.figures(str(run), str(tmp_path / "a.txt"))
    assert figures["memory"] >= 0
    assert figures["perplexity"] > 1
    header, _, *lines = precisions.table({"gpt": dict.fromkeys(precisions.PRECISIONS, figures)}).splitlines()
    assert {line.count("|") for line in lines} == {header.count("|")}
    assert [line.split("|")[2].strip() for line in lines] == ["file, MiB", "memory, MiB", "perplexity"]
    assert lines[0].count("| 1.2 ") == 4


@pytest.mark.usefixtures("quick")
def test_a_step_is_timed_beside_its_plan(tmp_path: Path) -> None:
    o = argparse.Namespace(dim=64, depth=1, batch=2, time=True)
    measured = cluster.time_steps("ddp", o, tmp_path)  # of one process
    assert min(measured.values()) > 0
    plans = [cluster.planned_step("fsdp", n, o, measured["peak"]) for n in (1, 4)]
    assert 0 < plans[0] != plans[1] > 0


def test_a_row_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(torch.device("cpu"), repeat=1, seconds=0.001, small=True, scratch=tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    result = json.loads(json.dumps(gpu.run_row("write-1", options)))
    assert not result["failed"]
    assert len(result["results"]) == 2
    assert all(each["rate"] > 0 for each in result["results"].values())


def test_a_process_that_fails_is_a_line_of_the_table(tmp_path: Path) -> None:
    o = argparse.Namespace(out=tmp_path, limit=60.0)
    (result,) = gpu.run_group(["beam"], ["--small", "--repeat=1", f"--data={tmp_path}"], o)
    assert result["row"] == "beam"
    assert "train.en.gz" in result["error"]


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "sh"
    script.write_text("#!/bin/sh\nexec sleep 100\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    (result,) = gpu.run_group(["beam"], [], argparse.Namespace(out=tmp_path, limit=0.1))
    assert result == {"row": "beam", "error": "took too long"}


def test_a_curve_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(value: int):  # type: ignore[no-untyped-def]
        if value > 4:
            raise torch.OutOfMemoryError
        return lambda: 2.0**30 * value

    points = scaling.sweep([1, 2, 4, 8, 16], build, torch.device("cpu"), 0.0)
    assert {value: point["GiB"] for value, point in points.items()} == {1: 1.0, 2: 2.0, 4: 4.0}
    assert "2 GiB" in scaling.table("texts", {"training": points})
    assert "by batch" in scaling.draw("batch", "texts", {"training": points})


def test_memory_is_what_autograd_keeps() -> None:
    """Twice the text, nearly twice the memory without that of the weights; time is not tested."""
    s = scaling.CPU
    model = scaling.make_gpt(s, torch.device("cpu"), context=128)
    weights = 4 * sum(p.nbytes for p in model.parameters())
    short, long = (scaling.train_step(model, 2, n)() - weights for n in (64, 128))
    assert 1.6 < long / short < 2.2
