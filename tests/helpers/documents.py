"""The commands in the documents: found, split into words, and run as printed."""

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

import regard
from helpers import document_data
from helpers.commands import ENVIRONMENT, call, set_stdin

ROOT = Path(__file__).parents[2]
SMALL = [word for s in ("dim=16", "depth=1", "heads=4") for word in ("--set", f"model.{s}")]
SMALL += ["--set", "data.vocab=300"]
RUNS = {  # that a page uses and does not make: what trains them
    "runs/de": ["translate", *SMALL],
    "runs/other": ["translate", *SMALL],
    "runs/look": ["translate", *SMALL],
    "runs/demo": ["chat", *SMALL],
    "runs/chat": ["chat", *SMALL],
    "runs/mine": ["write", *SMALL],
    "runs/bpe": ["write", *SMALL, "--set", "data.tokenizer=bpe"],
    "runs/bert": ["fill", *SMALL, "--set", "model.depth=3"],  # of which two are frozen
    "runs/adapter": ["chat", "--from", "runs/mine", "--adapter"],
    "runs/embed": ["embed", *SMALL],
    "runs/gru": ["write", "--set", "model.kind=gru", "--set", "model.dim=16", "--set", "data.vocab=300"],
    "runs/see": ["see", *SMALL[:-2]],
    "runs/words": ["words"],
    "runs/first": ["classify", *SMALL],
    "runs/second": ["classify", *SMALL],
    **{f"runs/{name}": ["translate", *SMALL] for name in "abc"},
}


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """The language of every block of code, and its lines; of commands, with continued lines joined and
    variables filled in."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "python":
            yield "python", block.splitlines()
        elif language in ("", "sh", "bash"):
            variables, lines = {}, []
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.fullmatch(r'(\w+)="([^"]*)"', line.strip()):
                    variables[f"${match[1]}"] = match[2]
                for name, value in variables.items():
                    line = line.replace(name, value)
                lines.append(line)
            yield "sh", lines


def fenced(text: str) -> list[str]:
    """The lines of all blocks of commands."""
    return [line for language, lines in blocks(text) if language == "sh" for line in lines]


def inline(text: str) -> list[str]:
    """The commands inside of sentences and tables."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


@dataclass
class Command:
    """A command of a line, without its comment."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # by "<" and ">"


def parse(line: str) -> list[Command]:
    line = re.sub(r"\[--[^]]*\]", "", line)  # options that may be left out
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split, reader.commenters = True, "#"
    try:
        words = list(reader)
    except ValueError:  # a quote that does not end: JSON over several lines
        return []
    parts: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(";|&"):
            parts.append([])
        else:
            parts[-1].append(word)
    return [command for part in parts if (command := parse_part(part)).words]


def parse_part(words: list[str]) -> Command:
    command = Command([word for word in words if word != "..."])  # further options, as in the commands above
    while command.words and re.match(r"[A-Z_]+=", command.words[0]):
        name, _, value = command.words.pop(0).partition("=")
        command.environment[name] = value
    for sign in ("<", ">"):
        if sign in command.words:
            at = command.words.index(sign)
            command.files[sign] = (command.words[at + 1 : at + 2] or [""])[0]
            del command.words[at : at + 2]
    for start in (["python", "-m", "regard"], ["torchrun"]):
        if command.words[: len(start)] == start and "regard" in command.words:
            command.words = command.words[command.words.index("regard") :]
    return command


def split_commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without comments, redirections and settings of variables."""
    return [command.words for command in parse(line)]


# Running


def run_page(page: str, not_run: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the blocks of a page in their order, in the current folder; return how many commands and blocks of
    Python have run.

    Lines that begin as in `not_run` are left out. The tour's blocks in Python quote the code, and don't run.
    """
    count = 0
    for language, lines in blocks((ROOT / page).read_text()):
        if language == "python" and "tour" not in page and not any(map(not_run.__contains__, lines)):
            run_python("\n".join(lines))
            count += 1
        for line in dict.fromkeys(lines) if language == "sh" else ():
            for command in [] if line.startswith(not_run) else parse(line):
                if command.words[0] == "python":
                    subprocess.run(python_words(command.words), check=True, env=ENVIRONMENT)
                elif command.words[0] == "regard":
                    try:
                        run_command(page, command, monkeypatch)
                    except AssertionError as error:
                        raise AssertionError(f"{page}: {line}: {error}") from None
                    count += 1
    return count


def python_words(words: list[str]) -> list[str | Path]:
    """What is run for `python SCRIPT` or `python -m MODULE`, wherever the current folder is."""
    script = words[1:] if words[1] == "-m" else [ROOT / words[1], *words[2:]]
    return [sys.executable, *script]


def run_python(code: str) -> None:
    """Run a block, with two steps if it trains."""
    Path("block.py").write_text(re.sub(r"steps=\d+", "steps=2", code))
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path("block.py", {"regard": regard})


def run_command(page: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command; what it needs and nobody has made is made first."""
    name, *words = command.words[1:]
    words = [fill_placeholder(name, words, n) for n in range(len(words))]
    for before, word in zip(["", *words], [*words, command.files.get("<", "")], strict=False):
        is_output = before == "--out" or (name == "export" and word == words[1])
        if not is_output and not Path(word).exists():
            make(page, name, word)
    if name == "train" and "--list" not in words:
        is_new = "--from" not in words and "model." not in " ".join(words)
        words += SMALL if words[0] in ("chat", "translate") and is_new else []
        words += ["--steps", "3"] if "--resume" in words else ["--steps", "2", "--set", "train.batch=2"]
    if name == "serve" or (name == "look" and not {"--save", "--word"} & set(words)):
        check_server([name, *words], command.environment)
        return
    output, errors = io.StringIO(), io.StringIO()
    stdin = Path(command.files["<"]).read_text() if "<" in command.files else "Hello\nHi how are you\n"
    said = contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors)
    with monkeypatch.context() as patch, said[0], said[1]:
        set_stdin(patch, stdin)
        status = call(name, *words)
    assert status == 0, errors.getvalue()
    if ">" in command.files:
        Path(command.files[">"]).write_text(output.getvalue())
        assert output.getvalue().count("\n") == stdin.count("\n")
    assert output.getvalue().endswith("\n")
    for before, word in pairwise(words):
        if before in ("--save", "--out"):
            assert Path(word).exists(), before


def fill_placeholder(name: str, words: list[str], n: int) -> str:
    """A word of a command, or what it stands for: MODEL, DIR, FOLDER or FILE."""
    match words[n]:
        case "MODEL":
            kinds = {"ctranslate2": "runs/de", "word2vec": "runs/words", "gguf": "runs/bpe"}
            return kinds.get(words[-1], "runs/mine")
        case "RUN" if words[-1] == "peft":
            return "runs/adapter"
        case "FILE":
            return "vectors.txt"
        case "DIR":
            return unused("dir")
        case "FOLDER" if name == "export":
            return unused("exported")
        case "FOLDER" if name == "prepare":
            return "texts"
        case "FOLDER":
            return "their-bert" if words[n - 1] == "--from" else "their-gpt"
    return words[n]


def unused(name: str) -> str:
    return next(f"{name}{n}" for n in range(99) if not Path(f"{name}{n}").exists())


def make(page: str, name: str, word: str) -> None:
    """Make a run, a model or data of this name, if it is one."""
    if word in RUNS:
        assert call("train", *RUNS[word], "--steps", 2, "--out", word) == 0
    elif word in ("their-bert", "their-gpt"):
        run = {"their-bert": "runs/bert", "their-gpt": "runs/mine"}[word]
        if not Path(run).exists():
            make(page, name, run)
        assert call("export", run, word) == 0
    elif word == "shards":
        document_data.make(page, "texts")
        assert call("prepare", "texts", "--out", word, "--set", "data.vocab=300") == 0
    elif word.endswith(".toml") and name == "look":  # a tour that the page quotes
        tours = re.findall(r"^```toml\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        Path(word).write_text(tours[0])
    else:
        document_data.make(page, word)


def check_server(words: list[str], environment: dict[str, str]) -> None:
    """Start a server, get its page, and stop it by Ctrl-C."""
    environment = ENVIRONMENT | {"BROWSER": shutil.which("true") or "true"} | environment
    program = [sys.executable, "-m", "regard", *words]
    with subprocess.Popen(program, env=environment, stdout=-1, stderr=-1, text=True) as process:
        try:
            address = process.stdout.readline().strip()  # type: ignore[union-attr]
            assert address.startswith("http://"), process.stderr.read()  # type: ignore[union-attr]
            request = urllib.request.Request(address.replace("0.0.0.0", "127.0.0.1"))
            if key := environment.get("REGARD_API_KEY"):
                request.add_header("Authorization", f"Bearer {key}")
            with urllib.request.urlopen(request, timeout=60) as reply:
                assert b"<html" in reply.read()
        finally:
            os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) in (0, 130)
