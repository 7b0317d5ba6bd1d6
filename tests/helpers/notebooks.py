"""A stand-in for a notebook: the part of IPython that displays, and replaces what was displayed."""

import sys
import types
from typing import Any

import pytest

Content = dict[str, str]  # by media type


class Handle:
    """Of something that is displayed, which `update` replaces."""

    def __init__(self, contents: list[Content]):
        self.contents = contents

    def update(self, content: Content, *, raw: bool) -> None:
        assert raw
        self.contents.append(content)


def open_notebook(monkeypatch: pytest.MonkeyPatch, has_kernel: bool = True) -> list[list[Content]]:
    """Make this process look like that of a notebook; return the list of what will be displayed: of each
    place, its contents in their order."""
    places: list[list[Content]] = []

    def display(content: Content, *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        places.append([content])
        return Handle(places[-1])

    shell = types.SimpleNamespace(**({"kernel": object()} if has_kernel else {}))
    module: Any = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    module.display = types.ModuleType("IPython.display")
    module.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    return places
