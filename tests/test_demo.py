"""The demo: the answer, the picture, what to try next, and answers to unseen wordings."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.commands import call
from helpers.paraphrases import PARAPHRASES, normal, sensible
from regard import demo
from regard.runs.load import load
from regard.runs.model import Model
from regard.training.build import train

BEGINNING = 45  # of the built-in pairs: greetings, among them how somebody is


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of the demo's run, and its standard output and standard error: of a few pairs and steps."""
    folder = tmp_path_factory.mktemp("few")
    lines = (Path(demo.__file__).parent / "builtin/chat.tsv").read_text("utf-8").splitlines(keepends=True)
    (folder / "few.tsv").write_text("".join(lines[:BEGINNING]), "utf-8")

    def train_few(name: str, **options: Any) -> Model:
        return train(name, str(folder / "few.tsv"), **options | {"steps": 60})

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(demo, "train", train_few)
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert call("demo") == 0
    return folder, out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def full_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The same of the demo as it is."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "regard", "demo"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, done.stderr


def test_it_is_fine(shown: tuple[Path, str, str]) -> None:
    _, said, _ = shown
    question, answer, *picture = [line for line in said.splitlines() if line.strip()]
    assert question == f"> {demo.QUESTION}"
    assert normal(answer) == "i am fine"
    assert picture[0].split() == ["hi", "how", "are", "you", "</s>"]
    words = [line.split()[0] for line in picture[1:]]
    assert words[:3] == ["I", "am", "fine"]
    assert any(shade in said for shade in "░▒▓█")


def test_it_says_what_to_try_next(shown: tuple[Path, str, str]) -> None:
    folder, _, advice = shown
    assert "regard ask runs/demo" in advice
    assert "regard demo --look" in advice
    assert (folder / "runs/demo/model.safetensors").is_file()


@pytest.mark.slow
def test_unseen_wordings_are_answered_sensibly(full_demo: tuple[Path, str, str]) -> None:
    test_it_is_fine(full_demo)
    test_it_says_what_to_try_next(full_demo)
    model = load(full_demo[0] / "runs/demo", "cpu")
    questions = [question for question, _ in PARAPHRASES]
    answers = model.ask(questions)
    wrong = [(q, a) for (q, right), a in zip(PARAPHRASES, answers, strict=True) if not sensible(a, right)]
    assert len(wrong) <= 0.2 * len(PARAPHRASES), wrong


def test_its_attention_is_that_of_the_model(shown: tuple[Path, str, str]) -> None:
    model = load(shown[0] / "runs/demo", "cpu")
    weights, rows, columns = model.task.cross_attention(model.model, demo.QUESTION, model.ask(demo.QUESTION))
    assert weights.shape == (len(rows), len(columns))
    assert weights.sum(-1).tolist() == pytest.approx([1.0] * len(rows), abs=1e-5)


@pytest.mark.parametrize("words", [["demo"], ["demo", "--look"]])
def test_the_page_shows_the_question(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def train(*_: Any, **options: Any) -> None:
        asked.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", train)
    assert call(*words) == 130
    assert asked[0]["look"] == (demo.QUESTION if "--look" in words else False)
