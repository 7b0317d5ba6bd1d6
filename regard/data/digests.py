"""SHA-256 of files, cached as long as a file's size and times are unchanged."""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from regard.errors import UserError
from regard.files import atomic
from regard.files.regular import regular_stat
from regard.files.untrusted import parse_json, read_text

Status = tuple[int, int, int, int]  # size, time of the last change, of the last change of status, inode

MAX_BYTES = 2**30  # a file of `write` has a hundred bytes for each path
FRESH = 2 * 10**9  # nanoseconds: a file that was just written may change again within a tick of the clock

_known: dict[str, tuple[Status, str]] = {}  # path -> its status, and its SHA-256 at that time


def file_status(path: str | Path) -> Status:
    """Return values that change when a file changes."""
    status = regular_stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def file_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, which is read only if it is new or has changed."""
    path = os.path.abspath(path)
    status = file_status(path)
    known = _known.get(path)
    if known is not None and known[0] == status:
        return known[1]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if file_status(path) != status:
        raise UserError(f"{path}: changed while it was read; wait until it is complete, then start again")
    if time.time_ns() - max(status[1:3]) > FRESH:
        _known[path] = status, digest
    return digest


def remember(file: Path) -> dict[str, str]:
    """Load a file of `write` into the cache; return each path's SHA-256. A damaged file is empty."""
    try:
        rows = parse_json(read_text(file, MAX_BYTES))
        digests = {
            str(path): ((int(a), int(b), int(c), int(d)), str(digest)) for path, a, b, c, d, digest in rows
        }
    except (OSError, ValueError, TypeError):
        return {}
    _known.update(digests)
    return {path: digest for path, (_, digest) in digests.items()}


def write(file: Path, digests: Iterable[tuple[str, str]], like: Path | None = None) -> None:
    """Write the SHA-256 and the status of each of these paths; a new file gets the mode of `like`."""
    unknown: Status = (-1, -1, -1, -1)
    rows = []
    for path, digest in digests:
        status, known = _known.get(path, (unknown, digest))
        rows.append([path, *(status if known == digest else unknown), digest])
    atomic.write_text(file, "[" + ",\n".join(json.dumps(row) for row in rows) + "]\n", like)
