"""What a run's folder tells: its state, its best evaluation, and where runs are."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.errors import user_error
from regard.files.locks import is_locked, lock_folder
from regard.runs.compare import compare_figures, differing_settings, loss_curves
from regard.runs.summary import best_evaluation, find_runs, list_runs, read_run

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "classify", tmp_path / "mine"))


def change_recipe(run: Path, old: str, new: str) -> None:
    path = run / "recipe.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_finished_run(run: Path) -> None:
    summary = read_run(run)
    assert (summary.state, summary.problem) == ("finished", None)
    assert (summary.task, summary.kind, summary.step) == ("classify", "bert", 2)
    assert (summary.metric, summary.figure) == ("accuracy", 0.5)
    assert summary.files == ["BUILTIN/classify.tsv"]
    row = json.loads(json.dumps(summary.to_json()))
    assert row["best"] == {"step": 2, "loss": pytest.approx(0.693, abs=1e-3), "accuracy": 0.5}


def test_a_stopped_run_and_the_ways_to_finish(run: Path) -> None:
    change_recipe(run, "steps = 2\n", "steps = 3\n")
    assert read_run(run).state == "stopped"
    change_recipe(run, "steps = 3\n", "minutes = 0.0001\n")
    assert read_run(run).state == "finished"
    change_recipe(run, "minutes = 0.0001\n", "steps = 90\npatience = 2\n")
    with (run / "log.jsonl").open("a") as log:
        for step in (4, 6):
            assert read_run(run).state == "stopped"
            log.write(json.dumps({"step": step, "valid_loss": 9.0, "valid_accuracy": 0.4}) + "\n")
            log.flush()
    assert read_run(run).state == "finished"


def test_a_run_that_is_training(run: Path) -> None:
    assert not is_locked(run)
    with lock_folder(run, "--out"):
        assert is_locked(run)
        assert read_run(run).state == "training"
    assert read_run(run).state == "finished"
    (run / ".regard.lock").write_text("pid 999999999 on elsewhere, since 2026-01-01 00:00:00\n")  # killed
    assert read_run(run).state == "finished"


@pytest.mark.parametrize("name", ["recipe.toml", "config.json", "model.safetensors"])
def test_a_broken_run(run: Path, name: str) -> None:
    (run / name).write_bytes(b"\0")
    summary = read_run(run)
    assert summary.state == "broken"
    assert str(run / name) in str(summary.problem)


def test_a_run_without_weights(run: Path) -> None:
    (run / "model.safetensors").unlink()
    assert read_run(run).state == "finished"  # its checkpoint is there
    shutil.rmtree(run / "checkpoints")
    assert read_run(run).state == "broken"


def test_marks_decide_what_is_best() -> None:
    rows = [
        {"step": 1, "valid_loss": 1.0, "valid_matthews": 0.5, "best": "matthews"},
        {"step": 2, "valid_loss": 0.5, "valid_matthews": 0.4},
    ]
    assert best_evaluation(rows) == ("matthews", rows[0])
    without = [{"step": 1, "valid_loss": 2.0}, {"step": 2, "valid_loss": 1.0}, {"step": 3, "valid_loss": 3.0}]
    assert best_evaluation(without) == ("loss", without[1])
    assert best_evaluation([]) == ("loss", None)


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for place in ("b", "deep/er/a", ".hidden"):
        shutil.copytree(FIXTURES / "write", tmp_path / place)
    (tmp_path / "empty").mkdir()
    assert [str(p.relative_to(tmp_path)) for p in find_runs(tmp_path)] == ["b", "deep/er/a"]
    assert len(list_runs([str(tmp_path), str(tmp_path / "b")])) == 2
    user_error(lambda: list_runs([str(tmp_path / "nowhere")]), "nowhere")


def test_comparison(run: Path) -> None:
    other = Path(shutil.copytree(run, run.with_name("other")))
    change_recipe(other, "lr = 0.0005", "lr = 0.25")
    change_recipe(other, "seed = 7\n", "")
    runs = [read_run(run), read_run(other)]
    assert differing_settings(runs) == {"train.lr": [0.0005, 0.25], "train.seed": [7, None]}
    assert compare_figures(runs)["valid_accuracy"] == [0.5, 0.5]
    title, curves = loss_curves(runs)
    assert title == "validation loss"
    assert [len(steps) for steps, _ in curves.values()] == [1, 1]
    lines = [line for line in (run / "log.jsonl").read_text().splitlines() if "valid" not in line]
    (run / "log.jsonl").write_text("\n".join(lines))
    title, curves = loss_curves(runs)
    assert title == "loss"
    assert curves["mine"][0] == [1, 2]
