"""Write files and folders atomically: under a temporary name, flushed to disk, then renamed."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from regard.errors import UserError


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. It replaces `path` on success and is removed after an error."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        flush(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(folder: Path, argument: str = "DIR", suffix: str = "partial") -> Iterator[Path]:
    """Yield a temporary folder to write to. It becomes `folder` on success and is removed after an error.

    `folder` may exist if it is empty; otherwise raise a UserError that names the command-line `argument`.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} already exists; delete it or choose another {argument}")
    partial = folder.with_name(f".{folder.name}.{suffix}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _explain(folder, argument):
            partial.mkdir(parents=True)
        yield partial
        with _explain(folder, argument):
            if folder.is_dir():
                folder.rmdir()  # empty, or another process has just written to it
            os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    flush(folder.parent)


@contextlib.contextmanager
def _explain(folder: Path, argument: str) -> Iterator[None]:
    """Turn the errors of creating a folder where something else is into UserErrors."""
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


def flush(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
