"""Decode images in several processes.

Pillow holds Python's lock for a fifth of the time that it needs for a small JPEG. With more than a few
cores, threads would wait for each other, and the training thread for them. Pixels are returned in shared
memory: sending them through a pipe took longer than decoding.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from regard.errors import UserError
from regard.vision.decode_worker import SharedPixels
from regard.vision.decoding import (
    FileBytes,
    ImageSource,
    ImageTooLarge,
    Part,
    Shape,
    Size,
    decode_image,
    decode_part,
    read_size,
)

FEW = 3  # up to this number of processors, threads are as fast


def processors() -> int:
    """The processors that this process may use, a fair share of them if several train on this machine."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@functools.cache
def decoders() -> "Decoders | None":
    """The processes that all datasets share; None if threads are as fast."""
    return Decoders(processors() - 1) if processors() > FEW and os.name == "posix" else None


class Decoders:
    """Processes that decode images; several threads may use them at once. They end with this process."""

    def __init__(self, count: int):
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        self.count, workers = count, [Worker() for _ in range(count)]
        for worker in workers:
            self.idle.put(worker)
        self.close = weakref.finalize(self, stop_workers, workers)

    def decode(self, sources: Sequence[ImageSource], images: Sequence[np.ndarray]) -> None:
        """Decode each source into its image (C, H, W)."""
        if self.ask(sources, images[0].shape, images) is None:
            for source, image in zip(sources, images, strict=True):
                image[:] = decode_image(source, image.shape)

    def decode_parts(
        self, sources: Sequence[ImageSource], shape: Shape, rooms: Sequence[np.ndarray]
    ) -> list[Part]:
        """Decode each source into its room (R, R, C); return what is to be resized of it to the shape."""
        head = self.ask(sources, shape, rooms, room=len(rooms[0]))
        if head is None:
            return [decode_part(source, shape, room) for source, room in zip(sources, rooms, strict=True)]
        return [(across, down, columns_first) for across, down, columns_first in head["parts"]]

    def sizes(self, sources: Sequence[ImageSource]) -> list[Size]:
        """Read the headers of images."""
        head = self.ask(sources, None, [])
        if head is None:
            return [read_size(source) for source in sources]
        return [(width, height, grey) for width, height, grey in head["sizes"]]

    def ask(
        self,
        sources: Sequence[ImageSource],
        shape: Shape | None,
        images: Sequence[np.ndarray],
        room: int = 0,
    ) -> dict[str, Any] | None:
        """Send a request to the next idle process; return None if the process has ended or can't get the
        bytes. Raise its error about an image."""
        if any(isinstance(source, FileBytes) for source in sources):
            return None
        worker = self.idle.get()
        try:
            head = worker.ask(sources, {"shape": shape, "room": room}, images)
        except (OSError, json.JSONDecodeError):
            worker.process.kill()
            return None
        finally:
            self.idle.put(worker)
        if "error" in head:
            raise (ImageTooLarge if head["too_large"] else UserError)(head["error"])
        return head


class Worker:
    """A process that decodes, and the memory in which it returns pixels."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        file = open_memory()
        self.pixels = SharedPixels(file)
        self.process = subprocess.Popen(
            # -P: what lies in the current folder is not imported
            [sys.executable, "-P", "-m", "regard.vision.decode_worker", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(file,),
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for this process
        )

    def ask(
        self, sources: Sequence[ImageSource], what: dict[str, Any], images: Sequence[np.ndarray]
    ) -> dict[str, Any]:
        """Send a request and return the reply; pixels are copied to `images`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if images:
            self.pixels.reserve(len(images), images[0].shape)
        rows = [dataclasses.astuple(source) for source in sources]
        self.process.stdin.write(json.dumps(what | {"sources": rows}).encode() + b"\n")
        self.process.stdin.flush()
        head: dict[str, Any] = json.loads(self.process.stdout.readline())
        if images and "error" not in head:
            for image, decoded in zip(images, self.pixels.view(len(images), images[0].shape), strict=True):
                image[:] = decoded
        return head


def open_memory() -> int:
    """Open a file in memory, or a temporary one on other systems; both vanish with their processes."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("regard-pixels")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def stop_workers(workers: Sequence[Worker]) -> None:
    for worker in workers:
        for pipe in (worker.process.stdin, worker.process.stdout):
            with suppress(OSError):  # requests that a dead process did not read
                pipe.close()  # type: ignore[union-attr]
    for worker in workers:
        worker.process.wait()
        os.close(worker.pixels.file)
