"""A folder belongs to one process at a time, until it dies."""

import errno
import fcntl
import os
import re
import signal
from pathlib import Path

import pytest

from helpers.errors import user_error
from helpers.locking import held, start
from regard.files.atomic import new_folder, write_text
from regard.files.locks import LOCK, is_locked, lock_folder


def lock(folder: Path, rank: int = 0) -> None:
    with lock_folder(folder, "--out", rank):
        assert (
            (folder / (f"{LOCK}-{rank}" if rank else LOCK)).read_text().startswith(f"pid {os.getpid()} on ")
        )


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_second_process_learns_who_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(0, tmp_path) as process:
        message = user_error(lambda: lock(tmp_path), tmp_path, f"pid {process.pid} on", "--out")
        assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", message)
        assert names(tmp_path) == [LOCK]
    assert names(tmp_path) == []
    lock(tmp_path)
    assert names(tmp_path) == []
    assert capsys.readouterr().err == ""


def test_a_second_start_in_this_process_learns_it_too(tmp_path: Path) -> None:
    with lock_folder(tmp_path, "--out"):
        user_error(lambda: lock(tmp_path), f"pid {os.getpid()} on")
        assert names(tmp_path) == [LOCK]


def test_a_killed_owner_is_succeeded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(0, tmp_path) as process:
        process.kill()
        process.wait()
        assert names(tmp_path) == [LOCK]
        lock(tmp_path)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"pid {process.pid} on" in said
    assert names(tmp_path) == []


def test_a_worker_that_outlives_the_first_process_holds_it(tmp_path: Path) -> None:
    with held(0, tmp_path) as first, held(1, tmp_path) as worker:
        user_error(lambda: lock(tmp_path), f"pid {first.pid} on")
        first.kill()
        first.wait()
        for _ in range(2):
            user_error(lambda: lock(tmp_path), f"pid {worker.pid} on")
        assert names(tmp_path) == [LOCK, f"{LOCK}-1"]
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        lock(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", [0, "new"])
def test_one_of_ten(tmp_path: Path, kind: str | int) -> None:
    """Nine are refused while the tenth holds it, and leave no trace."""
    folder = tmp_path / "out"
    if kind == 0:
        folder.mkdir()
    processes = [start(kind, folder) for _ in range(10)]
    answers = [process.stdout.readline() for process in processes]  # type: ignore[union-attr]
    assert answers.count("held\n") == 1, answers
    winner = processes[answers.index("held\n")]
    assert sum(f"pid {winner.pid} on" in answer for answer in answers) == 9, answers
    for process in processes:
        assert process.communicate("")[1] == ""
    assert names(tmp_path) == ["out"] * (kind == 0)


def test_a_folder_is_renamed_while_it_is_locked(tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as draft:
        (draft.path / "a.txt").touch()
        draft.publish()
        for again in (lambda: lock(tmp_path / "out"), lambda: new_folder(tmp_path / "out").__enter__()):
            user_error(again, f"pid {os.getpid()} on")
        assert names(tmp_path) == ["out", f"out/{LOCK}", "out/a.txt"]
    assert names(tmp_path) == ["out", "out/a.txt"]


def test_what_is_no_lock_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path, mine = tmp_path / "out" / LOCK, tmp_path / "mine.txt"
    mine.write_text("pid 1 on here, since 2000-01-01 00:00:00\n")
    for make in (
        lambda: path.symlink_to(mine),
        lambda: path.mkdir(),
        lambda: os.mkfifo(path),
        lambda: path.write_text("of another program"),
    ):
        make()
        before = path.lstat()
        user_error(lambda: lock(tmp_path / "out"), path)
        assert path.lstat().st_ino == before.st_ino
        path.rmdir() if path.is_dir() else path.unlink()
    assert mine.read_text().startswith("pid 1")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_filesystem_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """The file is the lock, and a person decides when it is stale."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock(tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / LOCK) in line
    write_text(tmp_path / "text", "whole")
    (tmp_path / "text").unlink()
    assert names(tmp_path) == []
    with lock_folder(tmp_path, "--out"):
        assert is_locked(tmp_path)
        user_error(lambda: lock(tmp_path), f"pid {os.getpid()} on", f"delete {tmp_path / LOCK}")
        assert names(tmp_path) == [LOCK]
    lock(tmp_path)


def test_locks_of_nfs_need_a_file_that_is_open_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def lock_as_nfs_does(handle: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", lock_as_nfs_does)
    with lock_folder(tmp_path, "--out"):
        assert is_locked(tmp_path)
    (tmp_path / LOCK).write_text("pid 999999999 on elsewhere, since 2026-01-01 00:00:00\n")
    assert not is_locked(tmp_path)
