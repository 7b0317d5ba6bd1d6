"""The scripts in bench/ start: mypy checks what they call, and this that they import what is there."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "bench").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_starts(script: Path) -> None:
    assert callable(runpy.run_path(str(script))["main"])
