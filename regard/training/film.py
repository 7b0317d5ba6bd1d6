"""Write the film of a run while it is trained: few frames, in a separate thread, in little of the time."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import nn

from regard.errors import UserError, os_reason
from regard.files import atomic
from regard.files.tensors import Tensors, write_tensors
from regard.runs import lora
from regard.runs.film import film_steps, frame_path
from regard.runs.layout import published

MAX_FRAMES = 60
MAX_BYTES = 2 * 2**30  # of all frames together
SECONDS = 0.5  # at least, between two frames
SHARE = 0.02  # of the time and of the processor time of training, at most, is used for frames
NEWEST = 3  # the newest frames are not removed, as they may be on display


class Film:
    """The frames of one run. The first and the newest ones stay; others go where they are closest."""

    def __init__(self, folder: Path, model: nn.Module):
        self.folder, self.model = folder, model
        self.nbytes = max(1, sum(t.nbytes for t in model.state_dict().values()))
        self.max_frames = min(MAX_FRAMES, MAX_BYTES // self.nbytes)
        if self.max_frames < NEWEST:
            size, limit = self.nbytes / 2**30, MAX_BYTES / 2**30
            raise UserError(
                f"--look: weights of {size:.1f} GiB make no film of {limit:.0f} GiB; leave it out"
            )
        self.thread = ThreadPoolExecutor(1, "film")
        self.writing: Future[None] | None = None
        self.step: int | None = None  # of the newest frame
        self.next_at = 0.0  # when another frame may be written, on the monotonic clock
        self.next_used = 0.0  # and by the processor time of the training: on a busy machine it is less

    def is_due(self) -> bool:
        is_free = self.writing is None or self.writing.done()
        return is_free and time.monotonic() >= self.next_at and time.process_time() >= self.next_used

    def add(self, step: int) -> str | None:
        """Copy the weights and begin to write them as the frame of a step. Return the error of the
        previous frame, if there was one: the film must not stop training."""
        problem = self.wait()
        if step == self.step:
            return problem
        began, self.step = time.monotonic(), step
        weights = lora.merge(self.model)
        copies = {name: t.detach().to("cpu", copy=True) for name, t in weights.items()}
        self.writing = self.thread.submit(self.write, step, copies, time.monotonic() - began)
        return problem

    def write(self, step: int, weights: Tensors, copied: float) -> None:
        """Write a frame, which took `copied` seconds to copy. The next one waits until both are a small
        share of the time; for writing, only processor time counts, not waiting for a slow disk."""
        began = time.thread_time()
        try:
            atomic.make_folders(frame_path(self.folder, step).parent)
            for other in thin(film_steps(self.folder), self.max_frames - 1):
                atomic.remove(frame_path(self.folder, other))
            write_tensors(frame_path(self.folder, step), weights, like=published(self.folder))
        finally:
            spent = copied + time.thread_time() - began
            self.next_at = time.monotonic() + max(SECONDS, spent / SHARE)
            self.next_used = time.process_time() + spent / SHARE

    def wait(self) -> str | None:
        """Wait until the last frame is written. Return its error, if there was one."""
        writing, self.writing = self.writing, None
        error = None if writing is None else writing.exception()
        if isinstance(error, OSError):
            return f"the film has no frame of step {self.step}: {os_reason(error)}"
        if error is not None:
            raise error
        return None

    def go_back(self) -> None:
        """Forget the newest frame, since the run continues from an earlier step."""
        self.wait()
        self.step = None

    def close(self) -> None:
        self.thread.shutdown()


def thin(steps: list[int], max_frames: int) -> list[int]:
    """The steps to remove, so that at most `max_frames` stay, as far apart from each other as possible."""
    stay, gone = sorted(steps), []
    while len(stay) > max_frames:
        inner = range(1, max(2, len(stay) - NEWEST))
        i = min(inner, key=lambda i: stay[min(i + 1, len(stay) - 1)] - stay[i - 1])
        gone.append(stay.pop(i))
    return gone
