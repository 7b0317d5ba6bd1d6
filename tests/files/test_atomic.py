"""Files and folders that are complete or absent: a failure leaves what was there before."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.disks import full
from helpers.errors import user_error
from helpers.locking import held
from regard.files import atomic
from regard.files.atomic import DRAFT, atomic_file, atomic_folder
from regard.files.locks import LOCK


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


def test_errors_name_the_file_not_its_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *more: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with pytest.raises(FileNotFoundError) as missing, atomic_file(tmp_path / "none" / "a.svg"):
        pass
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError) as refused, atomic_file(tmp_path / "a.svg"):
        pass
    assert missing.value.filename == str(tmp_path / "none")
    assert refused.value.filename == str(tmp_path / "a.svg")


def test_a_folder_is_complete_or_absent(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"

    def half() -> None:
        with atomic_folder(folder) as partial:
            (partial / "a.txt").write_text("half")
            assert not folder.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert list(tmp_path.iterdir()) == []
    write_folder(folder)
    assert [p.name for p in folder.iterdir()] == ["a.txt"]
    assert [p.name for p in folder.parent.iterdir()] == ["folder"]


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


# Other processes


def test_what_a_killed_process_left_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, home = tmp_path / "folder", tmp_path / ".folder.partial"
    with held("new", folder) as process:
        user_error(lambda: write_folder(folder, argument="--out"), f"pid {process.pid} on", "--out")
        assert sorted(p.name for p in home.iterdir()) == [LOCK, "half.txt"]
        process.kill()
        process.wait()
        write_folder(folder)
    assert f"pid {process.pid} on" in capsys.readouterr().err
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == ["folder", "folder/a.txt"]


@pytest.mark.parametrize("exists", [False, True])
def test_what_nobody_is_known_to_have_left_stays(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "folder"
    place = folder / DRAFT if exists else tmp_path / ".folder.partial"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("years of work")
    user_error(lambda: write_folder(folder), place, "delete")
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["thesis.txt"]


def test_two_that_write_the_same_file_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    reader, writer = os.pipe()
    with atomic_file(path) as partial:
        partial.write_text("mine")
        pid = os.fork()
        if pid == 0:
            os.write(writer, b"x")
            atomic.write_text(path, "other")
            os._exit(0)
        os.read(reader, 1)
        assert partial.read_text() == "mine"
    assert os.waitpid(pid, 0)[1] == 0
    assert path.read_text() == "other"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / ".a.txt.partial").symlink_to(tmp_path / "mine.txt")
    atomic.write_text(tmp_path / "a.txt", "new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"mine.txt": "mine", "a.txt": "new"}


# Modes, and folders that exist


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o027)
    yield
    os.umask(old)


@pytest.mark.usefixtures("umask")
def test_modes_are_kept_and_new_ones_follow_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    (tmp_path / ".a.txt.partial").touch(0o666)  # left by a killed process
    atomic.write_text(path, "old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for mode in (0o600, 0o666, 0o400):
        path.chmod(mode)
        with atomic_file(path) as partial:
            assert stat.S_IMODE(partial.stat().st_mode) == mode | 0o600
            partial.write_text("new")
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_an_empty_folder_is_used_in_place(tmp_path: Path) -> None:
    """It may be a disk, which can't be renamed."""
    folder = tmp_path / "disk"
    (folder / "lost+found").mkdir(parents=True)
    folder.chmod(0o710)
    before = folder.stat()

    def fail() -> None:
        with atomic_folder(folder) as partial:
            (partial / "a.txt").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in folder.iterdir()] == ["lost+found"]
    with atomic_folder(folder) as partial:
        (partial / "a.txt").touch()
        (partial / "b").mkdir()
        (partial / "b" / "c.txt").touch()
        assert not (folder / "a.txt").exists()
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt", "b", "lost+found"]
    assert (folder / "b" / "c.txt").exists()
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)
    user_error(lambda: write_folder(folder), folder, "not empty")


def test_a_file_that_appears_in_an_empty_folder_stays(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_folder(tmp_path) as partial:
            (partial / "a.txt").write_text("new")
            (partial / "0.txt").write_text("new")
            (tmp_path / "a.txt").write_text("mine")

    user_error(write, tmp_path, "another process")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "mine"}


# The order in which things reach the disk


@pytest.fixture
def touches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is flushed and renamed, by name."""
    calls: list[tuple[str, str]] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def noted(kind: str, true: Any) -> Any:
        def call(source: Path, target: Path) -> None:
            calls.append((kind, f"{Path(source).name} -> {Path(target).name}"))
            true(source, target)

        return call

    def flush(handle: int) -> None:
        path = next(p for p in tracked(handle) if os.path.samestat(p.stat(), os.fstat(handle)))
        calls.append(("fsync", path.name))
        fsync(handle)

    def tracked(handle: int) -> Iterator[Path]:
        yield from (ROOT[0], *ROOT[0].rglob("*"))

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", noted("replace", replace))
    monkeypatch.setattr(os, "rename", noted("rename", rename))
    return calls


ROOT: list[Path] = []


def test_a_file_is_flushed_then_renamed_then_its_folder_is_flushed(
    tmp_path: Path, touches: list[tuple[str, str]]
) -> None:
    ROOT[:] = [tmp_path]
    atomic.write_text(tmp_path / "a", "new")
    assert touches == [("fsync", ".a.partial"), ("replace", ".a.partial -> a"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_is_flushed_then_renamed_then_its_parent_is_flushed(
    tmp_path: Path, touches: list[tuple[str, str]], exists: bool
) -> None:
    ROOT[:] = [tmp_path]
    if exists:
        (tmp_path / "out").mkdir()
    with atomic_folder(tmp_path / "out") as partial:
        (partial / "a").touch()
        (partial / "b").mkdir()
        (partial / "b" / "c").touch()
        touches.clear()
    (moves := [i for i, (kind, _) in enumerate(touches) if kind == "rename"]).sort()
    assert {name for _, name in touches[: moves[0]]} >= {"a", "b", "c", partial.name}
    assert touches[moves[-1] + 1 :] == [("fsync", "out" if exists else tmp_path.name)]
