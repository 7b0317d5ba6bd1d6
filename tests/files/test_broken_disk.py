"""Errors of a disk name the file, leave nothing half-written, and a lock that was half-written is free."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from helpers.errors import user_error
from regard import cli
from regard.files import atomic, locks
from regard.files.tensors import read_tensors, write_tensors
from regard.training import machine


def fail(*_):
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("owner", "name"), [(os, "fsync"), (os, "fchmod"), (fcntl, "flock"), (atomic, "is_at")]
)
def test_an_error_of_an_open_file_names_it_and_leaves_nothing(tmp_path, monkeypatch, owner, name):
    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        atomic.write_text(path, "new")
    assert str(path) in caught.value.filename
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_while_a_folder_is_written_names_it(tmp_path):
    with pytest.raises(OSError, match="Input/output error") as caught, atomic.new_folder(tmp_path / "out"):
        fail()
    assert caught.value.filename == str(tmp_path / "out")


def test_an_error_while_training_names_the_run(tmp_path):
    with pytest.raises(OSError, match="Input/output error") as caught, machine.explain_limits(tmp_path):
        fail()
    assert caught.value.filename == str(tmp_path)


def test_an_error_without_a_name_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "demo", fail)
    with pytest.raises(SystemExit) as left:
        cli.main(["demo"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "regard: Input/output error\n"


def test_weights_that_cannot_be_mapped_are_a_line(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    write_tensors(path, {})

    def unable(*_, **__):
        raise RuntimeError("unable to mmap 9688 bytes from file <model.safetensors>: Input/output error (5)")

    monkeypatch.setattr("regard.files.tensors.safe_open", unable)
    user_error(lambda: read_tensors(path), path, "unable to mmap")


@pytest.mark.parametrize("text", ["", "p", "pid", "pid 77", "pid 77 on here, since 2026-01-"])
def test_a_lock_whose_owner_was_cut_off_is_free(tmp_path: Path, text: str) -> None:
    (tmp_path / locks.LOCK).write_text(text)
    with locks.lock_folder(tmp_path, "--out"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["pict", "my notes", "pid 77 on here\n", "pin"])
def test_another_file_in_its_place_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / locks.LOCK).write_text(text)
    with pytest.raises(ValueError, match="not a lock file"), locks.lock_folder(tmp_path, "--out"):
        pass
    assert (tmp_path / locks.LOCK).read_text() == text
