"""Training in a notebook: one panel below the cell, which is replaced while it goes on."""

import base64
import re
from pathlib import Path

import pytest

import regard
from helpers.notebooks import open_notebook
from regard.training import progress
from regard.training.progress import NotebookPanel, display

ROW = {"step": 200, "loss": 2.34561, "tokens_per_second": 18234.0, "elapsed": 13.0, "eta": 80.0}


def curve(html: str) -> str:
    """The picture in a panel."""
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return base64.b64decode(data).decode()


def test_a_panel_shows_progress_curve_sample_and_notices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = open_notebook(monkeypatch)
    with display(2000, None, "write <4 layers>") as shown:
        assert isinstance(shown, NotebookPanel)
        assert "starting" in places[0][-1]["text/html"]
        shown.log(ROW | {"step": 100, "loss": 4.0})
        shown.log(ROW)
        shown.evaluated({"step": 200, "valid_loss": 2.5, "best": True})
        shown.sample("a fox & [x] \x1b[2J\n狐狸")
        shown.say("saved <a>")
    (panel,) = places
    last = panel[-1]
    for expected in (
        "write &lt;4 layers&gt;",
        'value="0.1000"',
        "step 200/2000",
        "left 1m20s",
        "loss 2.3456",
        "valid 2.5000 (best)",
        "18.2k tok/s",
        "a fox &amp; [x] \\x1b[2J\n狐狸",
        "saved &lt;a&gt;",
    ):
        assert expected in last["text/html"]
    assert "best 2.5 at step 200" in curve(last["text/html"])
    for expected in ("write <4 layers>", "step 200/2000", "valid 2.5000", "saved <a>"):
        assert expected in last["text/plain"]
    assert capsys.readouterr() == ("", "")


def test_steps_in_quick_succession_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    places = open_notebook(monkeypatch)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 1e9)
    with display(50, None, "write") as shown:
        for step in range(50):
            shown.log(ROW | {"step": step})
    assert len(places[0]) == 2
    assert "step 49/50" in places[0][-1]["text/html"]


def test_the_curve_forgets_what_training_has_gone_back_before(monkeypatch: pytest.MonkeyPatch) -> None:
    places = open_notebook(monkeypatch)
    with display(50, None, "write") as shown:
        for step, loss in ((2, 4.0), (3, 3.0), (4, 900.0), (3, 2.0)):
            shown.log(ROW | {"step": step, "loss": loss})
    assert "900" not in curve(places[0][-1]["text/html"])


def test_an_interrupted_cell_shows_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    places = open_notebook(monkeypatch)

    def interrupted() -> None:
        with display(50, None, "write") as shown:
            shown.log(ROW | {"step": 7})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "step 7/50" in places[0][-1]["text/html"]


def test_training_from_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = open_notebook(monkeypatch)
    settings = {"model.dim": 8, "model.depth": 1, "train.log": 1}
    regard.train("chat", [("a", "b"), ("c", "d")] * 9, out=tmp_path / "run", steps=2, set=settings)
    (panel,) = places
    assert len(panel) > 2
    html = panel[-1]["text/html"]
    assert "step 2/2" in html
    assert str(tmp_path / "run") in html
    assert "example: source: a" in html  # of what was read
    assert "validation" in curve(html)
