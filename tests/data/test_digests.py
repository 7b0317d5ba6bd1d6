"""Digests of files: remembered while a file is the same, and across processes."""

import hashlib
import json
import os

import pytest

from helpers.errors import user_error
from helpers.waiting import wait_until
from regard.data import digests
from regard.data.digests import file_sha256


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Nothing is known, and a new file may be remembered at once."""
    monkeypatch.setattr(digests, "_known", {})
    monkeypatch.setattr(digests, "FRESH", -1)


@pytest.fixture
def read(monkeypatch):
    """The files that are read."""
    paths = []
    true = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda f, kind: paths.append(f.name) or true(f, kind))
    return paths


def let_time_pass(path):
    """Until a file that is written now has other times: on older kernels, after some milliseconds."""
    before = path.stat().st_ctime_ns
    wait_until(lambda: path.chmod(0o600) or path.stat().st_ctime_ns > before)


def test_a_file_is_read_once_until_it_changes(tmp_path, read):
    path = tmp_path / "a"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        let_time_pass(path)
        for _ in range(3):
            assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    assert read == [str(path)] * 2


@pytest.mark.parametrize("how", ["in place, with its time", "another file, with its time"])
def test_changes_that_keep_size_and_time(tmp_path, how):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    before = path.stat()
    file_sha256(path)
    let_time_pass(path)
    file_sha256(path)
    (path if how.startswith("in") else tmp_path / "b").write_bytes(b"two")
    if not how.startswith("in"):
        os.replace(tmp_path / "b", path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_sha256(path) == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_was_just_written_is_read_again(tmp_path, read, monkeypatch):
    """It may change once more within a tick of the file system's clock."""
    monkeypatch.setattr(digests, "FRESH", 10**12)
    (tmp_path / "a").write_bytes(b"one")
    file_sha256(tmp_path / "a")
    file_sha256(tmp_path / "a")
    assert len(read) == 2


def test_what_is_written_is_remembered(tmp_path, read, monkeypatch):
    names = [os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/a", b"/b\xff")]
    for name in names:
        with open(name, "wb") as file:
            file.write(name.encode(errors="surrogateescape"))
    known = {name: file_sha256(name) for name in names}
    digests.write(tmp_path / "c.json", known.items())
    monkeypatch.setattr(digests, "_known", {})
    assert digests.remember(tmp_path / "c.json") == known
    assert {name: file_sha256(name) for name in names} == known
    assert len(read) == 2
    os.utime(names[0], ns=(1, 1))
    assert file_sha256(names[0]) == known[names[0]]
    assert len(read) == 3


@pytest.mark.parametrize(
    "content", ["", "{", "[[]]", '[["a", 1]]', "[null]", '{"a": 1}', '"text"', "[" * 10**5]
)
def test_damage_is_as_if_nothing_were_known(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    assert digests.remember(tmp_path / "c.json") == {}
    (tmp_path / "c.json").unlink()
    os.mkfifo(tmp_path / "c.json")
    assert digests.remember(tmp_path / "c.json") == {}


def test_what_a_foreign_list_says_of_a_file_is_not_believed(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    rows = [[str(tmp_path / "a"), 3, 1, 1, 1, "0" * 64]]
    (tmp_path / "c.json").write_text(json.dumps(rows))
    assert digests.remember(tmp_path / "c.json") == {str(tmp_path / "a"): "0" * 64}
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"one").hexdigest()


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    true = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda f, kind: path.write_bytes(b"more") and true(f, kind))
    user_error(lambda: file_sha256(path), path, "changed")
