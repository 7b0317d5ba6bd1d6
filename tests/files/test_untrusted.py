"""Untrusted configuration files: unreadable ones are refused in one line."""

import os
from pathlib import Path

import pytest

from helpers.errors import user_error
from regard.files.untrusted import read_json, read_text, write_json


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": {"b": 1, "b": 1}}', "twice"),
        (b"[1]", "object"),
        (b"{", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"a": "\xff"}', "UTF-8"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, content: bytes, fact: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    user_error(lambda: read_json(path), path, fact)


def test_files_that_are_refused(tmp_path: Path) -> None:
    user_error(lambda: read_json(tmp_path / "config.json"), tmp_path, "config.json")
    os.mkfifo(tmp_path / "endless")
    user_error(lambda: read_text(tmp_path / "endless"), tmp_path / "endless")
    (tmp_path / "long").write_bytes(b"a" * (2**20 + 1))
    user_error(lambda: read_text(tmp_path / "long", 2**20), tmp_path / "long", "1 MiB")
    assert len(read_text(tmp_path / "long", 2**20 + 1)) == 2**20 + 1


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"é": [1, None]})
    assert read_json(tmp_path / "a.json") == {"é": [1, None]}
    write_json(tmp_path / "a.json", ["é"])
    assert read_json(tmp_path / "a.json", list) == ["é"]
