"""log.jsonl: rows are appended, repeated steps are replaced, a row cut by a kill is dropped, and others that
are damaged are kept aside."""

import json
import os
from pathlib import Path

import pytest

from helpers.errors import user_error
from regard.runs.layout import read_log
from regard.training.log import Log

ROWS = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}, {"step": 2, "valid_loss": 2.0}, {"step": 4}]


def write(path: Path, tail: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + tail)
    return path


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.touch()
    with Log(path, 0) as log:
        assert log.rows == log.begin() == []
        for n, row in enumerate(ROWS, 1):
            log.add(row)
            assert rows(path) == ROWS[:n]
        log.flush()
        assert log.rows == ROWS
    assert log.file.closed


def test_what_comes_later_is_forgotten(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl")
    with Log(path, 2) as log:
        assert log.rows == ROWS[:3]
        log.add({"step": 3})
        assert rows(path) == ROWS  # nothing changes before it is begun
        log.begin()
    assert rows(path) == [*ROWS[:3], {"step": 3}]
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]
    with Log(path, 0) as log:
        log.begin()
        assert log.rows == []
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "tail",
    ['{"step": 5, "lo', '{"step"', "3\n", "[]\n", '{"loss": 1}\n', "\n\0\0\n", "[" * 10**5]
    + [f'{{"step": 5, "elapsed": 1{"0" * 400}}}\n', f'{{"step": 1{"0" * 400}}}\n'],
    ids=lambda tail: tail[:9],
)
def test_what_a_kill_leaves(tmp_path: Path, tail: str) -> None:
    path = write(tmp_path / "log.jsonl", tail)
    with Log(path, 9) as log:
        notices = log.begin()
        log.add({"step": 6})
    assert rows(path) == [*ROWS, {"step": 6}]
    aside = [p.read_text() for p in tmp_path.glob("*.damaged")]
    assert aside == ([tail.lstrip("\n")] if tail.endswith("\n") else [])
    assert len(notices) == len(aside)


def test_damaged_lines_are_kept_aside(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0] = lines[0].replace(b"{", b"[")
    lines[2:2] = [b"\xff mine\n", b"\n"]
    path.write_bytes(b"".join(lines))
    (tmp_path / "log.jsonl.damaged").write_text("earlier ones")
    with Log(path, 9) as log:
        (notice,) = log.begin()
    assert (tmp_path / "log.jsonl.damaged-2").read_bytes() == lines[0] + lines[2]
    assert all(word in notice for word in (str(path), "2 lines", "log.jsonl.damaged-2"))
    assert rows(path) == ROWS[1:]
    with Log(path, 9) as log:
        assert log.begin() == []


def test_not_utf8_and_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl")
    path.write_bytes(b"\xff" + path.read_bytes())
    assert read_log(path) == ROWS[1:]
    path.unlink()
    assert read_log(path) == []


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "log.jsonl")
    user_error(lambda: read_log(path), path, "pipe")
