"""Count, record and spoil the system calls of a process on files below one folder, by syscalls.c."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("syscalls.c")
NOTHING, FAIL, FAIL_ON, KILL, HALF, TORN = range(6)
CHANGES = {"create", "write", "fsync", "rename", "unlink", "rmdir", "mkdir", "truncate", "chmod", "symlink"}


def build(folder: Path) -> Path | None:
    """Compile the library; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "syscalls.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def is_loaded() -> bool:
    return hasattr(ctypes.CDLL(None), "torture_watch")


@dataclass(frozen=True)
class Effect:
    """A change that a system call made, or a mark that `mark` left."""

    name: str
    inode: int = 0
    offset: int = 0
    path: str = ""
    other: str = ""  # the new name, of a rename
    data: bytes = b""


@dataclass
class Record:
    """What happened below the watched folder."""

    calls: list[tuple[str, str]]  # name and path, in order
    effects: list[Effect]
    hit: tuple[str, str] | None  # the call that went wrong


class Watch:
    """In a process that may be killed: watch a folder, and let its `at`-th call go wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object

    def arm(self, at: int = 0, how: int = NOTHING, error: int = 0, names: str = "") -> None:
        library = ctypes.CDLL(None)
        os.lseek(self.file.fileno(), 0, os.SEEK_SET)
        os.ftruncate(self.file.fileno(), 0)
        library.torture_trace(self.file.fileno())
        library.torture_arm(ctypes.c_long(at), how, error, names.encode())
        library.torture_watch(os.fsencode(self.folder))

    def read(self) -> Record:
        """Read what was recorded, in any process."""
        self.file.seek(0)
        record = Record([], [], None)
        while line := self.file.readline():
            kind, *fields = os.fsdecode(line.rstrip(b"\n")).split("\t")
            if kind == "C":
                record.calls.append((fields[0], fields[1]))
            elif kind == "X":
                record.hit = (fields[0], fields[1])
            elif kind == "M":
                record.effects.append(Effect("mark", path=fields[0]))
            else:
                name, inode, _, offset, size, path, other = fields
                data = self.file.read(int(size))
                record.effects.append(Effect(name, int(inode), int(offset), path, other, data))
        return record


def mark(text: str) -> None:
    ctypes.CDLL(None).torture_mark(text.encode())
