"""The log of a run, log.jsonl: a row per logged step, evaluation and notice; also TensorBoard on request."""

import json
import os
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import atomic
from regard.runs.layout import TENSORBOARD, read_log


class Log:
    """The rows so far, and the file that they are appended to.

    Rows of steps after `step`, and evaluations after `evaluated`, are dropped: they will be run again.
    """

    def __init__(self, path: Path, step: int, tensorboard: bool, evaluated: int | None = None):
        self.board, self.file = None, path.open("a", encoding="utf-8")
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("train.tensorboard needs: pip install 'regard[tensorboard]'") from None
            self.board = SummaryWriter(path.parent / TENSORBOARD, purge_step=step + 1)
        self.path, self.rows = path, read_log(path)
        self.go_back(step, step if evaluated is None else evaluated)

    def go_back(self, step: int, evaluated: int) -> None:
        """Drop the rows of later steps and evaluations, and go on after the others."""
        self.rows = [row for row in self.rows if row["step"] <= (evaluated if "valid_loss" in row else step)]
        atomic.write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self.file.close()
        self.file = self.path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.board:
            for key, value in row.items():
                if key not in ("step", "notice", "best") and value is not None:
                    self.board.add_scalar(key, value, row["step"])

    def flush(self) -> None:
        """Write the log to the disk."""
        os.fsync(self.file.fileno())

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()
        if self.board:
            self.board.close()
