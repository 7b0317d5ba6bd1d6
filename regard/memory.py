"""Freed memory. glibc returns that of large tensors to the system, and has it filled with zeros again for the
next ones: that took up to a fourth of a training step, and a tenth of a step of beam search."""

import ctypes
import sys
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # in malloc.h
MiB = 1 << 20


class Allocator:
    """The C library's, which a process has once; on other systems nothing is changed."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.keeps_all = False

    def call(self, name: str, *args: int) -> None:
        if function := getattr(self.library, name, None):
            function(*args)

    def keep(self) -> None:
        """Keep some memory for the next tensors: enough for the answers to a batch."""
        if not self.keeps_all:
            self.call("mallopt", MMAP_THRESHOLD, 32 * MiB)  # the largest value that it takes
            self.call("mallopt", TRIM_THRESHOLD, 64 * MiB)

    def keep_all(self) -> None:
        """Keep all memory, as each training step allocates the same again."""
        self.keeps_all = True
        self.call("mallopt", MMAP_MAX, 0)
        self.call("mallopt", TRIM_THRESHOLD, 2**31 - 1)

    def release(self) -> None:
        """Return all freed memory now: after the conversion of many tensors."""
        self.call("malloc_trim", 0)


allocator = Allocator()
