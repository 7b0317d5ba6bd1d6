"""Decode images in several processes.

Pillow holds Python's lock for a fifth of the time that it needs for a small JPEG. With more than a few
cores, threads would wait for each other, and the thread that trains would wait for them.
"""

import dataclasses
import functools
import io
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, cast

import numpy as np

from regard.errors import UserError
from regard.vision.decoding import FileBytes, ImageSource, ImageTooLarge, Size, decode_image, read_size

Worker = subprocess.Popen[bytes]
FEW = 3  # with so many processors, threads are as fast


def processors() -> int:
    """The processors that this process may use, a fair share of them if several train on this machine."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@functools.cache
def decoders() -> "Decoders | None":
    """The processes that all datasets share; None where threads are as fast."""
    return Decoders(processors() - 1) if processors() > FEW and os.name == "posix" else None


class Decoders:
    """Processes that decode images; several threads may use them at once. They end with this process."""

    def __init__(self, count: int):
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        self.count, workers = count, [start_worker() for _ in range(count)]
        for worker in workers:
            self.idle.put(worker)
        self.close = weakref.finalize(self, stop_workers, workers)

    def decode(self, sources: Sequence[ImageSource], images: Sequence[np.ndarray]) -> None:
        """Decode each source into its image (C, H, W), whose memory is contiguous."""
        if self.ask(sources, images) is None:
            for source, image in zip(sources, images, strict=True):
                image[:] = decode_image(source, image.shape)

    def sizes(self, sources: Sequence[ImageSource]) -> list[Size]:
        """Read the headers of images."""
        head = self.ask(sources, None)
        if head is None:
            return [read_size(source) for source in sources]
        return [(width, height, grey) for width, height, grey in head["sizes"]]

    def ask(
        self, sources: Sequence[ImageSource], images: Sequence[np.ndarray] | None
    ) -> dict[str, Any] | None:
        """Ask the next idle process; None if it is gone, or has not these bytes. Raise the error that it
        found in an image."""
        if any(isinstance(source, FileBytes) for source in sources):
            return None
        worker = self.idle.get()
        try:
            head = exchange(worker, sources, images)
        except (OSError, EOFError, json.JSONDecodeError):
            worker.kill()
            return None
        finally:
            self.idle.put(worker)
        if "error" in head:
            raise (ImageTooLarge if head["too_large"] else UserError)(head["error"])
        return head


def start_worker() -> Worker:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        # -P: what lies in the current folder is not imported
        [sys.executable, "-P", "-m", "regard.vision.decode_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is for this process
    )


def stop_workers(workers: Sequence[Worker]) -> None:
    for worker in workers:
        for pipe in (worker.stdin, worker.stdout):
            with suppress(OSError):  # what a dead process did not read
                pipe.close()  # type: ignore[union-attr]
    for worker in workers:
        worker.wait()


def exchange(
    worker: Worker, sources: Sequence[ImageSource], images: Sequence[np.ndarray] | None
) -> dict[str, Any]:
    """Send a request to a worker and return its reply. Pixels are read straight into their place."""
    assert worker.stdin is not None
    output = cast(io.BufferedReader, worker.stdout)
    shape = None if images is None else images[0].shape
    rows = [dataclasses.astuple(source) for source in sources]
    worker.stdin.write(json.dumps({"shape": shape, "sources": rows}).encode() + b"\n")
    worker.stdin.flush()
    head: dict[str, Any] = json.loads(output.readline())
    if images is not None and "error" not in head:
        for image in images:  # one after the other, so that a buffer of one image is enough
            if output.readinto(image.data.cast("B")) < image.nbytes:
                raise EOFError
    return head
