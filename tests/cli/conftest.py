"""Tiny models, trained by the command."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.commands import PICO, WORDS, pair_model, train_model
from helpers.runs import write_text


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Restore the signal handler that a command replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="session")
def text(place: Path) -> str:
    return write_text(place / "text.txt")


@pytest.fixture(scope="session")
def model(place: Path, text: str) -> Path:
    """A language model."""
    return train_model(place / "model", "write", text, "--steps", 20, *PICO)


@pytest.fixture(scope="session")
def pairs(place: Path) -> Path:
    path = place / "pairs.tsv"
    path.write_text("".join(f"{a} {b}\t{b}, {a}!\n" for a in WORDS for b in WORDS))
    return path


@pytest.fixture(scope="session")
def translator(place: Path, pairs: Path) -> Path:
    return pair_model(place / "translator", "translate", pairs)


@pytest.fixture(scope="session")
def chatter(place: Path, pairs: Path) -> Path:
    more = ["--set", "task.turns=3", "--set", "data.target_tokenizer=char"]
    return pair_model(place / "chatter", "chat", pairs, *more)
