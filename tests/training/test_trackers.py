"""Trackers get the rows of log.jsonl, and go on where a run was stopped; wandb and trackio by stubs."""

import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.commands import PICO, call, check_refused, train_model
from helpers.errors import user_error
from helpers.runs import write_text
from regard.runs import recipe
from regard.training.config import TrainConfig
from regard.training.log import Log

ROWS = [
    {"step": 1, "loss": 2.5},
    {"step": 2, "loss": 2.25},
    {"step": 2, "valid_loss": 2.0, "best": "loss"},
    {"step": 4},
]
WANDB = """
from pathlib import Path
class Error(Exception): pass
class Settings:
    def __init__(self, console): pass
class Run:
    def __init__(self, **options): self.options, self.logged = options, []
    def log(self, numbers, step): self.logged.append((step, numbers))
    def finish(self): RUNS.append(self)
RUNS = []
def init(**options):
    if options["name"] == "refused":
        raise Error("no API key\\nmore")
    print("hello")
    (Path(options["dir"]) / "wandb" / "offline-run-20260101_000000-abc123").mkdir(parents=True, exist_ok=True)
    return Run(**options)
"""
TRACKIO = """
class Run:
    def __init__(self, project, **options): self.options, self.logged = options, []
    def log(self, numbers, step): self.logged.append((step, numbers))
RUNS = []
def finish(): print("bye")
def init(project, **options):
    print("hello")
    RUNS.append(Run(project, **options))
    return RUNS[-1]
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "recipe.toml").write_text("[train]\nlr = 0.5\n")
    return folder


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a module that can be imported."""

    def make(name: str, code: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / "stubs").mkdir(exist_ok=True)
        (tmp_path / "stubs" / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path / "stubs")

    yield make
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "code"), [("wandb", WANDB), ("trackio", TRACKIO)])
def test_rows_arrive(run: Path, stub: Any, capsys: pytest.CaptureFixture[str], name: str, code: str) -> None:
    stub(name, code)
    with Log(run / "log.jsonl", 0, name) as log:  # type: ignore[arg-type]
        log.begin()
        for row in ROWS:
            log.add(row)
    with Log(run / "log.jsonl", 2, name) as log:  # type: ignore[arg-type]
        log.begin()
        log.add({"step": 3, "loss": 1.5, "notice": "no number"})
    first, second = sys.modules[name].RUNS
    assert first.logged == [(1, {"loss": 2.5}), (2, {"loss": 2.25}), (2, {"valid_loss": 2.0}), (4, {})]
    assert second.logged == [(3, {"loss": 1.5})]
    assert first.options["name"] == "mine"
    assert first.options["config"]["train"] == {"lr": 0.5}
    if name == "wandb":
        assert (first.options["id"], second.options["id"]) == (None, "abc123")
    else:
        assert (first.options["resume"], second.options["resume"]) == ("never", "allow")
    assert capsys.readouterr().out == ""  # standard output is for results


def test_what_wandb_refuses(tmp_path: Path, stub: Any) -> None:
    stub("wandb", WANDB)
    folder = tmp_path / "refused"
    folder.mkdir()
    (folder / "recipe.toml").write_text("")
    user_error(lambda: Log(folder / "log.jsonl", 0, "wandb").begin(), "no API key", "WANDB_MODE=offline")


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    user_error(lambda: Log(tmp_path / "log.jsonl", 0, "trackio"), "pip install 'regard[trackio]'")


def test_the_option(tmp_path: Path, stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path / "text.txt")
    words = ["train", "write", text, "--out", tmp_path / "run", "--steps", 2, *PICO]
    check_refused(capsys, tmp_path, [*words, "--log", "trackio"], "pip install 'regard[trackio]'")
    check_refused(capsys, tmp_path, [*words, "--log", "mlflow"], "mlflow")
    stub("trackio", TRACKIO)
    train_model(tmp_path / "run", "write", text, "--steps", 2, *PICO, "--log", "trackio")
    (tracked,) = sys.modules["trackio"].RUNS
    assert [step for step, numbers in tracked.logged if "loss" in numbers] == [1, 2]
    assert recipe.read_file(tmp_path / "run" / "recipe.toml")["train"]["tracker"] == "trackio"
    assert call(*words[:5], "--resume", "--steps", 3, "--set", "train.tensorboard=false") == 0
    assert recipe.read_file(tmp_path / "run" / "recipe.toml")["train"]["tracker"] == "none"


@pytest.mark.parametrize(("value", "tracker"), [(True, "tensorboard"), (False, "none")])
def test_the_former_setting(value: bool, tracker: str) -> None:
    config = recipe.fill("train", {"steps": 1, "tensorboard": value}, TrainConfig)
    assert config.tracker == tracker
    assert (
        recipe.fill("train", {"steps": 1, "tensorboard": value, "tracker": "wandb"}, TrainConfig).tracker
        == "wandb"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own
def test_tensorboard_has_the_same(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = tmp_path / "log.jsonl"
    path.touch()
    with Log(path, 0, "tensorboard") as log:
        log.begin()
        for row in ROWS:
            log.add(row)
    with Log(path, 2, "tensorboard") as log:  # as a resumed run: 4 is done again
        log.begin()
        log.add({"step": 3, "loss": 1.5})
    events = loader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 2.5), (2, 2.25), (3, 1.5)]
    assert [(e.step, e.value) for e in events.Scalars("valid_loss")] == [(2, 2.0)]


def test_tensorboard_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    user_error(lambda: Log(path, 0, "tensorboard"), "tensorboard", "pip install 'regard[tensorboard]'")
