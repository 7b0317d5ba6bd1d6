"""Write files and folders atomically: under a temporary name, flushed to disk, then renamed."""

import contextlib
import errno
import functools
import operator
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.files.locks import LOCK, check_unlocked, is_at, lock_folder, release, try_lock

DRAFT = ".partial"  # in a folder that exists already
OF_DISKS = "lost+found"  # what an empty disk contains

_denied: ContextVar[int] = ContextVar("denied", default=0)  # bits of the mode that new files don't get


@contextlib.contextmanager
def as_private_as(paths: Iterable[Path]) -> Iterator[None]:
    """Make new files and folders readable only for those who can read every one of these files."""
    before = _denied.set(_denied.get() | functools.reduce(operator.or_, map(_denied_by, paths), 0))
    try:
        yield
    finally:
        _denied.reset(before)


def _denied_by(path: Path) -> int:
    """The bits of the classes, group and others, that can't read a file or can't reach it in its folder."""
    readable, reachable = path.stat().st_mode, path.parent.stat().st_mode
    return sum(0o7 << shift for shift in (0, 3) if not (readable >> shift & 0o4 and reachable >> shift & 0o1))


def _deny(path: Path) -> None:
    if _denied.get():  # else nothing is touched
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_denied.get())


# Files


@contextlib.contextmanager
def atomic_file(path: Path, like: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to. It replaces `path` on success and is removed after an error.

    The mode of an existing file is kept; a new one gets that of the file `like`, if there is one, or what
    the umask and `as_private_as` leave. Processes that write the same file wait for each other.
    """
    partial = path.with_name(f".{path.name}.partial")
    with name_errors(path):
        yield from _write_and_rename(path, partial, like)


def _write_and_rename(path: Path, partial: Path, like: Path | None) -> Iterator[Path]:
    known = path if like is None or path.exists() else like
    try:
        mode = stat.S_IMODE(known.stat().st_mode)
    except FileNotFoundError:
        mode = None
    handle = _create_locked(partial, 0o666 & ~_denied.get() if mode is None else 0o600)
    try:
        if mode is not None:  # from the first byte on: its content may be private
            os.fchmod(handle, mode | stat.S_IRUSR | stat.S_IWUSR)
        yield partial
        flush(partial)
        if mode is not None:
            partial.chmod(mode)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        release(handle)
    flush(path.parent)


def _create_locked(path: Path, mode: int) -> int:
    """Create a file and lock it, once no other process writes to it; return its handle."""
    while True:
        is_new = True
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            is_new = False
            try:
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            except OSError as e:
                if e.errno != errno.ELOOP:
                    raise
                path.unlink()  # a link; its target stays unchanged
                continue
        try:
            try_lock(handle, wait=True)
            if is_at(handle, path):
                if is_new:
                    return handle
                path.unlink()  # the process that wrote it died
        except BaseException:
            if is_new:
                path.unlink(missing_ok=True)
            release(handle)
            raise
        release(handle)


@contextlib.contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Add the path to errors of the system that lack it, such as errors of writing to an open file, or that
    name the draft; also name a missing folder."""
    try:
        yield
    except OSError as e:
        drafted = str(path.with_name(f".{path.name}.partial"))
        if e.errno is not None and e.filename in (None, drafted):
            e.filename = str(path.parent if e.errno == errno.ENOENT and not path.parent.exists() else path)
        raise


def write_text(path: Path, text: str, like: Path | None = None) -> None:
    with atomic_file(path, like) as partial:
        partial.write_text(text, encoding="utf-8")


def is_missing(path: Path) -> bool:
    """Return whether nothing has this name; unlike `exists`, raise the error if that cannot be determined."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


# Folders


@dataclass
class Draft:
    """A folder that is being written."""

    folder: Path  # its final place
    path: Path  # where to write until then
    argument: str
    is_published: bool = False

    def publish(self, last: str = "") -> None:
        """Flush the draft and give it its name; in a folder that existed, the file `last` is the last one."""
        if _denied.get():
            for path in (p for p in self.path.rglob("*") if not p.name.startswith(LOCK)):
                _deny(path)
        flush_tree(self.path)
        with _explain(self.folder, self.argument):
            if self.path.parent == self.folder:
                _move_up(self.path, last)
            else:
                os.rename(self.path, self.folder)
        self.is_published = True
        flush(self.folder if self.path.parent == self.folder else self.folder.parent)


def _move_up(folder: Path, last: str) -> None:
    entries = sorted(folder.iterdir(), key=lambda p: (p.name == last, p.name))
    for entry in entries:
        if not is_missing(folder.parent / entry.name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder.parent / entry.name))
    for entry in entries:
        os.rename(entry, folder.parent / entry.name)
    folder.rmdir()


@contextlib.contextmanager
def atomic_folder(folder: Path, argument: str = "DIR") -> Iterator[Path]:
    """Yield a temporary folder to write to. It becomes `folder` on success and is removed after an error."""
    with new_folder(folder, argument) as draft:
        yield draft.path
        draft.publish()


@contextlib.contextmanager
def new_folder(folder: Path, argument: str = "DIR") -> Iterator[Draft]:
    """Lock a folder that is missing or empty; yield a draft of it, which is removed unless it is published.

    Raise a UserError that names the command-line `argument` if the folder is not empty, or if another
    process writes there. An empty folder is used in place: it may be a disk, and its mode is kept.
    """
    with name_errors(folder), contextlib.ExitStack() as stack:
        home, was_left, created = _lock_home(stack, folder, argument)
        in_place = home == folder
        draft = Draft(folder, home / DRAFT if in_place else home, argument)
        leftovers = _contents(draft.path)
        if leftovers and not was_left:
            raise UserError(f"{draft.path} is left by an interrupted command; delete it if you don't need it")
        for path in leftovers:
            remove(path)
        draft.path.mkdir(exist_ok=True)
        _deny(draft.path)  # what other libraries write into it is out of reach
        try:
            yield draft
        finally:
            if not draft.is_published:
                for path in [draft.path] if in_place else _contents(draft.path):
                    remove(path)
            elif not in_place:
                created[-1] = folder


def _lock_home(stack: contextlib.ExitStack, folder: Path, argument: str) -> tuple[Path, bool, list[Path]]:
    """Lock an empty folder, or the place of a draft of a missing one.

    Return the folder that was locked, whether a dead process had locked it, and the folders that were
    created, to remove them if they are empty in the end.
    """
    for _ in range(100):
        check_empty(folder, argument)
        home = draft_home(folder)
        with contextlib.ExitStack() as attempt, _explain(folder, argument):
            created: list[Path] = []
            attempt.callback(remove_empty, created)
            try:
                created += make_folders(home)
                if home != folder and home not in created:
                    created.append(home)
                was_left = attempt.enter_context(lock_folder(home, argument, name=folder))
            except FileNotFoundError:  # removed by a process that ended just now
                continue
            check_empty(folder, argument, is_locked=home == folder)
            if draft_home(folder) == home:
                stack.push(attempt.pop_all())
                return home, was_left, created
    raise UserError(f"{folder} appears and disappears; choose another {argument}")


def draft_home(folder: Path) -> Path:
    """Return where a new folder is locked and drafted: inside it if it exists, otherwise beside it."""
    return folder if folder.is_dir() else folder.with_name(f".{folder.name}.partial")


def _contents(folder: Path) -> list[Path]:
    paths = folder.iterdir() if folder.is_dir() else ()
    return [path for path in paths if not path.name.startswith(LOCK)]


def check_empty(folder: Path, argument: str, is_locked: bool = False) -> None:
    """Raise UserError unless the folder is missing or empty; `is_locked`: by this process."""
    if is_missing(folder):
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another {argument}")
    if any(path.name not in (DRAFT, OF_DISKS) for path in _contents(folder)):
        if not is_locked:
            check_unlocked(folder, argument)
        raise UserError(
            f"{folder} exists and is not empty; choose another {argument}, or delete it if you don't need it"
        )


def make_folders(folder: Path) -> list[Path]:
    """Create a folder and its parents, flushed to disk; return those that were missing, outermost first."""
    created: list[Path] = []
    try:
        for path in reversed([p for p in (folder, *folder.parents) if not p.is_dir()]):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                created.append(path)
                flush(path.parent)
    except BaseException:
        remove_empty(created)
        raise
    return created


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders if they are empty; the outermost comes first."""
    for path in reversed(folders):
        with contextlib.suppress(OSError):  # not empty, or gone
            path.rmdir()


def remove(path: Path) -> None:
    """Remove a file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _explain(folder: Path, argument: str) -> Iterator[None]:
    """Turn errors of creating a folder where something else exists into UserErrors."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
            reason = "was created by another process just now"
        elif e.errno == errno.ENOTDIR:
            reason = "is a file, or inside one"
        else:
            raise
        raise UserError(f"{folder} {reason}; choose another {argument}") from None


# The disk


def flush(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _raise(error: OSError) -> None:
    raise error


def flush_tree(folder: Path) -> None:
    """Write everything in a folder to the disk."""
    for parent, _, names in os.walk(folder, topdown=False, onerror=_raise):
        for name in names:
            flush(Path(parent, name))
        flush(Path(parent))
