"""`score` by class, `--at`, probabilities of `ask`, and what a conversation says first."""

import json
import re
from pathlib import Path

import pytest

import regard
from helpers.commands import call, check_refused, stdout_of
from regard.tasks.metrics import count_confusions

FIXTURES = Path(__file__).parents[1] / "runs" / "fixtures"
READER = FIXTURES / "classify"
DATA = Path(regard.__file__).parent / "builtin" / "classify.valid.tsv"


def test_confusions() -> None:
    counted = count_confusions(["a", "b", "c"], ["a", "b", "b", "b", "a"], ["a", "a", "b", "b", "c"])
    assert counted["confusion"] == [[1, 1, 0], [0, 2, 0], [1, 0, 0]]
    b, c = counted["classes"]["b"], counted["classes"]["c"]
    assert b == {"precision": pytest.approx(2 / 3), "recall": 1.0, "f1": pytest.approx(0.8), "rows": 2}
    assert c == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rows": 1}


def test_score_by_class(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = stdout_of(capsys, "score", READER, DATA, "--save", tmp_path / "a.svg")
    lines = [line.split() for line in text.splitlines()]
    rows = len(DATA.read_text("utf-8").splitlines()) - 1  # its first line names the columns
    assert ["rows", str(rows)] in lines
    assert ["class", "precision", "recall", "f1", "rows"] in lines
    head = lines.index(["true", "\\", "predicted", "negative", "positive"])
    assert sum(int(n) for line in lines[head + 1 :] for n in line[1:]) == rows
    svg = (tmp_path / "a.svg").read_text("utf-8")
    assert svg.count(">negative</text>") == 2
    scores = json.loads(stdout_of(capsys, "score", READER, DATA, "--json"))
    assert scores["rows"] == rows
    assert scores["classes"].keys() == {"negative", "positive"}
    right = sum(row[i] for i, row in enumerate(scores["confusion"]))
    assert right / rows == pytest.approx(scores["accuracy"])
    plain = regard.load(READER, "cpu").score(str(DATA))
    assert "classes" not in plain


def test_two_models_are_compared_by_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Classes are no texts, of which BLEU would say something."""
    scores = json.loads(stdout_of(capsys, "score", READER, DATA, "--against", READER, "--json"))
    assert (scores["better"], scores["worse"], scores["better_p"]) == (0, 0, 1)
    assert scores["accuracy_against"] == pytest.approx(scores["accuracy"])
    assert scores["f1_against"] == pytest.approx(scores["f1"])
    assert not [name for name in scores if name.startswith(("bleu", "chrf"))]
    assert "accuracy_against" in stdout_of(capsys, "score", READER, DATA, "--against", READER)


def test_many_classes_list_the_most_frequent_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    from regard.cli.asking import print_classes

    names = [f"c{i}" for i in range(20)]
    answers = [*names[1:], "c0", "c5"]
    counted = count_confusions(names, answers, [*names, "c4"])
    print_classes(counted["classes"], counted["confusion"])
    _, mistakes = capsys.readouterr().out.strip().split("\n\n")
    assert mistakes.splitlines()[1].split() == ["2", "c4", "c5"]
    assert len(mistakes.splitlines()) == 13


def test_ask_prints_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["I like it"], ["I like it", "--num-return-sequences", "2"]):
        lines = stdout_of(capsys, "ask", READER, *words).splitlines()
        assert len(lines) == int(words[-1]) if words[1:] else 1
        assert all(re.fullmatch(r"0\.\d{4}\t(negative|positive)", line) for line in lines)


def test_a_checkpoint_is_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    there = ["ask", FIXTURES / "write", "The", "--seed", 1, "--max-new-tokens", 9]
    path = FIXTURES / "write" / "checkpoints" / "step-2"
    assert stdout_of(capsys, *there, "--at", 2) == stdout_of(capsys, "ask", path, *there[2:])
    assert stdout_of(capsys, "score", READER, DATA, "--at", 2) == stdout_of(capsys, "score", READER, DATA)
    stdout_of(capsys, "look", FIXTURES / "write", "The", "--at", 2, "--save", tmp_path / "a.svg")
    check_refused(capsys, tmp_path, [*there, "--at", 3], "step 3", "2")


def test_a_conversation_greets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    lines = iter(["/help", "I like it"])

    def answer(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    assert call("ask", READER) == 0
    output = capsys.readouterr()
    assert "classify" in output.err.splitlines()[0]
    assert output.err.count("/help") == 2
    assert output.out.count("\t") == 1
