"""Files and folders that are complete or absent: a failure leaves what was there before."""

import os
from pathlib import Path

import pytest

from helpers.disks import full
from helpers.errors import user_error
from regard.files import atomic
from regard.files.atomic import atomic_file, atomic_folder


def test_a_file_is_replaced_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def half() -> None:
        with atomic_file(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "old"
    with monkeypatch.context() as m:
        for name in ("fsync", "replace"):
            m.setattr(os, name, full)
            with pytest.raises(OSError, match="No space"):
                atomic.write_text(path, "new")
            m.undo()
            assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    atomic.write_text(path, "neu é")
    assert path.read_text("utf-8") == "neu é"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def write_folder(folder: Path, **options: str) -> None:
    with atomic_folder(folder, **options) as partial:
        (partial / "a.txt").write_text("new")


def test_a_folder_is_complete_or_absent(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"

    def half() -> None:
        with atomic_folder(folder) as partial:
            (partial / "a.txt").write_text("half")
            assert not folder.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert list((tmp_path / "above").iterdir()) == []
    write_folder(folder)
    assert [p.name for p in folder.iterdir()] == ["a.txt"]
    assert [p.name for p in folder.parent.iterdir()] == ["folder"]


def test_what_a_killed_process_left_is_not_used(tmp_path: Path) -> None:
    (tmp_path / ".folder.partial").mkdir()
    (tmp_path / ".folder.partial" / "old.txt").touch()
    (tmp_path / "folder").mkdir()  # an empty folder may be there
    write_folder(tmp_path / "folder")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["a.txt"]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    user_error(lambda: write_folder(tmp_path, argument="--out"), tmp_path, "--out")
    user_error(lambda: write_folder(file), file, "DIR")
    user_error(lambda: write_folder(file / "below"), file / "below", "DIR")
    with pytest.raises(OSError, match="mine"), atomic_folder(tmp_path / "new"):
        raise FileExistsError("mine")  # an error of the caller passes through
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "old"


def test_a_folder_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_folder(tmp_path / "folder"):
            (tmp_path / "folder").mkdir()
            (tmp_path / "folder" / "other.txt").touch()

    user_error(write, tmp_path / "folder", "another process")
    assert [p.name for p in tmp_path.rglob("*")] == ["folder", "other.txt"]
