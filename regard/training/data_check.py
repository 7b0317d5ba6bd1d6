"""Check in the background that a resumed run has its original data.

The fingerprint is a SHA-256 of everything that training sees, in its order. It is computed while training
begins, and compared with the checkpoint's before any file is overwritten.
"""

import contextlib
import os
import threading
from pathlib import Path

from regard.data import Corpus, digests
from regard.errors import UserError
from regard.runs.layout import DIGESTS, published
from regard.training import distributed

Fingerprint = dict[str, str]  # of "train" and "valid"


class DataCheck:
    """The fingerprint of a corpus, taken by a thread in the first process of each machine."""

    def __init__(self, folder: Path, corpus: Corpus) -> None:
        self.folder, self.corpus = folder, corpus
        self.fingerprint: Fingerprint = {}
        self.expected: Fingerprint | None = None  # the checkpoint's
        self.error: BaseException | None = None  # the error that stopped the thread
        self.earlier = digests.remember(folder / DIGESTS)
        self.digests: dict[str, str] = {}
        self.thread = threading.Thread(target=self._run, daemon=True)  # a second Ctrl-C need not wait for it
        if distributed.LOCAL == 0:
            self.thread.start()

    def _run(self) -> None:
        try:
            sides = {"train": self.corpus.train, "valid": self.corpus.valid}
            self.fingerprint = {name: d.fingerprint() for name, d in sides.items() if d is not None}
            self.digests = digest_files(self.corpus.files)
        except BaseException as error:  # raised in the main thread, by `problem`
            self.error = error

    def wait(self, seconds: float | None = None) -> None:
        if distributed.LOCAL == 0:
            self.thread.join(seconds)

    def is_done(self) -> bool:
        return not self.thread.is_alive()

    def problem(self) -> BaseException | None:
        """Return the problem with the data, if one is known by now."""
        if distributed.LOCAL or not self.is_done():
            return None
        if self.error is None and self.expected not in (None, self.fingerprint):
            return UserError(explain(self.folder, self.earlier, self.digests))
        return self.error

    def save(self) -> None:
        """Write the SHA-256 of the files to the run folder, if they are missing there."""
        if self.digests != self.earlier:
            digests.write(self.folder / DIGESTS, self.digests.items(), like=published(self.folder))
            self.earlier = self.digests


def digest_files(paths: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that still exists, which serve to name a file that changed."""
    known = {}
    for path in map(os.path.abspath, paths):
        with contextlib.suppress(OSError, UserError):  # gone or growing, but the data are in memory
            known[path] = digests.file_sha256(path)
    return known


def explain(folder: Path, before: dict[str, str], now: dict[str, str]) -> str:
    """Return a message with the file that differs from the run's original data."""
    other = "begin a new run with another --out"
    for path, digest in now.items():
        if before.get(path, digest) != digest:
            return f"{path}: changed since {folder} began; restore it, or {other}"
    for path in (path for path, digest in now.items() if before and digest not in before.values()):
        return f"{path}: not among the data that {folder} began with; leave it out, or {other}"
    for path in (path for path, digest in before.items() if digest not in now.values()):
        return f"{path}: missing from the data, with which {folder} began; restore it, or {other}"
    return f"the data differ from those that {folder} began with; give the same files in the same order"
