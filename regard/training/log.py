"""The log of a run, log.jsonl: a row per logged step, evaluation and notice; a tracker may also get it."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from regard.files import atomic
from regard.runs.checkpoints import name_aside
from regard.runs.layout import parse_row, read_lines, write_text
from regard.training.trackers import Name, Tracker, check_installed, open_tracker


class Log:
    """The rows so far, and the file that they are appended to once it is begun.

    Rows of steps after `step`, and evaluations after `evaluated`, are dropped: they will be repeated.
    """

    def __init__(self, path: Path, step: int, tracker: Name = "none", evaluated: int | None = None):
        check_installed(tracker)
        self.path, self.step, self.tracker_name = path, step, tracker
        self.tracker: Tracker | None = None
        self.file: TextIO | None = None
        lines = [(line, parse_row(line)) for line in read_lines(path)]
        self.damaged = [line for line, row in lines if row is None and line.endswith(b"\n") and line.strip()]
        self.rows = [row for _, row in lines if row is not None]
        self.drop(step, step if evaluated is None else evaluated)
        self.known = len(self.rows)  # those that the tracker has

    def begin(self) -> list[str]:
        """Write the rows to the file and the tracker, and continue after them. Return notices for the user.

        Until then, nothing in the folder changes. Damaged lines are kept in a file beside it, except for the
        last one if it has no end: a process was killed while it wrote that.
        """
        self.tracker, notices = open_tracker(self.tracker_name, self.path.parent, self.step), []
        if self.damaged:
            aside = name_aside(self.path)
            with atomic.atomic_file(aside, like=self.path) as partial:
                partial.write_bytes(b"".join(self.damaged))
            lines = "a line is" if len(self.damaged) == 1 else f"{len(self.damaged)} lines are"
            notices.append(f"{self.path}: {lines} damaged; moved to {aside}")
        self.write()
        for row in self.rows[self.known :]:
            self.track(row)
        return notices

    def drop(self, step: int, evaluated: int, notices: bool = False) -> None:
        """Drop the rows of later steps and evaluations, perhaps not notices."""
        self.rows = [
            row
            for row in self.rows
            if row["step"] <= (evaluated if "valid_loss" in row else step) or (notices and "notice" in row)
        ]

    def go_back(self, step: int, evaluated: int) -> None:
        """Drop the rows of later steps and evaluations, but not notices, and go on after the others."""
        self.drop(step, evaluated, notices=True)
        self.write()

    def write(self) -> None:
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        if self.file:
            self.file.close()
        self.file = self.path.open("a", encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.file:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
        self.track(row)

    def track(self, row: dict[str, Any]) -> None:
        if self.tracker:
            numbers = {k: v for k, v in row.items() if k != "step" and isinstance(v, int | float)}
            self.tracker.add(numbers, row["step"])

    def flush(self) -> None:
        """Write the log to the disk."""
        if self.file:
            os.fsync(self.file.fileno())

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        if self.file:
            self.file.close()
        if self.tracker:
            with contextlib.redirect_stdout(sys.stderr):
                self.tracker.close()
