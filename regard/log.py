"""log.jsonl: a row per logged step, a row per evaluation; TensorBoard as well on request."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from . import checkpoint
from .errors import Mistake


class Log:
    """The rows so far, and the file that grows with them."""

    def __init__(self, path: Path, step: int, tensorboard: bool, evaluated: int | None = None):
        self.board = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise Mistake("train.tensorboard needs: pip install 'regard[tensorboard]'") from None
            self.board = SummaryWriter(path.parent / "tensorboard", purge_step=step + 1)
        last = {True: step if evaluated is None else evaluated, False: step}  # later ones are done again
        self.rows = [row for row in self.read(path) if row["step"] <= last["valid_loss" in row]]
        checkpoint.write_text(path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self.file = path.open("a", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        rows = []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError):  # a kill may have cut the last line
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    rows.append(row)
        return rows

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.board:
            for key, value in row.items():
                if key != "step" and value is not None:
                    self.board.add_scalar(key, value, row["step"])

    def flush(self) -> None:
        os.fsync(self.file.fileno())

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()
        if self.board:
            self.board.close()
