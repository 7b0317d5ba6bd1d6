"""Progress in a notebook: a count that replaces itself."""

import pytest

from helpers.notebooks import open_notebook
from regard.draw import terminal
from regard.draw.terminal import progress


def test_a_count_in_a_notebook(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress("scoring", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""  # in a pipe or a file
    open_notebook(monkeypatch, has_kernel=False)
    with progress("scoring", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""  # at the prompt of IPython, whose output is a pipe
    open_notebook(monkeypatch)
    monkeypatch.setattr(terminal, "NOTEBOOK_SECONDS", 0.0)
    with progress("scoring", 1300) as advance:
        advance(300)
        advance(1000)
    assert capsys.readouterr().err == "\rscoring 300/1,300\rscoring 1,300/1,300\n"
    monkeypatch.setattr(terminal, "NOTEBOOK_SECONDS", 1e9)
    with progress("reading") as advance:
        for _ in range(5):
            advance(1)
    assert capsys.readouterr().err == "\rreading 1"
