"""Data in object stores: copied once, again when they change, and named by their addresses."""

import os
from pathlib import Path

import fsspec
import pytest

from helpers.corpora import SPECIALS
from helpers.errors import user_error
from helpers.runs import tiny, write_text
from regard.data import DataConfig, load_corpus, prepare, remote
from regard.runs import recipe


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An object store in memory, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/", recursive=True)


def put(store, name, text):
    with store.open(name, "wb") as file:
        file.write(text.encode())


def test_a_run_trains_on_a_remote_folder_and_resumes(store, tmp_path, quick):
    put(store, "/texts/a.txt", Path(write_text(tmp_path / "a.txt")).read_text())
    out = tmp_path / "out"
    tiny("memory://texts", out, steps=1)
    assert recipe.read_file(out / "recipe.toml")["data"]["files"] == ["memory://texts"]
    copy = Path(remote.fetch(["memory://texts"])[0]) / "a.txt"
    copy.unlink()  # an empty cache, as on another machine
    tiny("memory://texts", out, steps=2, resume=True)
    assert copy.is_file()


def test_files_are_copied_once_and_again_when_they_change(store, monkeypatch):
    put(store, "/bucket/a.txt", "one")
    put(store, "/bucket/deep/b.txt", "two")
    put(store, "/bucket/.hidden", "")
    (folder,) = remote.fetch(["memory://bucket"])
    assert remote.original_name(folder) == "memory://bucket"
    contents = {str(p.relative_to(folder)): p.read_text() for p in Path(folder).rglob("[!.]*.txt")}
    assert contents == {"a.txt": "one", "deep/b.txt": "two"}
    copied = []
    true = type(store).get_file
    monkeypatch.setattr(type(store), "get_file", lambda s, *args: (copied.append(args[0]), true(s, *args)))
    assert remote.fetch(["memory://bucket", "here.txt"]) == [folder, "here.txt"]
    assert copied == []
    put(store, "/bucket/a.txt", "three")
    store.rm("/bucket/deep/b.txt")
    remote.fetch(["memory://bucket"])
    assert (Path(folder) / "a.txt").read_text() == "three"
    assert not (Path(folder) / "deep/b.txt").exists()
    assert len(copied) == 1


def test_a_part_copies_only_its_own_files_and_the_first_ones(store, tmp_path):
    for n in range(6):
        put(store, f"/texts/{n}.txt", f"the old mill {n} by her river\n" * 30)
    put(store, "/texts/picture.png", "")
    config = DataConfig(tokenizer="bpe", vocab=280)
    for number in (2, 3, 1):
        prepare(["memory://texts"], tmp_path / "out", config, SPECIALS, part=(number, 3))
        if number == 2:
            copies = sorted(p.name for p in remote.cache_root().rglob("*.txt"))
            assert copies == ["0.txt", "1.txt", "3.txt", "4.txt"]
    assert len(load_corpus([str(tmp_path / "out")], [], config, SPECIALS).train) > 50


def test_what_is_not_there_is_named(store, tmp_path, monkeypatch):
    user_error(lambda: remote.fetch(["memory://nothing/here.txt"]), "memory://nothing/here.txt")
    user_error(lambda: remote.fetch(["gopher3://bucket/x"]), "gopher3://bucket/x", "regard[remote]")
    for name in ("../../x", "a/../../x", "./x"):
        user_error(lambda name=name: remote.place_of(f"memory://{name}"), name)
    assert remote.place_of("s3://bucket/a/b.txt") == remote.cache_root() / "s3/bucket/a/b.txt"
    assert not any(map(remote.is_remote, ("a.txt", "memory:0f", "hf:owner/name", "-", os.sep)))
