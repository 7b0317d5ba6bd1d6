"""The command `regard`."""

import importlib
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


class Interrupted:
    """Ctrl-C while a module is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "regard.cli":
            raise KeyboardInterrupt


def test_ctrl_c_at_the_very_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["regard"].partition(":")
    run = getattr(importlib.import_module(module), name)
    monkeypatch.delitem(sys.modules, "regard.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 130
