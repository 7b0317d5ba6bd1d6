"""Tensors to write, damaged files, and disks that are full or need no waiting for."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.files.tensors import DTYPES

MODEL = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, -1])}


def without_fsync(patch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: files of tests need not outlive the machine."""
    patch.setattr(os, "fsync", fsync)


def fsync(handle: int) -> None:
    """Replaces os.fsync."""
    os.fstat(handle)  # an error if it is closed


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of this size, mounted at a new folder; skip the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
    process = subprocess.run(command, capture_output=True)
    if process.returncode:
        pytest.skip(f"cannot mount a small disk here: {process.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def resize_disk(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def every_kind() -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        tensors[f"a.{name}"] = torch.randint(2, (3, 5)).to(dtype)
        tensors[f"none.{name}"] = torch.ones(2, 0, 3, dtype=dtype)
        tensors[f"one.{name}"] = torch.tensor(1, dtype=dtype)
    tensors["turned"] = torch.randn(5, 3).mT
    tensors["part"] = torch.randn(7, 5)[1:3, ::2]
    tensors["strange"] = torch.tensor([float("nan"), float("-inf"), -0.0])
    tensors["learnt é"] = torch.nn.Parameter(torch.randn(3))
    return tensors


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        t.dtype == other[n].dtype
        and t.shape == other[n].shape
        and t.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .equal(other[n].contiguous().reshape(-1).view(torch.uint8))
        for n, t in one.items()
    )


def damages(content: bytes) -> list[bytes]:
    """Change each byte in several ways, and cut the file at each byte."""
    changed = [
        content[:i] + bytes([content[i] ^ bits]) + content[i + 1 :]
        for i in range(len(content))
        for bits in (0x01, 0x10, 0x80, 0xFF)
    ]
    return changed + [content[:i] for i in range(len(content))] + [content + b"\0", content + b" "]


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def counted(function: Callable[..., Any], fails_at: int) -> Callable[..., Any]:
    """Wrap a function so that its nth call raises "no space left on device"."""
    calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            full()
        return function(*args, **options)

    return call
