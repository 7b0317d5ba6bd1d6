"""The loss by position in the context."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from helpers.errors import user_error
from helpers.looking import CONTEXT, TEXT, reader
from regard.cli.commands import COMMANDS
from regard.cli.parser import build_parser
from regard.runs.model import Model
from regard.runs.score import loss_table
from regard.tasks import loss

WORDS = TEXT.split()
KINDS: dict[str, dict[str, Any]] = {"gpt": {}, "recurrent": {"cell": "lstm", "depth": 2}}


@pytest.fixture
def text(tmp_path: Path) -> str:
    """Two full contexts, and a part of a third one."""
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS[i * i % len(WORDS)] for i in range(2 * CONTEXT + 6)))
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_it_is_the_mean_over_the_windows(text: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = reader("write", kind, **KINDS[kind])
    scores = model.score(text, by_position=True)
    ids = torch.tensor(model.task.held_out([text]).read(0, 2 * CONTEXT + 99).astype("int64"))
    losses: list[list[float]] = [[] for _ in range(CONTEXT)]
    for first in range(0, len(ids) - 1, CONTEXT):
        window = ids[first : first + CONTEXT + 1]
        each = F.cross_entropy(model.model(window[None, :-1])[0], window[1:], reduction="none")
        for place, value in enumerate(each.tolist()):
            losses[place].append(value)
    expected = [sum(values) / len(values) for values in losses]
    assert scores["loss_by_position"] == pytest.approx(expected, rel=1e-5)
    plain = model.score(text)
    assert {name: scores[name] for name in plain} == pytest.approx(plain, rel=1e-5)
    assert scores.keys() - plain.keys() == {"loss_by_position"}
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", 3 * model.tokenizer.vocab)  # three positions at a time
    assert model.score(text, by_position=True)["loss_by_position"] == pytest.approx(expected, rel=1e-5)


def test_it_is_short_as_a_table() -> None:
    table = loss_table([float(i) for i in range(1, 12)])
    assert table == [("1", 1), ("2", 2), ("3-4", 3.5), ("5-8", 6.5), ("9-11", 10)]
    assert loss_table([]) == []


def test_a_short_text_has_fewer_positions(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox")
    model = reader("write", "gpt")
    losses = model.score(str(tmp_path / "text.txt"), by_position=True)["loss_by_position"]
    assert 0 < len(losses) < CONTEXT
    assert all(map(math.isfinite, losses))


def test_the_command(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = reader("write", "gpt")
    monkeypatch.setattr("regard.runs.load.load", lambda *_, **__: model)

    def score(*words: str) -> None:
        COMMANDS["score"](build_parser().parse_args(["score", "RUN", text, *words]))

    score("--json", "--by-position")
    assert len(json.loads(capsys.readouterr().out)["loss_by_position"]) == CONTEXT
    score("--save", str(tmp_path / "loss.svg"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("loss ")
    assert lines[-1].startswith(f"loss at 17-{CONTEXT} ")
    assert "tokens before" in (tmp_path / "loss.svg").read_text()
    score()
    assert "loss at" not in capsys.readouterr().out
    user_error(lambda: score("--save", "loss.jpg"), "loss.jpg", ".svg")


def test_other_tasks_have_none(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("the fox\tder Fuchs\n" * 3)
    model: Model = reader("translate", "gru")
    user_error(lambda: model.score(str(tmp_path / "pairs.tsv"), by_position=True), "translate", "write")
