"""Lock a folder for one process. The kernel drops the lock when the process dies, so none is left behind.

The lock file names its owner: the lock decides who may write, and the text is for messages.
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from regard.errors import UserError, os_reason
from regard.files.regular import list_matching

LOCK = ".regard.lock"  # other processes of the same run have -RANK behind it
OWNER = re.compile(r"pid (\d{1,20}) on (\S{1,255}), since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n")
LOOKS = 20  # for the name of an owner, which has just begun to hold a lock; 50 ms pass between two
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # errors of network filesystems


@contextlib.contextmanager
def lock_folder(folder: Path, argument: str, rank: int = 0, name: Path | None = None) -> Iterator[bool]:
    """Hold the lock of an existing folder; yield whether a dead process had left one.

    Raise UserError that names the owner if a living process holds it, or one of the other ranks of its run.
    The folder may be renamed while it is locked; `name` is the one it will have, for messages.
    """
    name = name or folder
    inside = os.open(folder, os.O_RDONLY)  # finds the file even if the folder has been renamed
    try:
        file = f"{LOCK}-{rank}" if rank else LOCK
        advice = f"wait for it, stop it, or choose another {argument}"
        handle, left_by = _acquire(folder / file, name, advice)
        keep_file = bool(left_by)  # if another process of that run is alive
        try:
            for other in () if rank else list_matching(folder, f"{LOCK}-*"):
                release(_acquire(other, name, advice)[0])
                other.unlink()
            keep_file = False
            if left_by:
                sys.stderr.write(f"{name}: taking over from {left_by}, which is gone\n")
            _write_owner(handle)
            yield bool(left_by)
        finally:
            if not keep_file and is_at(handle, file, inside):
                os.unlink(file, dir_fd=inside)
            release(handle)
    finally:
        os.close(inside)


def check_unlocked(folder: Path, argument: str) -> None:
    """Raise UserError that names the owner if a process holds the lock of a folder."""
    if os.path.lexists(folder / LOCK):
        with lock_folder(folder, argument):
            pass


def _acquire(path: Path, name: Path, advice: str) -> tuple[int, str]:
    """Lock a file; return its handle and the owner that it still names, if any."""
    while True:
        with contextlib.ExitStack() as stack:
            handle, is_new = _open(path)
            stack.callback(os.close, handle)
            has_lock = try_lock(handle)
            if has_lock is None:
                _rely_on_file(path, name, handle, is_new)
            elif not has_lock:
                raise UserError(f"{name} is in use by {_wait_for_owner(handle)}; {advice}")
            if is_at(handle, path):  # or its owner has removed or renamed it just now
                owner = "" if is_new else _read_owner(handle, path)
                stack.pop_all()
                return handle, owner


def try_lock(handle: int, wait: bool = False, shared: bool = False) -> bool | None:
    """Lock an open file. Return False if another process has, and None if the filesystem has no locks."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in NO_LOCKS:
            raise
        return None
    return True


def release(handle: int) -> None:
    """Unlock and close a file. A forked process that has inherited it does not keep the lock."""
    with contextlib.suppress(OSError):  # there are no locks here
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _rely_on_file(path: Path, name: Path, handle: int, is_new: bool) -> None:
    """Without locks, the existence of the file is the lock; only a person can decide that it is stale."""
    if not is_new:
        owner = _read_owner(handle, path) or "another process"
        raise UserError(
            f"{name} was in use by {owner}, and this filesystem has no locks that show "
            f"whether it still is; if it is not, delete {path}"
        )
    sys.stderr.write(f"{name}: this filesystem has no locks; if regard is killed, delete {path}\n")


def _open(path: Path) -> tuple[int, bool]:
    """Open or create a lock file; return its handle and whether it is new."""
    try:
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except FileNotFoundError:  # the folder is gone
        raise
    except OSError as e:
        raise UserError(f"{path}: cannot be locked ({os_reason(e)})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{path}: not a lock file of regard; remove it")
    return handle, False


def is_at(handle: int, path: str | Path, folder: int | None = None) -> bool:
    """Return whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _write_owner(handle: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"pid {os.getpid()} on {socket.gethostname()}, since {since}\n".encode(), 0)


def _read_owner(handle: int, path: Path | None = None) -> str:
    """Return the owner that a lock file names. Raise UserError if the file has other contents."""
    text = os.pread(handle, 500, 0).decode(errors="replace").strip("\0")
    is_cut = not text.endswith("\n") and text[:4] == "pid "[: len(text)]  # killed while it wrote this
    if path is not None and not is_cut and not OWNER.fullmatch(text):
        raise UserError(f"{path}: not a lock file of regard; remove it")
    return text.strip()


def _wait_for_owner(handle: int) -> str:
    """Return the owner of a lock that is held. It may not have written its name yet."""
    for _ in range(LOOKS):
        match = OWNER.fullmatch(_read_owner(handle) + "\n")
        if match and (match[2] != socket.gethostname() or _is_alive(int(match[1]))):
            return match[0].strip()
        time.sleep(0.05)
    return "another process"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


def is_locked(folder: Path) -> bool:
    """Return whether a living process holds the lock of a folder. Nothing is changed."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it does not, or it can't be determined
        return False
    try:
        match = OWNER.fullmatch(os.pread(handle, 500, 0).decode(errors="replace").strip("\0"))
        if match and match[2] == socket.gethostname() and not _is_alive(int(match[1])):
            return False
        return not try_lock(handle, shared=True)  # NFS refuses other locks of a file that is open for reading
    finally:
        release(handle)
