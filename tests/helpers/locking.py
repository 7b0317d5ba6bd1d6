"""Hold the lock of a folder: `python locking.py KIND FOLDER`, where KIND is `new` or a rank.

Prints `held` and waits until its input ends, or prints why it may not. Imports no torch.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import UserError
from regard.files import locks
from regard.files.atomic import new_folder
from regard.files.locks import lock_folder


def start(kind: str | int, folder: Path) -> subprocess.Popen[str]:
    """Start a process that tries to lock the folder."""
    command = [sys.executable, __file__, str(kind), str(folder), *sys.path]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def held(kind: str | int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock meanwhile; it may be killed."""
    with start(kind, folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.communicate("")


def main(kind: str, folder: str) -> None:
    try:
        with (
            new_folder(Path(folder), "--out")
            if kind == "new"
            else lock_folder(Path(folder), "--out", int(kind)) as one
        ):
            if kind == "new":
                (one.path / "half.txt").write_text("half")
            print("held", flush=True)
            sys.stdin.read()
    except UserError as e:
        print(e, flush=True)


if __name__ == "__main__":
    sys.path[:] = sys.argv[3:]
    locks.LOOKS = 1000  # a busy machine may take a while
    main(*sys.argv[1:3])
