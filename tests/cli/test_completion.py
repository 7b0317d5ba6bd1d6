"""Completion in shells: bash's script is run; that of fish names the same."""

import shutil
import subprocess

import pytest

from helpers.commands import stdout_of
from regard.cli.parser import build_parser


def complete(script: str, *words: str) -> set[str]:
    """What bash offers for the last word."""
    code = f"""{script}
COMP_WORDS=({" ".join(repr(w) for w in words)})
COMP_CWORD={len(words) - 1}
_regard
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash(
    capsys: pytest.CaptureFixture[str], shell: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").touch()
    script = stdout_of(capsys, "completion", shell).replace(
        "autoload -U +X bashcompinit && bashcompinit\n", ""
    )
    assert complete(script, "regard", "") >= {"train", "ask", "runs", "completion"}
    assert complete(script, "regard", "ru") == {"runs"}
    assert complete(script, "regard", "train", "w") == {"words", "write"}
    assert complete(script, "regard", "train", "write", "d") == {"data.txt"}
    assert complete(script, "regard", "train", "write", "--mi") == {"--minutes"}
    assert complete(script, "regard", "train", "write", "--log", "t") == {"tensorboard", "trackio"}
    assert complete(script, "regard", "export", "--to", "") == {
        "hf",
        "onnx",
        "ctranslate2",
        "gguf",
        "word2vec",
        "peft",
    }
    assert complete(script, "regard", "completion", "f") == {"fish"}


def test_fish(capsys: pytest.CaptureFixture[str]) -> None:
    script = stdout_of(capsys, "completion", "fish")
    for name, parser in build_parser().commands.items():
        assert f" -a {name} -d " in script
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--"):
                    assert f"'__fish_seen_subcommand_from {name}' -l {option[2:]} " in script
