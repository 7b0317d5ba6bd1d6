"""What a run says when it ends."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.training.config import TrainConfig
from regard.training.progress import Lines
from regard.training.reporter import Reporter
from regard.training.state import TrainState


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_is_stopped_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: bool
) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    reporter = Reporter(folder, SimpleNamespace(best_metric=None), TrainConfig(steps=9), "a model")
    reporter.display = Lines(9, "title")
    reporter.finish(TrainState(step=4, best={"step": 3, "valid_loss": 2.0}), 1.0, finished)
    text = capsys.readouterr().err
    assert "best valid 2.0000 at step 3" in text
    assert ("--resume" in text) is not finished
    if not finished:
        assert f"'{folder}/recipe.toml' --out '{folder}' --resume" in text
