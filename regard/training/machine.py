"""The machine that a run trains on: its device, its limits, and its signals to stop."""

import contextlib
import errno
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from regard.errors import UserError
from regard.files import atomic
from regard.memory import allocator
from regard.runs.model import best_device
from regard.training import distributed

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "size calculation overflowed")


class Stoppable(Protocol):
    """An object that stops when it finds the number of a signal."""

    signal: int | None


def choose_device(name: str) -> torch.device:
    device = best_device() if name == "auto" else torch.device(name)
    if device.type != "cpu" and not getattr(torch, device.type).is_available():
        raise UserError(f"train.device={name}: torch finds no such device here; use train.device=auto")
    if device.type == "cuda":
        device = torch.device("cuda", distributed.LOCAL)
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        allocator.keep_all()
    return device


@contextlib.contextmanager
def explain_limits(folder: Path) -> Iterator[None]:
    """Turn errors about memory or disks into one line of advice."""
    try:
        with atomic.name_errors(folder):
            yield
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(f"{folder}: {e.strerror or e}; make room and continue with --resume") from None
    except (MemoryError, RuntimeError) as e:
        if not isinstance(e, MemoryError) and not any(words in str(e).lower() for words in OUT_OF_MEMORY):
            raise
        raise UserError(
            "out of memory; take fewer sequences at a time (--set train.micro=4, the same batch), "
            "or make model.context or model.dim smaller"
        ) from None


@contextlib.contextmanager
def catch_signals(trainer: Stoppable) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM ask the trainer to save and stop; a second Ctrl-C stops at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if trainer.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        trainer.signal = number

    try:
        previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone may handle signals
        yield
        return
    try:
        yield
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)
