"""The film of a run: its weights at some steps of training, in RUN/film/step-N.safetensors.

`regard train --look` writes it. A frame has all weights of the model, with low-rank updates merged into them,
and no state of the optimizer: a run is resumed from its checkpoints, never from its film.
"""

import math
import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from regard.files import atomic
from regard.runs.layout import FILM, LOG, read_log

FRAME = re.compile(r"step-(0|[1-9][0-9]{0,17})\.safetensors")


def frame_path(folder: Path, step: int) -> Path:
    """The file with the weights of a step of the run in this folder."""
    return folder / FILM / f"step-{step}.safetensors"


def film_steps(folder: Path) -> list[int]:
    """The steps of a run that have a frame, oldest first."""
    try:
        names = os.listdir(folder / FILM)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for name in names if (match := FRAME.fullmatch(name)))


def film_losses(folder: Path) -> list[tuple[int, float | None]]:
    """Return the steps of a film, each with its loss."""
    steps = film_steps(folder)
    return list(zip(steps, logged_losses(folder, steps), strict=True)) if steps else []


def logged_losses(folder: Path, steps: Sequence[int]) -> list[float | None]:
    """Return the training loss at each logged step of a run; of a step that was repeated, the last."""
    rows = [row for row in read_log(folder / LOG) if isinstance(row.get("loss"), float)]
    rows = [row for row in rows if math.isfinite(row["loss"])]
    logged = [row["step"] for row in rows]
    before = [bisect_right(logged, step) for step in steps]
    return [rows[i - 1]["loss"] if i else None for i in before]


def drop_later(folder: Path, step: int) -> None:
    """Remove the frames after a step, since the following steps are trained again."""
    for later in film_steps(folder):
        if later > step:
            atomic.remove(frame_path(folder, later))
