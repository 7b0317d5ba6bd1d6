"""The command line: mistakes in one line and nothing left behind, answers on standard output alone."""

import contextlib
import errno
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import checkpoints, rows, same, unmeasured, write_text
from safetensors.torch import load_file

from regard import __version__, checkpoint, cli

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
PICO = ["--set", "model.preset=pico", "--set", "train.device=cpu"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


@pytest.fixture(autouse=True)
def own_signals():
    kept = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, kept)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def text(place):
    return write_text(place / "text.txt")


@pytest.fixture(scope="module")
def model(place, text):
    """A tiny writer, trained by the command."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        unmeasured(patch)
        assert call("train", "write", text, "--out", place / "model", "--steps", 20, *PICO) == 0
    assert out.getvalue() == f"{place / 'model'}\n"
    return place / "model"


def call(*words):
    """The exit status of a command, in this process."""
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    return left.value.code


def asked(capsys, *words):
    """What a command that goes well answers."""
    capsys.readouterr()
    assert call(*words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def typed(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def regard(*words, **options):
    """A command in a process of its own."""
    words = [sys.executable, "-m", "regard", *map(str, words)]
    return subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=ENVIRONMENT, **options)


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(capsys, tmp_path, words, *names):
    """One line that names what is wrong, exit status 2, and no trace."""
    there = tree(tmp_path)
    capsys.readouterr()
    assert call(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("regard: ")
    assert said.err.count("\n") == 1, said.err
    for name in names:
        assert str(name) in said.err, said.err
    assert tree(tmp_path) == there
    return said.err


# ------------------------------------------------------------------------------------------ mistakes: files

BAD_FILES = {
    "empty.txt": (b"", ["empty.txt", "empty"]),
    "blank.txt": (b" \n\n ", ["blank.txt", "empty"]),
    "binary.txt": (b"MZ\0\0\1\2 text", ["binary.txt:1", "zero byte"]),
    "latin.txt": ("fine\nfür\n".encode("latin1"), ["latin.txt:2", "UTF-8"]),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', ["broken.jsonl:2"]),
    "cut.txt.gz": (b"\x1f\x8b\x08\0\0\0\0\0", ["cut.txt.gz", "damaged"]),
}


@pytest.mark.parametrize("verb", ["train", "prepare", "score"])
@pytest.mark.parametrize("name", [*BAD_FILES, "missing.txt", "folder"])
def test_a_bad_file(capsys, tmp_path, model, name, verb):
    content, words = BAD_FILES.get(name, (None, [name]))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    if name == "folder":
        (tmp_path / name).mkdir()
    line = {
        "train": ["train", "write", tmp_path / name, "--out", tmp_path / "deep" / "out", "--steps", 1, *PICO],
        "prepare": ["prepare", tmp_path / name, "--out", tmp_path / "out"],
        "score": ["score", model, tmp_path / name],
    }[verb]
    refused(capsys, tmp_path, line, *words)


def test_a_line_of_a_hundred_megabytes(capsys, tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"short\n" + b"a" * 100_000_000)
    try:
        line = ["train", "write", path, "--out", tmp_path / "out", "--steps", 1, *PICO]
        refused(capsys, tmp_path, line, "long.txt:2", "line")
    finally:
        path.unlink()


def test_bad_data_to_measure_on(capsys, tmp_path, text):
    line = ["train", "write", text, "--valid", tmp_path / "none.txt", "--out", tmp_path / "out", *PICO]
    refused(capsys, tmp_path, line, "none.txt")


# --------------------------------------------------------------------------------------- mistakes: settings


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (["writ"], ["writ", "did you mean write?"]),
        (["none.toml"], ["none.toml"]),
        ([], ["RECIPE", "--list"]),
        (["write", "--resume"], ["--resume", "--out"]),
        (["write", "--set", "model.dmi=8"], ["model.dmi", "model.dim?"]),
        (["write", "--set", "modl.dim=8"], ["modl.dim", "model"]),
        (["write", "--set", "dim=8"], ["dim", "model.dim"]),
        (["write", "--set", "model.dim"], ["model.dim", "KEY=VALUE"]),
        (["write", "--set", "train.lrr=1"], ["train.lrr", "lr?"]),
        (["write", "--set", "task.nme=1"], ["task.nme", "name?"]),
        (["write", "--set", "data.vocabulary=1"], ["data.vocabulary", "vocab?"]),
        (["write", "--set", "model.kind=gtp"], ["model.kind=gtp", "gpt?"]),
        (["write", "--set", "task.name=wrte"], ["task.name=wrte", "write?"]),
        (["write", "--set", "model.preset=picco"], ["model.preset=picco", "pico?"]),
        (["write", "--set", "model.dim=10", "--set", "model.heads=3"], ["10", "3", "heads"]),
        (["write", "--set", "model.dim=0"], ["model", "0"]),
        (["write", "--set", "model.context=0"], ["model", "context"]),
        (["write", "--set", "model.depth=-1"], ["model", "depth"]),
        (["write", "--set", "model.heads=4", "--set", "model.kv_heads=3"], ["heads"]),
        (["write", "--set", "model.dropout=2"], ["dropout"]),
        (["write", "--set", "model.dim=many"], ["model.dim='many'"]),
        (["write", "--set", "model.bias=3"], ["model.bias=3"]),
        (["write", "--set", "train.lr=fast"], ["train.lr='fast'"]),
        (["write", "--set", "train.lr=-0.1"], ["train", "lr=-0.1"]),
        (["write", "--set", "train.batch=0"], ["train", "batch=0"]),
        (["write", "--set", "train.batch=1.5"], ["train.batch=1.5"]),
        (["write", "--set", "train.beta2=2"], ["beta2"]),
        (["write", "--set", "train.optimizer=adam"], ["train.optimizer=adam", "adamw?"]),
        (["write", "--set", "data.tokenizer=chars"], ["data.tokenizer", "char"]),
        (["write", "--set", "data.holdout=1.5"], ["data", "holdout=1.5"]),
        (["write", "--steps", "0"], ["steps"]),
        (["write", "--steps", "many"], ["--steps", "many"]),
        (["write", "--minutes", "-1"], ["minutes"]),
        (["write", "--from", "nowhere"], ["nowhere"]),
        (["write", "--color"], ["--color"]),
    ],
    ids=lambda x: " ".join(x) if x and x[0] in ("write", "writ", "none.toml") else None,
)
def test_a_bad_setting(capsys, tmp_path, monkeypatch, text, line, names):
    monkeypatch.chdir(tmp_path)
    if line[:1] == ["write"]:
        line = ["write", text, *line[1:]]
        if "--resume" not in line:
            line += ["--out", "deep/out"]
    refused(capsys, tmp_path, ["train", *line], *names)


@pytest.mark.parametrize("line", [[], ["dance"], ["--color"], ["ask"], ["score", "x"], ["prepare", "x"]])
def test_a_bad_command(capsys, tmp_path, line):
    refused(capsys, tmp_path, line, "--help")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--temperature", "-1"], ["temperature"]),
        (["--temperature", "hot"], ["--temperature", "hot"]),
        (["--top-p", "1.5"], ["top_p"]),
        (["--max-new-tokens", "0"], ["max_new_tokens"]),
        (["--num-return-sequences", "0"], ["num_return_sequences"]),
        (["--seed", "-1"], ["seed"]),
        (["--stop", ""], ["stop"]),
    ],
)
def test_a_bad_question(capsys, tmp_path, model, options, names):
    refused(capsys, tmp_path, ["ask", model, "The", *options], *names)


def test_what_is_not_a_model(capsys, tmp_path, text, model):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "file").write_text("text")
    for name in ("none", "empty", "other", "file"):
        refused(capsys, tmp_path, ["ask", tmp_path / name, "Hi"], name)
        refused(capsys, tmp_path, ["score", tmp_path / name, text], name)
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        bad = tmp_path / f"bad-{name}"
        bad.mkdir()
        for path in model.iterdir():
            if path.is_file():
                (bad / path.name).write_bytes(path.read_bytes())
        (bad / name).write_bytes((model / name).read_bytes()[:40])
        refused(capsys, tmp_path, ["ask", bad, "Hi"], bad / name)


def test_a_place_that_cannot_be_written(capsys, tmp_path, text):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "out", tmp_path / ("a" * 300)):
        line = ["train", "write", text, "--out", out, "--steps", 1, *PICO]
        refused(capsys, tmp_path, line, str(out)[:60])
        refused(capsys, tmp_path, ["prepare", text, "--out", out], str(out)[:60])


def test_a_full_disk(capsys, tmp_path, monkeypatch, text):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "flush", full)
        assert call("train", "write", text, "--out", out, "--steps", 2, *PICO) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("regard: ")] == [said[-1]]
    assert str(out) in said[-1]
    assert "No space left" in said[-1]
    assert tree(tmp_path) == []


# -------------------------------------------------------------------------------------------------- training


def test_train(capsys, tmp_path, text):
    """The folder is the answer; all the rest is on standard error."""
    assert call("train", "write", text, "--out", tmp_path / "out", "--steps", 3, *PICO) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'out'}\n"
    assert "step 3/3" in said.err
    assert call("train", "write", "--out", tmp_path / "out", "--resume") == 0  # finished: nothing to do
    assert checkpoints(tmp_path / "out") == ["step-3"]
    refused(capsys, tmp_path, ["train", "write", text, "--out", tmp_path / "out"], "--resume")


def test_train_on_what_ships_with_it(capsys, tmp_path):
    assert call("train", "write", "--out", tmp_path / "out", "--steps", 1, *PICO) == 0
    assert rows(tmp_path / "out")[-1]["valid_loss"] > 0


def test_train_by_a_recipe_of_ones_own(capsys, tmp_path, text):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nkind = "gpt"\npreset = "pico"\n[task]\nname = "write"\n[train]\nsteps = 2\n')
    assert call("train", recipe, text, "--out", tmp_path / "out") == 0
    assert checkpoints(tmp_path / "out") == ["step-2"]


def test_prepare_then_train_is_to_train(capsys, tmp_path, text):
    assert asked(capsys, "prepare", text, "--out", tmp_path / "shards") == f"{tmp_path / 'shards'}\n"
    for name, data in (("straight", text), ("prepared", tmp_path / "shards")):
        assert call("train", "write", data, "--out", tmp_path / name, "--steps", 4, *PICO) == 0
    same(tmp_path / "straight", tmp_path / "prepared")


def test_train_from_a_model(capsys, tmp_path, text, model):
    line = ["train", "write", text, "--from", model, "--out", tmp_path / "out", "--steps", 1]
    assert call(*line, "--set", "train.device=cpu", "--set", "train.lr=1e-9") == 0
    old, new = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "out"))
    assert all(old[name].allclose(new[name], atol=1e-6) for name in old)


def test_minutes(capsys, tmp_path, text):
    assert call("train", "write", text, "--out", tmp_path / "out", "--minutes", 0.005, *PICO) == 0
    assert "steps" not in checkpoint_recipe(tmp_path / "out")


def checkpoint_recipe(out):
    return (out / "recipe.toml").read_text().split("[train]")[1]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal(tmp_path, text, how, status):
    out = tmp_path / "out"
    line = ["train", "write", text, "--out", out, "--steps", 1_000_000, *PICO, "--set", "train.log=1"]
    with regard(*line) as process:
        while "step 3/" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(how)
        answer, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert answer == ""
    assert "Traceback" not in said
    (last,) = checkpoints(out)
    assert int(last[5:]) >= 3
    assert checkpoint.whole(out / "checkpoints" / last)


# -------------------------------------------------------------------------------------------------- asking


def test_ask(capsys, model):
    first = asked(capsys, "ask", model, "The quick", "--seed", 7, "--max-new-tokens", 12)
    assert first.endswith("\n")
    assert 1 < len(first) <= 13
    assert asked(capsys, "ask", model, "The quick", "--seed", 7, "--max-new-tokens", 12) == first
    others = {asked(capsys, "ask", model, "The quick", "--seed", n, "--max-new-tokens", 12) for n in range(5)}
    assert len(others) > 1
    greedy = {asked(capsys, "ask", model, "The", "--temperature", 0, "--max-new-tokens", 9) for _ in "ab"}
    assert len(greedy) == 1


def test_ask_says_nothing_on_standard_error(capsys, model):
    capsys.readouterr()
    call("ask", model, "The quick", "--max-new-tokens", 3)
    assert capsys.readouterr().err == ""


def test_ask_line_by_line(capsys, monkeypatch, model):
    """More lines than are answered at once; order is kept, and an empty line has its answer too."""
    lines = [f"fox {n}" for n in range(70)] + ["", "dogs"]
    options = ["--seed", 3, "--max-new-tokens", 4, "--stop", "\n"]
    typed(monkeypatch, "\n".join(lines) + "\n")
    answers = asked(capsys, "ask", model, *options).split("\n")[:-1]
    assert len(answers) == len(lines)
    for n in (0, 64, 71):
        assert answers[n] + "\n" == asked(capsys, "ask", model, lines[n], *options)
    assert asked(capsys, "ask", model, *lines[:3], *options).split("\n")[:-1] == answers[:3]
    typed(monkeypatch, "")
    assert asked(capsys, "ask", model) == ""


def test_ask_for_json(capsys, monkeypatch, model):
    typed(monkeypatch, "The\nfür „alle“\n")
    options = ["--json", "--seed", 3, "--max-new-tokens", 20]
    found = [json.loads(line) for line in asked(capsys, "ask", model, *options).splitlines()]
    assert [row["input"] for row in found] == ["The", "für „alle“"]
    assert all(row.keys() == {"input", "output"} for row in found)
    one = json.loads(asked(capsys, "ask", model, "The", *options))
    assert one == found[0]
    assert one["output"] + "\n" == asked(capsys, "ask", model, "The", *options[1:])


def test_several_answers(capsys, model):
    options = ["--num-return-sequences", 3, "--seed", 3, "--max-new-tokens", 9, "--json"]
    found = [json.loads(line) for line in asked(capsys, "ask", model, "The", "dogs", *options).splitlines()]
    assert [row["input"] for row in found] == ["The"] * 3 + ["dogs"] * 3
    assert len({row["output"] for row in found}) > 2


def test_lines_that_are_not_text(capsys, tmp_path, monkeypatch, model):
    for errors in ("strict", "surrogateescape"):  # the latter is what Python chooses in the C locale
        stdin = io.TextIOWrapper(io.BytesIO(b"fine\nf\xfcr\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr(sys, "stdin", stdin)
        refused(capsys, tmp_path, ["ask", model, "--max-new-tokens", 2], "standard input:2", "UTF-8")
    refused(capsys, tmp_path, ["ask", model, "fine", "f\udcfcr"], "INPUT 2", "UTF-8")
    refused(capsys, tmp_path, ["ask", model, "f\udcfcr"], "INPUT 1", "UTF-8")


def test_a_conversation(model):
    """On a terminal, until Ctrl-D."""
    mine, its = pty.openpty()
    with regard("ask", model, "--max-new-tokens", "5", "--seed", "1", stdin=its) as process:
        os.write(mine, b"The\nfox\n\x04")
        answer, said = process.communicate(timeout=60)
    os.close(mine)
    os.close(its)
    assert process.returncode == 0, said
    assert answer.count("> ") == 3


def test_score(capsys, model, text):
    found = json.loads(asked(capsys, "score", model, text, "--json"))
    assert found.keys() == {"loss", "perplexity", "bits_per_byte"}
    assert 0 < found["bits_per_byte"] < found["loss"] * 2
    lines = asked(capsys, "score", model, text).splitlines()
    assert [line.split() for line in lines] == [[name, f"{value:.4f}"] for name, value in found.items()]


# ------------------------------------------------------------------------------------------ the whole process


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom regard import cli\n"
        "for line in '--help', 'train --help', '--version', 'train --list', 'train writ':\n"
        "    try:\n        cli.main(line.split())\n    except SystemExit:\n        pass\n"
        "print(sorted({'torch', 'numpy', 'rich', 'tokenizers'} & set(sys.modules)), file=sys.stderr)\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert made.stderr.splitlines()[-1] == "[]"
    assert f"regard {__version__}" in made.stdout
    assert "\nwrite " in made.stdout
    for verb in ("train", "ask", "score", "prepare"):
        assert f"\n    {verb} " in made.stdout


def test_a_reader_that_has_had_enough(model):
    """`regard ask MODEL | head -c 1` ends quietly."""
    with regard("ask", model, "The", "--max-new-tokens", "100000") as process:
        assert len(process.stdout.read(1)) == 1
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def opened_by(process, pipe):
    """The pipe to write to, once the process reads from it."""
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
        with opened_by(process, pipe) as file:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(BrokenPipeError):
                while process.poll() is None:
                    file.write(b"there is always more\n")
                    time.sleep(0.05)
            assert process.wait(timeout=60) == 143
        assert "Traceback" not in process.stderr.read()
    assert [p.name for p in Path(tmp_path).iterdir()] == ["pipe"]
