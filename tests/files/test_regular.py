"""What is not a regular file is refused, in one line, before it is opened."""

import errno
import os
import socket
from pathlib import Path

import pytest

from helpers.errors import user_error
from regard.files.atomic import flush_tree
from regard.files.regular import check_name, list_matching, regular_stat
from regard.files.tensors import read_tensors, write_tensors
from regard.runs import checkpoints
from regard.runs.adapter import digest_weights


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.safetensors", "a.safetensors", "a.json"):
        (tmp_path / name).write_bytes(b"abc")
    assert list_matching(tmp_path, "*.safetensors") == [tmp_path / f"{n}.safetensors" for n in "ab"]
    assert list_matching(tmp_path / "missing", "*") == list_matching(tmp_path / "a.json", "*") == []
    assert digest_weights(str(tmp_path)).keys() == {"a.safetensors", "b.safetensors"}

    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    for read in (
        digest_weights,
        lambda path: list_matching(Path(path), "*"),
        lambda path: flush_tree(Path(path)),
    ):
        with pytest.raises(PermissionError):
            read(str(tmp_path))


def test_only_files_and_links_to_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert regular_stat(tmp_path / "file").st_size == regular_stat(tmp_path / "link").st_size == 3
    (tmp_path / "loop").symlink_to("loop")
    user_error(lambda: regular_stat(tmp_path / "loop"), tmp_path / "loop", "itself")
    (tmp_path / "dangling").symlink_to("nowhere")
    user_error(lambda: regular_stat(tmp_path / "dangling"), tmp_path / "dangling", "nowhere")
    os.mkfifo(tmp_path / "pipe")
    user_error(lambda: regular_stat(tmp_path / "pipe"), tmp_path / "pipe", "a pipe")
    user_error(lambda: regular_stat("/dev/null"), "/dev/null", "a device")
    user_error(lambda: regular_stat(tmp_path), tmp_path, "a folder")
    with pytest.raises(FileNotFoundError):
        regular_stat(tmp_path / "missing")


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its path may have few characters only
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        user_error(lambda: regular_stat("socket"), "a socket")


def test_names_that_are_not_utf8() -> None:
    check_name("é")
    user_error(lambda: check_name(os.fsdecode(b"a\xff.txt")), "not UTF-8", "rename")


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_pipe_in_a_checkpoint_is_damage(tmp_path: Path, name: str) -> None:
    path = checkpoints.save(tmp_path, 3, {}, {}, {})
    assert checkpoints.newest(tmp_path) == (path, [])
    (path / name).unlink()
    os.mkfifo(path / name)
    assert checkpoints.newest(tmp_path) == (None, [path])


def test_a_pipe_instead_of_tensors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {})
    read_tensors(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    user_error(lambda: read_tensors(tmp_path / "pipe"), tmp_path / "pipe", "a pipe")
