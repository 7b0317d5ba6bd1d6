"""The command line: one line per error, no files left behind, and only results on standard output."""

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
from safetensors.torch import load_file

from helpers.runs import checkpoints, rows, same, unmeasured, write_text
from regard import __version__, cli
from regard.files import atomic
from regard.runs import checkpoints as checkpoint
from regard.runs.load import load
from regard.tasks import Answer

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
PICO = ["--set", "model.preset=pico", "--set", "train.device=cpu"]
PAIR = [
    "--set",
    "model.context=23",
    "--set",
    "model.dim=8",
    "--set",
    "model.depth=1",
    "--set",
    "model.heads=2",
]
PAIR += ["--set", "data.tokenizer=char", "--set", "train.batch=17", "--set", "train.device=cpu"]
PAIR += ["--set", "train.lr=0.01", "--set", "train.warmup=5"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    unmeasured(monkeypatch)


@pytest.fixture(autouse=True)
def own_signals():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def text(place):
    return write_text(place / "text.txt")


@pytest.fixture(scope="module")
def model(place, text):
    """A tiny language model, trained by the command."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        unmeasured(patch)
        assert call("train", "write", text, "--out", place / "model", "--steps", 20, *PICO) == 0
    assert out.getvalue() == f"{place / 'model'}\n"
    return place / "model"


WORDS = ["a bag", "bad cabs", "each face", "he fed a dog", "good eggs", "dead bees", "fab cafe"]


@pytest.fixture(scope="module")
def pairs(place):
    path = place / "pairs.tsv"
    path.write_text("".join(f"{a} {b}\t{b}, {a}!\n" for a in WORDS for b in WORDS))
    return path


@pytest.fixture(scope="module")
def translator(place, pairs):
    return pair_model(place / "translator", "translate", pairs)


@pytest.fixture(scope="module")
def chatter(place, pairs):
    more = ["--set", "task.turns=3", "--set", "data.target_tokenizer=char"]
    return pair_model(place / "chatter", "chat", pairs, *more)


def pair_model(out, task, pairs, *more):
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        unmeasured(patch)
        assert call("train", task, pairs, "--out", out, "--steps", 151, *PAIR, *more) == 0
    assert output.getvalue() == f"{out}\n"
    return out


def call(*words):
    """Run a command in this process and return its exit status."""
    with pytest.raises(SystemExit) as left:
        cli.main([str(word) for word in words])
    return left.value.code


def stdout_of(capsys, *words):
    """The standard output of a command that succeeds."""
    capsys.readouterr()
    assert call(*words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def set_stdin(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def regard(*words, **options):
    """Start a command in a process of its own."""
    words = [sys.executable, "-m", "regard", *map(str, words)]
    return subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=ENVIRONMENT, **options)


def list_tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def check_refused(capsys, tmp_path, words, *names):
    """Check that a command fails with one line that has these words, exit status 2, and writes nothing."""
    there = list_tree(tmp_path)
    capsys.readouterr()
    assert call(*words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("regard: ")
    assert output.err.count("\n") == 1, output.err
    for name in names:
        assert str(name) in output.err, output.err
    assert list_tree(tmp_path) == there
    return output.err


# ------------------------------------------------------------------------------------------ mistakes: files

BAD_FILES = {
    "empty.txt": (b"", ["empty.txt", "empty"]),
    "blank.txt": (b" \n\n ", ["blank.txt", "empty"]),
    "binary.txt": (b"MZ\0\0\1\2 text", ["binary.txt:1", "byte"]),
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
    check_refused(capsys, tmp_path, line, *words)


def test_a_line_of_a_hundred_megabytes(capsys, tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"short\n" + b"a" * 100_000_000)
    try:
        line = ["train", "write", path, "--out", tmp_path / "out", "--steps", 1, *PICO]
        check_refused(capsys, tmp_path, line, "long.txt:2", "line")
    finally:
        path.unlink()


def test_bad_data_to_measure_on(capsys, tmp_path, text):
    line = ["train", "write", text, "--valid", tmp_path / "none.txt", "--out", tmp_path / "out", *PICO]
    check_refused(capsys, tmp_path, line, "none.txt")


BAD_PAIRS = {
    "one.tsv": ("a\tb\nonly\n", ["one.tsv:2", "column", "tab"]),
    "three.tsv": ("a\tb\tc\n", ["three.tsv:1", "3", "column"]),
    "blank.tsv": ("\n", ["blank.tsv", "empty"]),
    "half.jsonl": ('{"source": "a"}\n', ["half.jsonl:1", "target"]),
    "lines.txt": ("a\nb\n", ["lines.txt", "two"]),
    "missing.tsv": (None, ["missing.tsv"]),
}


@pytest.mark.parametrize("name", BAD_PAIRS)
@pytest.mark.parametrize("verb", ["translate", "chat", "score"])
def test_bad_pairs(capsys, tmp_path, translator, name, verb):
    content, words = BAD_PAIRS[name]
    if content is not None:
        (tmp_path / name).write_text(content)
    line = ["train", verb, tmp_path / name, "--out", tmp_path / "out", "--steps", 1, *PAIR]
    check_refused(
        capsys, tmp_path, ["score", translator, tmp_path / name] if verb == "score" else line, *words
    )


def test_bad_parallel_files(capsys, tmp_path, translator):
    en, de = tmp_path / "a.en", tmp_path / "a.de"
    en.write_text("one\ntwo\n")
    for data, words in (([en, de], ["a.de", "no such file"]), ([en, en, en], ["a.en", "3", "two"])):
        line = ["train", "translate", *data, "--out", tmp_path / "out", "--steps", 1, *PAIR]
        check_refused(capsys, tmp_path, line, words[0])
        check_refused(capsys, tmp_path, ["score", translator, *data], words[0])
    de.write_text("eins\n")
    line = ["train", "translate", en, de, "--out", tmp_path / "out", "--steps", 1, *PAIR]
    check_refused(capsys, tmp_path, line, "a.en", "2", "a.de", "1")
    check_refused(capsys, tmp_path, ["score", translator, en, de], "a.en", "2", "a.de", "1")


# --------------------------------------------------------------------------------------- mistakes: settings


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (["writ"], ["writ", "write?"]),
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
    check_refused(capsys, tmp_path, ["train", *line], *names)


@pytest.mark.parametrize("line", [[], ["dance"], ["--color"], ["ask"], ["score", "x"], ["prepare", "x"]])
def test_a_bad_command(capsys, tmp_path, line):
    check_refused(capsys, tmp_path, line, "--help")


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
    check_refused(capsys, tmp_path, ["ask", model, "The", *options], *names)


def test_what_is_not_a_model(capsys, tmp_path, text, model):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "file").write_text("text")
    for name in ("none", "empty", "other", "file"):
        check_refused(capsys, tmp_path, ["ask", tmp_path / name, "Hi"], name)
        check_refused(capsys, tmp_path, ["score", tmp_path / name, text], name)
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"):
        bad = tmp_path / f"bad-{name}"
        bad.mkdir()
        for path in model.iterdir():
            if path.is_file():
                (bad / path.name).write_bytes(path.read_bytes())
        (bad / name).write_bytes((model / name).read_bytes()[:40])
        check_refused(capsys, tmp_path, ["ask", bad, "Hi"], bad / name)


def test_a_place_that_cannot_be_written(capsys, tmp_path, text):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "out", tmp_path / ("a" * 300)):
        line = ["train", "write", text, "--out", out, "--steps", 1, *PICO]
        check_refused(capsys, tmp_path, line, str(out)[:60])
        check_refused(capsys, tmp_path, ["prepare", text, "--out", out], str(out)[:60])


def test_a_full_disk(capsys, tmp_path, monkeypatch, text):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "flush", full)
        assert call("train", "write", text, "--out", out, "--steps", 2, *PICO) == 2
    output = capsys.readouterr().err.splitlines()
    assert [line for line in output if line.startswith("regard: ")] == [output[-1]]
    assert str(out) in output[-1]
    assert "No space left" in output[-1]
    assert list_tree(tmp_path) == []


# -------------------------------------------------------------------------------------------------- training


def test_train(capsys, tmp_path, text):
    """Only the folder is on standard output."""
    assert call("train", "write", text, "--out", tmp_path / "out", "--steps", 3, *PICO) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'out'}\n"
    assert "step 3/3" in output.err
    assert call("train", "write", "--out", tmp_path / "out", "--resume") == 0  # finished: nothing to do
    assert checkpoints(tmp_path / "out") == ["step-3"]
    check_refused(capsys, tmp_path, ["train", "write", text, "--out", tmp_path / "out"], "--resume")


def test_train_on_what_ships_with_it(capsys, tmp_path):
    assert call("train", "write", "--out", tmp_path / "out", "--steps", 1, *PICO) == 0
    assert rows(tmp_path / "out")[-1]["valid_loss"] > 0


def test_train_by_a_recipe_of_ones_own(capsys, tmp_path, text):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nkind = "gpt"\npreset = "pico"\n[task]\nname = "write"\n[train]\nsteps = 2\n')
    assert call("train", recipe, text, "--out", tmp_path / "out") == 0
    assert checkpoints(tmp_path / "out") == ["step-2"]


def test_prepare_then_train_is_to_train(capsys, tmp_path, text):
    assert stdout_of(capsys, "prepare", text, "--out", tmp_path / "shards") == f"{tmp_path / 'shards'}\n"
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
        answer, output = process.communicate(timeout=60)
    assert process.returncode == status
    assert answer == ""
    assert "Traceback" not in output
    (last,) = checkpoints(out)
    assert int(last[5:]) >= 3
    assert checkpoint.is_intact(out / "checkpoints" / last)


# -------------------------------------------------------------------------------------------------- asking


def test_ask(capsys, model):
    first = stdout_of(capsys, "ask", model, "The quick", "--seed", 7, "--max-new-tokens", 12)
    assert first.endswith("\n")
    assert 1 < len(first) <= 13
    assert stdout_of(capsys, "ask", model, "The quick", "--seed", 7, "--max-new-tokens", 12) == first
    answers = {
        stdout_of(capsys, "ask", model, "The quick", "--seed", n, "--max-new-tokens", 12) for n in range(5)
    }
    assert len(answers) > 1
    greedy = {stdout_of(capsys, "ask", model, "The", "--temperature", 0, "--max-new-tokens", 9) for _ in "ab"}
    assert len(greedy) == 1


def test_ask_says_nothing_on_standard_error(capsys, model):
    capsys.readouterr()
    call("ask", model, "The quick", "--max-new-tokens", 3)
    assert capsys.readouterr().err == ""


def test_ask_line_by_line(capsys, monkeypatch, model):
    """More lines than one batch; answers keep the order, and an empty line has an answer too."""
    lines = [f"fox {n}" for n in range(70)] + ["", "dogs"]
    options = ["--seed", 3, "--max-new-tokens", 4, "--stop", "\n"]
    set_stdin(monkeypatch, "\n".join(lines) + "\n")
    answers = stdout_of(capsys, "ask", model, *options).split("\n")[:-1]
    assert len(answers) == len(lines)
    for n in (0, 64, 71):
        assert answers[n] + "\n" == stdout_of(capsys, "ask", model, lines[n], *options)
    assert stdout_of(capsys, "ask", model, *lines[:3], *options).split("\n")[:-1] == answers[:3]
    set_stdin(monkeypatch, "")
    assert stdout_of(capsys, "ask", model) == ""


def test_ask_for_json(capsys, monkeypatch, model):
    set_stdin(monkeypatch, "The\nfür „alle“\n")
    options = ["--json", "--seed", 3, "--max-new-tokens", 20]
    rows = [json.loads(line) for line in stdout_of(capsys, "ask", model, *options).splitlines()]
    assert [row["input"] for row in rows] == ["The", "für „alle“"]
    assert all(row.keys() == {"input", "output"} for row in rows)
    one = json.loads(stdout_of(capsys, "ask", model, "The", *options))
    assert one == rows[0]
    assert one["output"] + "\n" == stdout_of(capsys, "ask", model, "The", *options[1:])


def test_several_answers(capsys, model):
    options = ["--num-return-sequences", 3, "--seed", 3, "--max-new-tokens", 9, "--json"]
    rows = [
        json.loads(line) for line in stdout_of(capsys, "ask", model, "The", "dogs", *options).splitlines()
    ]
    assert [row["input"] for row in rows] == ["The"] * 3 + ["dogs"] * 3
    assert len({row["output"] for row in rows}) > 2


def test_lines_that_are_not_text(capsys, tmp_path, monkeypatch, model):
    for errors in ("strict", "surrogateescape"):  # the latter is what Python chooses in the C locale
        stdin = io.TextIOWrapper(io.BytesIO(b"fine\nf\xfcr\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr(sys, "stdin", stdin)
        check_refused(capsys, tmp_path, ["ask", model, "--max-new-tokens", 2], "standard input:2", "UTF-8")
    check_refused(capsys, tmp_path, ["ask", model, "fine", "f\udcfcr"], "INPUT 2", "UTF-8")
    check_refused(capsys, tmp_path, ["ask", model, "f\udcfcr"], "INPUT 1", "UTF-8")


def test_a_conversation(model):
    """Questions from a terminal, until Ctrl-D."""
    mine, its = pty.openpty()
    with regard("ask", model, "--max-new-tokens", "5", "--seed", "1", stdin=its) as process:
        os.write(mine, b"The\nfox\n\x04")
        answer, output = process.communicate(timeout=60)
    os.close(mine)
    os.close(its)
    assert process.returncode == 0, output
    assert answer.count("> ") == 3


# ------------------------------------------------------------------------------------ translating, chatting


def test_train_on_pairs(capsys, tmp_path, pairs):
    """For each kind of model; dropped pairs are reported."""
    odd = tmp_path / "odd.tsv"
    odd.write_text(pairs.read_text() + "a\t\n")
    for kind in ("rnn", "gru", "lstm"):
        settings = [word for word in PAIR if word != "model.heads=2"]
        del settings[settings.index("model.depth=1") + 1]
        line = ["train", "translate", odd, "--out", tmp_path / kind, "--steps", 2, *settings]
        assert call(*line, "--set", f"model.kind={kind}", "--set", "task.forcing=0.5") == 0
        output = capsys.readouterr().err
        assert "empty" in output
        assert "batches" in output
        assert stdout_of(capsys, "ask", tmp_path / kind, "a bag", "--max-new-tokens", 3).count("\n") == 1
    line = ["train", "translate", odd, "--out", tmp_path / "out", *PAIR, "--set", "task.forcing=0.5"]
    check_refused(capsys, tmp_path, line, "task.forcing", "recurrent")


def test_two_vocabularies_are_kept(translator, chatter):
    assert not (translator / "target_tokenizer.json").exists()
    assert (chatter / "target_tokenizer.json").exists()
    one, two = (json.loads((folder / "config.json").read_text()) for folder in (translator, chatter))
    assert "target_vocab" not in one
    assert one["task"]["longest"] == max(len(f"{a} {b}") for a in WORDS for b in WORDS if len(a + b) < 20)
    assert two["task"]["turns"] == 3
    assert two["target_vocab"] != two["vocab"]


def test_a_pipe_keeps_its_order(capsys, monkeypatch, translator):
    """More lines than two blocks, long, short and blank ones."""
    lines = [f"{WORDS[n % 7]} {WORDS[n % 5]}"[: n % 19] if n % 11 else "" for n in range(1300)]
    options = ["--num-beams", 1, "--max-new-tokens", 4]
    set_stdin(monkeypatch, "\n".join(lines) + "\n")
    answers = stdout_of(capsys, "ask", translator, *options).split("\n")[:-1]
    assert len(answers) == 1300
    for line, answer in zip(lines, answers, strict=True):
        assert line.strip() or not answer
    for n in (1, 18, 511, 512, 513, 1023, 1024, 1299):
        assert stdout_of(capsys, "ask", translator, lines[n], *options) == answers[n] + "\n"
    assert len(set(answers)) > 1


class Lines:
    """A long standard input that counts how many lines were read."""

    def __init__(self, count):
        self.count, self.taken = count, 0
        self.buffer = self

    def isatty(self):
        return False

    def __iter__(self):
        while self.taken < self.count:
            self.taken += 1
            yield b"line %d\n" % self.taken


def test_a_pipe_is_held_a_block_at_a_time(monkeypatch, translator):
    """At most one block of lines is read ahead of the answers."""
    lines, most = Lines(20_011), []

    class Out(io.StringIO):
        written = 0

        def write(self, text):
            self.written += text.count("\n")
            return len(text)

    out = Out()
    model = load(translator, "cpu")

    def answers(texts, **options):
        assert len(texts) <= 512
        most.append(lines.taken - out.written)
        return [[Answer(text)] for text in texts]

    monkeypatch.setattr(model, "answers", answers)
    monkeypatch.setattr("regard.runs.load.load", lambda folder: model)
    monkeypatch.setattr(sys, "stdin", lines)
    with contextlib.redirect_stdout(out):
        assert call("ask", translator) == 0
    assert out.written == lines.taken == 20_011
    assert len(most) == 40
    assert max(most) <= 512


def test_answers_with_scores(capsys, monkeypatch, translator):
    set_stdin(monkeypatch, "a bag\n\nbad cabs\n")
    options = ["--num-beams", 4, "--num-return-sequences", 3, "--json", "--max-new-tokens", 6]
    rows = [json.loads(line) for line in stdout_of(capsys, "ask", translator, *options).splitlines()]
    assert [row["input"] for row in rows] == ["a bag"] * 3 + [""] * 3 + ["bad cabs"] * 3
    for row in rows:
        assert row.keys() == {"input", "output"} | ({"score"} if row["input"] else set())
    for answers in (rows[:3], rows[6:]):
        scores = [row["score"] for row in answers]
        assert scores == sorted(scores, reverse=True)
        assert len({row["output"] for row in answers}) == 3
        assert max(scores) < 0
    best = stdout_of(capsys, "ask", translator, "a bag", "bad cabs", *options[:2], *options[5:])
    assert best.split("\n")[:-1] == [rows[0]["output"], rows[6]["output"]]
    texts = stdout_of(capsys, "ask", translator, "a bag", *options[:4], *options[5:])
    assert texts.split("\n")[:-1] == [row["output"] for row in rows[:3]]
    one = stdout_of(capsys, "ask", translator, "a bag", "--json", "--num-beams", 1)
    assert json.loads(one).keys() == {"input", "output"}


def test_prefix(capsys, tmp_path, monkeypatch, translator, model):
    for beams in (1, 4):
        options = ["--num-beams", beams, "--max-new-tokens", 5]
        answer = stdout_of(capsys, "ask", translator, "bad cabs", *options, "--prefix", "cab, fed")
        assert answer.startswith("cab, fed")
        assert answer != "cab, fed\n"
        set_stdin(monkeypatch, "bad cabs\n\na bag\n")
        lines = stdout_of(capsys, "ask", translator, *options, "--prefix", "cab, fed").split("\n")
        assert lines[0] + "\n" == answer
        assert lines[1] == lines[3] == ""
        assert lines[2].startswith("cab, fed")
    check_refused(capsys, tmp_path, ["ask", translator, "a", "--prefix", "a" * 23], "prefix", "23")
    check_refused(capsys, tmp_path, ["ask", model, "The", "--prefix", "a"], "prefix")


def test_two_models_as_one(capsys, tmp_path, pairs, translator, chatter):
    other = ["--set", f"data.tokenizer={translator}/tokenizer.json", "--set", "train.seed=5"]
    pair_model(tmp_path / "other", "translate", pairs, *other)
    options = ["a bag", "--json", "--max-new-tokens", 6]
    answers = [
        json.loads(stdout_of(capsys, "ask", translator, *options, *more))
        for more in ([], ["--with", translator], ["--with", tmp_path / "other"])
    ]
    assert answers[0]["output"] == answers[1]["output"]
    assert answers[0]["score"] == pytest.approx(answers[1]["score"], abs=1e-5)
    assert abs(answers[0]["score"] - answers[2]["score"]) > 1e-4
    several = ["--with", translator, "--with", tmp_path / "other"]
    assert stdout_of(capsys, "ask", tmp_path / "other", "a bag", *several).count("\n") == 1
    check_refused(capsys, tmp_path, ["ask", translator, "a", "--with", chatter], chatter, "task")
    check_refused(capsys, tmp_path, ["ask", translator, "a", "--with", tmp_path / "none"], tmp_path / "none")
    rows = [
        json.loads(stdout_of(capsys, "score", folder, pairs, "--json", "--num-beams", 1, *more))["loss"]
        for folder, more in (
            (translator, []),
            (tmp_path / "other", []),
            (translator, ["--with", tmp_path / "other"]),
        )
    ]
    assert rows[2] < (rows[0] + rows[1]) / 2


def test_score_on_pairs(capsys, tmp_path, pairs, translator, chatter):
    texts = {"bleu", "chrf", "ter", "exact", "signature"}
    few = tmp_path / "few.tsv"
    few.write_text("".join(pairs.read_text().splitlines(keepends=True)[:11]))
    scores = json.loads(stdout_of(capsys, "score", translator, few, "--json"))
    assert scores.keys() == {"loss", "perplexity", "bits_per_byte"} | texts
    lines = stdout_of(capsys, "score", translator, few).splitlines()
    shown = [value if isinstance(value, str) else f"{value:.4f}" for value in scores.values()]
    assert [line.split() for line in lines] == [[k, v] for k, v in zip(scores, shown, strict=True)]
    assert scores["signature"].startswith("nrefs:1|")
    reply = json.loads(stdout_of(capsys, "score", chatter, few, "--json"))
    assert reply.keys() == scores.keys() | {"distinct_1", "distinct_2"}
    other = json.loads(
        stdout_of(capsys, "score", translator, few, "--json", "--num-beams", 1, "--prefix", "bag")
    )
    assert other["loss"] == scores["loss"]
    assert other["chrf"] != scores["chrf"]
    two = ["--num-return-sequences", 2]
    check_refused(capsys, tmp_path, ["score", translator, few, *two], "num_return_sequences=2")


def test_score_against(capsys, tmp_path, pairs, translator, chatter, model, text):
    few = tmp_path / "few.tsv"
    few.write_text("".join(pairs.read_text().splitlines(keepends=True)[:11]))
    options = ["--json", "--num-beams", 1]
    alone = [json.loads(stdout_of(capsys, "score", m, few, *options)) for m in (translator, chatter)]
    scores = json.loads(stdout_of(capsys, "score", translator, few, *options, "--against", chatter))
    for name in ("bleu", "chrf"):
        assert scores[name] == pytest.approx(alone[0][name])
        assert scores[f"{name}_against"] == pytest.approx(alone[1][name])
        assert 0 < scores[f"{name}_p"] <= 1
    same = json.loads(stdout_of(capsys, "score", translator, few, *options, "--against", translator))
    assert same["bleu_p"] == same["chrf_p"] == 1
    assert "bleu_p " in stdout_of(capsys, "score", translator, few, "--against", translator)
    check_refused(capsys, tmp_path, ["score", model, text, "--against", model], "--against")
    check_refused(
        capsys, tmp_path, ["score", translator, few, "--against", tmp_path / "none"], tmp_path / "none"
    )


class Terminal:
    """A terminal where the user types these lines, then Ctrl-D."""

    def __init__(self, monkeypatch, *lines):
        self.lines = iter(lines)
        monkeypatch.setattr("builtins.input", self)
        monkeypatch.setattr(sys, "stdin", self)

    def isatty(self):
        return True

    def __call__(self, prompt):
        assert prompt == "> "
        try:
            return next(self.lines)
        except StopIteration:
            raise EOFError from None


def record_questions(monkeypatch, folder):
    """Load a model and record the questions it gets."""
    heard, model = [], load(folder, "cpu")
    true = model.stream

    def stream(text, **options):
        heard.append((text, options))
        return true(text, **options)

    monkeypatch.setattr(model, "stream", stream)
    monkeypatch.setattr("regard.runs.load.load", lambda folder: model)
    return heard


def test_a_conversation_has_turns(capsys, monkeypatch, chatter):
    heard = record_questions(monkeypatch, chatter)
    lines = ["a bag", "bad cabs", "fab cafe", "/reset", "good eggs", "/seed 5", "each face", " /help", ""]
    Terminal(monkeypatch, *lines, "/seed ²")
    options = ["--temperature", 1, "--max-new-tokens", 4, "--seed", 1]
    capsys.readouterr()
    assert call("ask", chatter, *options) == 0
    output = capsys.readouterr()
    answers = output.out.split("\n")
    assert len(answers) == 6 + 2  # and the end of the line that Ctrl-D was typed in
    questions = [text for text, _ in heard]
    assert questions[0] == "a bag"
    assert questions[1] == f"a bag\n{answers[0]}\nbad cabs"
    assert questions[2] == f"a bag\n{answers[0]}\nbad cabs\n{answers[1]}\nfab cafe"
    assert questions[3] == "good eggs"
    assert questions[4] == f"good eggs\n{answers[3]}\neach face"
    assert questions[5:] == [""]
    assert answers[5] == ""  # a blank line, a blank answer
    assert [options["seed"] for _, options in heard] == [1, 1, 1, 1, 5, 5]
    assert output.err.count("/reset") == 2
    assert output.err.count("\n") == 2


def test_what_was_said_counts(capsys, monkeypatch, chatter):
    """A chat model reads the previous turns; a translator does not."""
    heard = record_questions(monkeypatch, chatter)
    Terminal(monkeypatch, "a bag", "bad cabs")
    assert call("ask", chatter, "--max-new-tokens", 4) == 0
    model = load(chatter)
    assert len(model.task.parts(heard[1][0])[0]) > len(model.task.parts("bad cabs")[0])
    refuse = ["ask", chatter, "--num-return-sequences", 2]
    check_refused(capsys, chatter, refuse, "--num-return-sequences")


def test_a_translator_remembers_nothing(capsys, monkeypatch, translator):
    heard = record_questions(monkeypatch, translator)
    Terminal(monkeypatch, "a bag", "bad cabs", "/quit", "/", "a / b")
    assert call("ask", translator, "--max-new-tokens", 4) == 0
    assert [text for text, _ in heard] == ["a bag", "bad cabs", "/", "a / b"]
    assert "/reset" in capsys.readouterr().err


def test_score(capsys, model, text):
    scores = json.loads(stdout_of(capsys, "score", model, text, "--json"))
    assert scores.keys() == {"loss", "perplexity", "bits_per_byte"}
    assert 0 < scores["bits_per_byte"] < scores["loss"] * 2
    lines = stdout_of(capsys, "score", model, text).splitlines()
    assert [line.split() for line in lines] == [[name, f"{value:.4f}"] for name, value in scores.items()]


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


def test_look_refuses(capsys, tmp_path, translator, model):
    svg = ["--save", tmp_path / "a.svg"]
    for words, names in (
        ([translator, "a bag", "a cab"], ["one INPUT", "--save .svg"]),
        ([translator, "a bag", "--save", tmp_path / "a.pdf"], ["a.pdf", ".svg", ".png"]),
        ([translator, "a bag", "--save", tmp_path / "a.html", "--patch", 2], ["--patch", "click"]),
        ([translator, "a bag", "--save", tmp_path / "a.html", "--view", "wal"], ["wal", "attention", "walk"]),
        ([translator, " ", "--save", tmp_path / "a.html"], ["nothing"]),
        ([translator, "a bag", "--save", tmp_path / "none" / "a.svg"], ["none", "No such file"]),
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
