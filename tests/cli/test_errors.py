"""Errors of the command line: one line each, and no files left behind."""

import errno
import os

import pytest

from helpers.commands import PAIR, PICO, call, check_refused, list_tree
from regard.files import atomic

pytestmark = pytest.mark.usefixtures("quick")


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


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (["writ"], ["writ", "write?"]),
        (["none.toml"], ["none.toml"]),
        ([], ["RECIPE", "--list"]),
        (["write", "--resume"], ["--resume", "--out"]),
        (["write", "--set", "model.dmi=8"], ["model.dmi", "model.dim?"]),
        (["write", "--set", "modl.dim=8"], ["modl.dim", "model"]),
        (["write", "--set", "dmi=8"], ["dmi", "dim?"]),
        (["write", "--set", "model.dim"], ["model.dim", "KEY=VALUE"]),
        (["write", "--set", "=8"], ["=8", "KEY=VALUE"]),
        (["write", "--set", "model.dim=1e99"], ["model.dim=1e+99", "too large"]),
        (["write", "--set", "model.dim=2e9"], ["memory", "model.dim"]),
        (["write", "--set", "model.dim=1e18"], ["dim", "at most"]),
        (["write", "--set", "model.context=1e18"], ["context", "at most"]),
        (["write", "--set", "data.vocab=1e12"], ["data", "vocab=1000000000000"]),
        (["write", "--set", "train.lr=inf"], ["train.lr=inf"]),
        (["write", "--set", "train.weight_decay=nan"], ["train.weight_decay=nan", "not a number"]),
        (["write", "--seed", "99999999999999999999"], ["train.seed=99999999999999999999"]),
        (["write", "--minutes", "inf"], ["train.minutes=inf"]),
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
        (["write", ""], ["'': no such file"]),
        (["write", "--stesp", "3"], ["--stesp", "--steps?"]),
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


@pytest.mark.parametrize("line", [["dance"], ["--color"], ["ask"], ["score", "x"], ["prepare", "x"]])
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
