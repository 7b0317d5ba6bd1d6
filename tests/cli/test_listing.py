"""`regard runs` and `regard info` as commands."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import check_refused, stdout_of

FIXTURES = Path(__file__).parents[1] / "runs" / "fixtures"


def test_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = stdout_of(capsys, "runs", FIXTURES, "--sort", "name").splitlines()
    assert head.split() == ["run", "task", "data", "weights", "best", "step", "time", "state"]
    names = [row.split()[0] for row in rows]
    assert names == sorted(names)
    assert names[-1] == str(FIXTURES / "write")
    assert "4.1k" in rows[-1]
    assert rows[-1].endswith("finished")
    sizes = [
        json.loads(line)
        for line in stdout_of(capsys, "runs", FIXTURES, "--json", "--sort", "size").splitlines()
    ]
    assert [row["parameters"] for row in sizes] == sorted((row["parameters"] for row in sizes), reverse=True)


def test_the_folder_runs_is_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURES / "write", tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "mine" / "model.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert stdout_of(capsys, "runs").splitlines()[1].split()[0] == "runs/mine"
    stdout_of(capsys, "runs")
    (row,) = stdout_of(capsys, "runs", "--json").splitlines()
    assert json.loads(row)["state"] == "broken"


def test_a_comparison(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pair, svg = [FIXTURES / "write", FIXTURES / "classify"], tmp_path / "a.svg"
    text = stdout_of(capsys, "runs", *pair, "--save", svg)
    assert "train.lr" in text
    assert "train.seed" not in text  # which is the same
    assert "valid_accuracy" in text
    assert "█" in text
    assert ">classify</text>" in svg.read_text("utf-8")
    row = json.loads(stdout_of(capsys, "runs", *pair, "--json"))
    assert row["settings"]["task.name"] == ["write", "classify"]
    assert row["curves"].keys() == {"write", "classify"}


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dict(
        line.split(maxsplit=1) for line in stdout_of(capsys, "info", FIXTURES / "classify").splitlines()
    )
    assert (lines["kind"], lines["task"], lines["classes"]) == ("bert", "classify", "negative, positive")
    facts = json.loads(stdout_of(capsys, "info", FIXTURES / "classify", "--json"))
    assert facts["parameters"] == int(lines["parameters"].replace(",", ""))


def test_refusals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check_refused(capsys, tmp_path, ["runs", tmp_path], "no runs", tmp_path)
    check_refused(capsys, tmp_path, ["runs", tmp_path / "x"], "x")
    check_refused(capsys, tmp_path, ["runs", FIXTURES, "--save", tmp_path / "a.svg"], "--save")
    check_refused(capsys, tmp_path, ["runs", FIXTURES / "see", FIXTURES / "chat", "--save", "a.pdf"], "a.pdf")
    check_refused(capsys, tmp_path, ["info", tmp_path / "x"], "x")


def test_neither_needs_torch() -> None:
    script = (
        "import sys\nfrom regard import cli\n"
        f"for words in ['runs', {str(FIXTURES)!r}], ['info', {str(FIXTURES / 'see')!r}]:\n"
        "    try:\n        cli.main(words)\n    except SystemExit:\n        pass\n"
        "print(sorted({'torch', 'numpy', 'rich', 'tokenizers'} & set(sys.modules)), file=sys.stderr)\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stderr == "[]\n"
