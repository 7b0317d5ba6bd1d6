"""The names of the files in a run's folder, and its log. Needs no torch: `regard runs` answers at once."""

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.convert.huggingface.files import ADAPTER
from regard.errors import UserError
from regard.files import atomic
from regard.files.regular import regular_stat
from regard.files.untrusted import parse_json

WEIGHTS = "model.safetensors"
BASE = "base.json"  # the base model of a run that keeps an adapter
ORIGINS = "origins.json"  # the models that a run begins with or learns from, with their SHA-256
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TARGET_TOKENIZER = "target_tokenizer.json"  # if the target has its own vocabulary
GENERATION = "generation_config.json"
TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"  # of a chat model
RECIPE = "recipe.toml"
LOG = "log.jsonl"
CURVE = "curve.svg"
CARD = "README.md"
DIGESTS = "fingerprints.json"  # the SHA-256 of each data file, so that none has to be read again
FOLDS = "folds.json"  # of a run with train.folds: how each part was scored by a model trained on the others
TENSORBOARD, WANDB = "tensorboard", "wandb"
CHECKPOINTS = "checkpoints"
FILM = "film"  # see regard.runs.film
ANSWERS = "answers-*.jsonl"  # the teachers' answers, a file for each process
STATE = "state.json"  # of a checkpoint
STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")  # the name of a checkpoint

LARGEST = 2**63  # whole number of the log

Row = dict[str, Any]  # of the log


def published(folder: Path) -> Path:
    """Return the file with the trained weights of a run: all of them, or an adapter."""
    return folder / (WEIGHTS if atomic.is_missing(folder / BASE) else ADAPTER)


def write_text(path: Path, text: str) -> None:
    """Write a file of a run; a new one is as private as the run's weights."""
    atomic.write_text(path, text, like=published(path.parent))


def check_files(folder: Path) -> None:
    """Raise UserError if the log can't be read, or a folder has the name of a file that training writes."""
    read_lines(folder / LOG)
    for path in (*(folder / name for name in (RECIPE, CARD, CURVE, DIGESTS)), published(folder)):
        if path.is_dir():
            raise UserError(f"{path}: a folder, not a file; move it away")


def read_log(path: Path) -> list[Row]:
    """Return the rows of a log; lines that are damaged are left out."""
    return parse_rows(read_lines(path))


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a log with their ends, or none if it is missing."""
    if atomic.is_missing(path):
        return []
    regular_stat(path)  # a pipe would never end
    return path.read_bytes().splitlines(keepends=True)


def parse_count(text: str) -> int:
    """Parse a whole number of a log; raise ValueError for one that is too long for any run."""
    if abs(number := int(text)) > LARGEST:
        raise ValueError(f"{text[:20]}... is not a number of a log")
    return number


def parse_rows(lines: Iterable[bytes]) -> list[Row]:
    return [row for line in lines if (row := parse_row(line)) is not None]


def parse_row(line: bytes) -> Row | None:
    """A row of a log, or None if the line is damaged."""
    with contextlib.suppress(ValueError):
        row = parse_json(line.decode(errors="replace"), parse_int=parse_count)
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            return row
    return None
