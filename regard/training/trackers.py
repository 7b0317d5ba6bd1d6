"""Trackers that get a run's log besides log.jsonl: TensorBoard, Weights & Biases or Trackio."""

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from regard.errors import UserError, first_line
from regard.runs import recipe
from regard.runs.layout import RECIPE, TENSORBOARD, WANDB

Name = Literal["none", "tensorboard", "wandb", "trackio"]
PROJECT = "regard"  # the project of the runs at Weights & Biases and in Trackio


class Tracker(Protocol):
    """Receives the numbers of a step."""

    def add(self, numbers: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def check_installed(name: str) -> None:
    """Raise UserError if the package of a tracker is missing."""
    if name == "none":
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # the latter is a folder of that name, here
        raise UserError(f"train.tracker={name} needs: pip install 'regard[{name}]'")


def open_tracker(name: Name, folder: Path, step: int) -> Tracker | None:
    """Open the tracker of a run that continues after `step`; its output goes to standard error."""
    check_installed(name)
    if name == "none":
        return None
    with contextlib.redirect_stdout(sys.stderr):
        return TRACKERS[name](folder, step)


class TensorBoard:
    """Events in RUN/tensorboard."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder / TENSORBOARD, purge_step=step + 1)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run at Weights & Biases; its files are in RUN/wandb. WANDB_MODE=offline sends nothing."""

    def __init__(self, folder: Path, step: int):
        import wandb

        before = sorted((folder / WANDB).glob("*run-*-*"), key=lambda path: path.stat().st_mtime)
        try:
            self.run = wandb.init(
                project=PROJECT,
                name=folder.name,
                dir=folder,
                id=before[-1].name.rpartition("-")[2] if step and before else None,
                resume="allow",
                config=recipe.read_file(folder / RECIPE),
                settings=wandb.Settings(console="off"),  # its output would disturb the display
            )
        except wandb.Error as e:
            raise UserError(
                f"train.tracker=wandb: {first_line(e)}; run `wandb login`, or set WANDB_MODE=offline"
            ) from None

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of Trackio's, in its own folder; `trackio show` draws it."""

    def __init__(self, folder: Path, step: int):
        import trackio

        settings: dict[str, Any] = recipe.read_file(folder / RECIPE)
        resume = "allow" if step else "never"
        self.finish = trackio.finish
        self.run = trackio.init(PROJECT, name=folder.name, config=settings, resume=resume)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        self.finish()  # not the run's own finish, which would be called again at the end of the process


TRACKERS: dict[Name, type[TensorBoard | WandB | Trackio]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
}
