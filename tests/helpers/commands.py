"""Run commands in this process or in one of their own."""

import contextlib
import io
import os
import sys

import pytest

from helpers.forking import Process
from helpers.runs import unmeasured
from regard import cli

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
PICO = ["--set", "model.preset=pico", "--set", "train.device=cpu"]
PAIR_SETTINGS = (
    *("model.context=23", "model.dim=8", "model.depth=1", "model.heads=2", "data.tokenizer=char"),
    *("train.batch=17", "train.device=cpu", "train.lr=0.01", "train.warmup=5"),
)
PAIR = [word for setting in PAIR_SETTINGS for word in ("--set", setting)]
WORDS = ["a bag", "bad cabs", "each face", "he fed a dog", "good eggs", "dead bees", "fab cafe"]


def train_model(out, *words):
    """Train a model by the command, which prints its folder; return it."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        unmeasured(patch)
        assert call("train", *words, "--out", out) == 0
    assert output.getvalue() == f"{out}\n"
    return out


def pair_model(out, task, pairs, *more):
    """Train a model on pairs of texts."""
    return train_model(out, task, pairs, "--steps", 151, *PAIR, *more)


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
    return Process("-m", "regard", *words, env=ENVIRONMENT, **options)


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
