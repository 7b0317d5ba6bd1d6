"""Refuse anything but regular files before opening them: a pipe would block, and a device may never end."""

import errno
import os
import stat
from fnmatch import filter as matching_names
from pathlib import Path

from regard.errors import UserError

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def check_name(path: str | Path) -> None:
    """Raise UserError if a name is not UTF-8: recipes, model cards and results could not contain it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{str(path)!a}: the name is not UTF-8; rename it"
        ) from None  # ASCII: it can be printed


def list_matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match, in order; none if the folder is missing.

    `Path.glob` takes a folder that can't be read for an empty one; here the error is raised.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(matching_names(names, pattern))]


def regular_stat(path: str | Path) -> os.stat_result:
    """Return the status of a regular file; links are followed.

    Raise UserError for anything else and for a link that leads nowhere, and OSError as `os.stat` does.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: a symbolic link that leads back to itself; remove it") from None
        if error.errno == errno.ENOENT and os.path.islink(path):
            raise UserError(
                f"{path}: a symbolic link to {os.readlink(path)}, which is missing; remove it or restore that"
            ) from None
        raise
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise UserError(f"{path}: {kind}, not a file; replace or remove it")
    return status
