"""The film of a run: its weights at some steps of training, in RUN/film/step-N.safetensors.

`regard train --look` writes it. A frame has all weights of the model, with low-rank updates merged into them,
and no state of the optimizer: a run is resumed from its checkpoints, never from its film.
"""

import os
import re
from bisect import bisect_right
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
    """The steps of a film, each with the training loss that was last logged by then."""
    steps = film_steps(folder)
    if not steps:
        return []
    rows = [row for row in read_log(folder / LOG) if isinstance(row.get("loss"), float)]
    logged = [row["step"] for row in rows]
    before = [bisect_right(logged, step) for step in steps]
    return [(step, rows[i - 1]["loss"] if i else None) for step, i in zip(steps, before, strict=True)]


def drop_later(folder: Path, step: int) -> None:
    """Remove the frames after a step: what follows it is trained again."""
    for later in film_steps(folder):
        if later > step:
            atomic.remove(frame_path(folder, later))
