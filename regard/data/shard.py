"""A file of token ids, read window by window."""

import functools
import os
import threading
from pathlib import Path

import numpy as np

from regard.data.digests import file_sha256
from regard.data.reading import record_file
from regard.errors import UserError, first_line
from regard.files.regular import regular_stat

Status = tuple[int, int, int]  # inode, size and time of the last change

OPEN_FILES = 128  # open files of all shards: a large set has more than a process may open


class Shard:
    """The ids of a .npy file, which is read, not mapped: a mapped file that is cut short ends the process.

    Its SHA-256 is checked when it is first read, and again if the file changes.
    """

    def __init__(self, path: Path, dtype: str, tokens: int, sha256: str, vocab: int) -> None:
        self.path, self.dtype, self.tokens = path, np.dtype(dtype), tokens
        self.sha256, self.vocab = sha256, vocab
        self.check_begun = False  # by this thread or another one
        record_file(str(path))
        try:
            self.status = _status(regular_stat(path))
            with open(path, "rb") as file:
                np.lib.format.read_magic(file)
                shape, _, actual = np.lib.format.read_array_header_1_0(file)
                self.offset = file.tell()
        except FileNotFoundError:
            raise UserError(f"{path}: missing; prepare the folder again") from None
        except (OSError, ValueError, EOFError) as error:
            raise error if isinstance(error, UserError) else self._damaged(first_line(error)) from None
        if actual != self.dtype or shape != (tokens,):
            raise self._damaged(f"{actual} {shape} instead of {self.dtype} {(tokens,)}")
        if self.status[1] != self.offset + tokens * self.dtype.itemsize:
            raise self._damaged(f"its size of {self.status[1]:,} bytes does not fit {tokens:,} tokens")

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, index: slice) -> np.ndarray:
        """Return consecutive ids."""
        start, stop, _ = index.indices(self.tokens)
        ids: np.ndarray = self.rows(np.array([start]), max(0, stop - start))[0]
        return ids

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Return the `width` ids from each start, one row each."""
        if not self.check_begun:
            self.check()
        ids = np.empty((len(starts), width), self.dtype)
        try:
            file = self._open()
            counts = [
                file.read_into(row, start)
                for row, start in zip(ids, (self.offset + starts * ids.itemsize).tolist(), strict=True)
            ]
        except OSError as error:
            raise self._changed(first_line(error)) from None
        if any(count != ids.itemsize * width for count in counts):
            raise self._changed("it is shorter")
        if ids.size and (largest := int(ids.max())) >= self.vocab:
            raise self._damaged(f"token {largest} is not in the vocabulary of {self.vocab:,}")
        return ids

    def check(self) -> None:
        """Raise UserError if the file is not the one that `prepare` wrote."""
        self.check_begun = True
        try:
            actual = file_sha256(self.path)
        except OSError as error:
            self.check_begun = False
            raise self._changed(first_line(error)) from None
        if actual != self.sha256:
            self.check_begun = False
            raise self._damaged("its contents do not match the SHA-256 in shards.json")

    def _open(self) -> "_OpenFile":
        file = _open_file(self.path, self.status)
        if (status := _status(os.fstat(file.file.fileno()))) != self.status:
            if status[1] != self.status[1]:
                raise self._changed("its size differs")
            self.check()
            self.status = _status(regular_stat(self.path))
            file = _open_file(self.path, self.status)
        return file

    def _damaged(self, reason: str) -> UserError:
        return UserError(f"{self.path}: damaged ({reason}); prepare the folder again")

    def _changed(self, reason: str) -> UserError:
        return UserError(
            f"{self.path}: changed while it was in use ({reason}); "
            "restore it, or prepare the folder again and begin a new run"
        )


class _OpenFile:
    """An open file that threads may read at any offset; it is closed when it is no longer used."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
        self.lock = threading.Lock()

    def read_into(self, row: np.ndarray, start: int) -> int:
        with self.lock:
            self.file.seek(start)
            return self.file.readinto(row.data)

    def __del__(self) -> None:
        self.file.close()


@functools.lru_cache(OPEN_FILES)
def _open_file(path: Path, status: Status) -> _OpenFile:
    """Open a file; `status` distinguishes a changed file in the cache."""
    return _OpenFile(path)


def _status(status: os.stat_result) -> Status:
    return status.st_ino, status.st_size, status.st_mtime_ns
