"""Fixtures for the tests of training."""

import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.runs import before, tiny, write_text
from regard.training import live
from regard.training.live import LivePage

NO_PROCESS = 2**22 + 1  # above the largest that Linux gives


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text: str, quick: None) -> Path:
    """A finished run of six steps."""
    out = tmp_path_factory.mktemp("finished") / "out"
    tiny(text, out, steps=6, train__save=2, train__evaluate=3)
    return out


@pytest.fixture
def exact() -> Iterator[None]:
    """Use double precision, so that the order of a sum has no visible effect."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def silent_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Start no process that serves the page of a training, but something that says its address and listens;
    return these."""
    started: list[Any] = []

    def start(command: list[str], **_: Any) -> Any:
        said = {"stdin": b"", "stdout": b'{"url": "http://page/"}', "stderr": b""}
        pipes = {name: io.BytesIO(data) for name, data in said.items()}
        started.append(SimpleNamespace(command=command, pid=NO_PROCESS, wait=lambda: 0, **pipes))
        return started[-1]

    monkeypatch.setattr(live, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
    monkeypatch.setattr(live, "webbrowser", SimpleNamespace(open=lambda url: None))
    monkeypatch.setattr(live, "_pages", [])
    # Its output ends at once, which ends a pause: the first step waits for that.
    with before(LivePage, "between_steps", lambda page, _: page.receiver.join()):
        yield started
