"""`regard look`, and the command as a process: help, pipes and signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.commands import PICO, check_refused, list_tree, regard, stdout_of
from regard import __version__

pytestmark = pytest.mark.usefixtures("quick")


# ------------------------------------------------------------------------------------------------------ look


def test_look(capsys, tmp_path, translator, model):
    for name in ("a.svg", "a.png"):
        output = stdout_of(capsys, "look", translator, "bad cabs", "--save", tmp_path / name)
        assert output == f"{tmp_path / name}\n"
    assert (tmp_path / "a.svg").read_text("utf-8").startswith("<svg ")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    more = ["--view", "heads", "--part", "encoder", "--layer", 0, "--head", 1, "--save", tmp_path / "b.svg"]
    stdout_of(capsys, "look", translator, "bad cabs", "a bag", *more)
    svg = (tmp_path / "b.svg").read_text("utf-8")
    assert svg.count(">layer 0, head 1<") == 3  # two inputs, and the title
    answered = ["--answer", "fab!", "--save", tmp_path / "c.svg"]
    stdout_of(capsys, "look", translator, "bad cabs", *answered)
    assert ">!</text>" in (tmp_path / "c.svg").read_text("utf-8")
    stdout_of(capsys, "look", model, "The fox", "--view", "arcs", "--save", tmp_path / "d.svg")
    assert list_tree(tmp_path) == ["a.png", "a.svg", "b.svg", "c.svg", "d.svg"]


def test_look_saves_the_model_itself(capsys, tmp_path, translator):
    sizes = []
    for n, words in enumerate(
        [[], ["bad cabs", "--with-model"], ["bad cabs", "--with-model", "--dtype", "int8"]]
    ):
        path = tmp_path / f"{n}.html"
        assert stdout_of(capsys, "look", translator, *words, "--save", path) == f"{path}\n"
        content = path.read_text(encoding="utf-8")
        assert ('"input": "bad cabs"' in content) == bool(words)
        assert '"program"' in content
        sizes.append(len(content))
    assert sizes[2] < sizes[1]
    stdout_of(capsys, "look", translator, "bad cabs", "--save", path)  # the page of one run
    assert '"program"' not in path.read_text(encoding="utf-8")


def test_look_saves_the_map_of_a_model(capsys, tmp_path, translator):
    stdout_of(capsys, "look", translator, "bad cabs", "--view", "map", "--save", tmp_path / "map.svg")
    svg = (tmp_path / "map.svg").read_text("utf-8")
    assert [f">{title}</text>" in svg for title in ("reads", "writes", "Cross-attention", "Softmax")] == [
        True
    ] * 4


def test_look_refuses(capsys, tmp_path, translator, model):
    svg = ["--save", tmp_path / "a.svg"]
    for words, names in (
        ([translator, "a bag", "a cab"], ["one INPUT", "--save .svg"]),
        ([translator, "a bag", "--save", tmp_path / "a.pdf"], ["a.pdf", ".svg", ".png"]),
        ([translator, "a bag", "--save", tmp_path / "a.html", "--patch", 2], ["--patch", "click"]),
        ([translator, "a bag", "--save", tmp_path / "a.html", "--view", "wal"], ["wal", "attention", "walk"]),
        ([translator, " ", "--save", tmp_path / "a.html"], ["nothing"]),
        (
            [translator, "a bag", "--save", tmp_path / "none" / "a.svg"],
            [f"{tmp_path / 'none'}: No such file"],  # not the name of a draft in it
        ),
        (
            [translator, "a bag", *svg, "--view", "rollout"],
            ["rollout", "alignment", "heads", "atlas", "arcs"],
        ),
        ([translator, "a bag", *svg, "--layer", 1], ["layer=1", "0"]),
        ([translator, "a bag", *svg, "--view", "heads", "--head", 2], ["head=2", "0", "1"]),
        ([translator, "a bag", *svg, "--patch", 2], ["patch=2", "alignment"]),
        ([translator, " ", *svg], ["nothing"]),
        ([model, "fox", *svg, "--answer", "dog"], ["answer=dog", "heads"]),
        ([tmp_path / "no-model", "fox", *svg], ["no-model"]),
        ([translator, *svg], ["INPUT"]),
        ([translator], ["INPUT", "model.html"]),
        ([translator, "--with-model"], ["--with-model", "--save"]),
        ([translator, "a bag", "--with-model", *svg], ["--with-model", "model.html"]),
    ):
        check_refused(capsys, tmp_path, ["look", *words], *names)


# ------------------------------------------------------------------------------------------ the whole process


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom regard import cli\n"
        "for line in '--help', 'train --help', '--version', 'train --list', 'train writ':\n"
        "    try:\n        cli.main(line.split())\n    except SystemExit:\n        pass\n"
        "print(sorted({'torch', 'numpy', 'rich', 'tokenizers'} & set(sys.modules)), file=sys.stderr)\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stderr.splitlines()[-1] == "[]"
    assert f"regard {__version__}" in process.stdout
    assert "\nwrite " in process.stdout
    for verb in ("train", "ask", "score", "look", "prepare"):
        assert f"\n    {verb} " in process.stdout


def test_a_reader_that_has_had_enough(model):
    """`regard ask MODEL | head -c 1` ends quietly."""
    with regard("ask", model, "The", "--max-new-tokens", "100000") as process:
        assert len(process.stdout.read(1)) == 1
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def open_pipe(process, pipe):
    """Open a pipe for writing once the process reads from it."""
    while True:
        assert process.poll() is None, process.stderr.read()
        with contextlib.suppress(OSError):  # ENXIO: nobody does yet
            return open(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0)
        time.sleep(0.05)


def test_a_signal_while_data_are_read_leaves_nothing(tmp_path):
    """SIGTERM before the first step."""
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    with regard("train", "write", pipe, "--out", out, "--steps", 1, *PICO) as process:
        with open_pipe(process, pipe) as file:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(BrokenPipeError):
                while process.poll() is None:
                    file.write(b"there is always more\n")
                    time.sleep(0.05)
            assert process.wait(timeout=60) == 143
        assert "Traceback" not in process.stderr.read()
    assert [p.name for p in Path(tmp_path).iterdir()] == ["pipe"]


def test_a_process_ends_after_what_others_have_registered():
    script = (
        "import atexit, sys\nfrom regard import cli\n"
        "def main():\n    atexit.register(print, 'registered later')\n    print('answer')\n    sys.exit(3)\n"
        "cli.main = main\ncli.command()\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (3, "answer\nregistered later\n")
