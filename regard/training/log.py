"""The log of a run, log.jsonl: a row per logged step, evaluation and notice; a tracker may also get it."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from regard.files import atomic
from regard.runs.layout import read_log
from regard.training.trackers import Name, open_tracker


class Log:
    """The rows so far, and the file that they are appended to.

    Rows of steps after `step`, and evaluations after `evaluated`, are dropped: they will be repeated.
    """

    def __init__(self, path: Path, step: int, tracker: Name = "none", evaluated: int | None = None):
        self.tracker, self.file = open_tracker(tracker, path.parent, step), path.open("a", encoding="utf-8")
        self.path, self.rows = path, read_log(path)
        self.go_back(step, step if evaluated is None else evaluated)

    def go_back(self, step: int, evaluated: int, notices: bool = False) -> None:
        """Drop the rows of later steps and evaluations, perhaps not notices, and continue after the rest."""
        self.rows = [
            row
            for row in self.rows
            if row["step"] <= (evaluated if "valid_loss" in row else step) or (notices and "notice" in row)
        ]
        atomic.write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self.file.close()
        self.file = self.path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.tracker:
            numbers = {k: v for k, v in row.items() if k != "step" and isinstance(v, int | float)}
            self.tracker.add(numbers, row["step"])

    def flush(self) -> None:
        """Write the log to the disk."""
        os.fsync(self.file.fileno())

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()
        if self.tracker:
            with contextlib.redirect_stdout(sys.stderr):
                self.tracker.close()
