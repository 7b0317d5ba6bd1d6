"""Completion: what the Tab key makes of a line, in a terminal with each shell."""

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.commands import stdout_of
from helpers.waiting import wait_until
from regard.cli.parser import build_parser
from regard.runs import recipe

STARTS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
STAND_IN = """#!/bin/sh
if [ "$3" = --help ]; then
    echo "  model.dim       plan   width of the hidden states"
    echo "  model.context   plan   the longest text"
    echo "  data.vocab      plan   the target size"
else
    for word; do printf '%s|' "$word"; done >> answers
    echo >> answers
fi
"""
TYPED = {  # with Tab, and the arguments that it makes
    "tr\t": ["train"],
    "train writ\t": ["train", "write"],
    "train --steps 2 --set lr=1 writ\t": ["train", "--steps", "2", "--set", "lr=1", "write"],
    "train --lis\t": ["train", "--list"],
    "train chat spac\t": ["train", "chat", "space d.csv"],
    "train chat ./tex\t": ["train", "chat", "./texte é.txt"],
    "train ./mi\t": ["train", "./mine.toml"],
    "train mi\t": ["train", "mine.toml"],
    "train chat writ\t": ["train", "chat", "writ"],  # a recipe is named once
    "train cha\tx": ["train", "chat", "x"],  # also beside a folder of this name
    "train chat --devi\tcu\t": ["train", "chat", "--device", "cuda"],
    "train chat --device=cu\t": ["train", "chat", "--device=cuda"],
    "train chat --set model.d\t16": ["train", "chat", "--set", "model.dim=16"],
    "train --set model.d\t": ["train", "--set", "model.d"],  # of which recipe?
    "train chat --set pres\ttiny": ["train", "chat", "--set", "preset=tiny"],
    "prepare a --set data.v\t9": ["prepare", "a", "--set", "data.vocab=9"],
    "ask runs/o\t --set \t7": ["ask", "runs/one", "--set", "data.max_bytes=7"],
    "export --to onn\truns/o\t": ["export", "--to", "onnx", "runs/one"],
    "completion fi\t": ["completion", "fish"],
    "info train wri\t": ["info", "train", "wri"],  # `train` is a folder here
}


def type_lines(argv: Sequence[str], script: Path, lines: Sequence[str]) -> list[str]:
    """Type lines into a shell on a terminal, in this folder; return the arguments that `regard` got."""
    shell, terminal = pty.fork()
    if shell == 0:
        os.execvp(argv[0], argv)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 190, 0, 0))
    answers, shown = Path("answers"), b""
    answers.touch()

    def count_answers() -> int:
        nonlocal shown
        if select.select([terminal], [], [], 0)[0]:
            shown += os.read(terminal, 1 << 16)
        return answers.read_text().count("\n")  # a line without an end has not been written yet

    try:
        for count, line in enumerate([f"source {script}; regard begin", *("regard " + one for one in lines)]):
            os.write(terminal, line.encode() + b"\n")
            try:
                wait_until(lambda count=count: count_answers() > count)  # type: ignore[misc]
            except AssertionError:
                pytest.fail(f"no answer to {line!r}; shown: {shown.decode(errors='replace')[-2000:]}")
    finally:
        os.kill(shell, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(shell, 0)
    return answers.read_text().splitlines()[1:]


@pytest.mark.parametrize("shell", STARTS)
def test_completion(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(stdout_of(capsys, "completion", shell))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "regard").write_text(STAND_IN)
    (tmp_path / "bin" / "regard").chmod(0o755)
    here = tmp_path / "here"
    for folder in ("chat", "train", "runs/one"):
        (here / folder).mkdir(parents=True)
    for name in ("space d.csv", "texte é.txt", "mine.toml", "runs/one/config.json"):
        (here / name).touch()
    monkeypatch.chdir(here)
    for name, value in {"HOME": str(tmp_path), "TERM": "xterm", "LC_ALL": "C.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    got = type_lines(STARTS[shell], script, list(TYPED))
    expected = {typed: "|".join(words) + "|" for typed, words in TYPED.items()}
    completions = [one.replace("/|", "|") for one in got]  # zsh leaves out the slash of a folder
    assert dict(zip(TYPED, completions, strict=True)) == expected


@pytest.mark.parametrize("shell", STARTS)
def test_names(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command, option and recipe is in the script."""
    script = stdout_of(capsys, "completion", shell)
    for name, parser in build_parser().commands.items():
        options = [text for action in parser._actions for text in action.option_strings]
        lines = [line for line in script.splitlines() if name in line]
        assert lines
        for option in [one for one in options if one.startswith("--")]:
            assert any(option in line or f" -l {option[2:]} " in line for line in lines), (name, option)
    assert all(name in script for name in recipe.names())
