"""Hostile files of data: bombs, pipes, devices, links, and names that are not UTF-8."""

import gzip
import json
import lzma
import os
import tracemalloc

import pytest
import zstandard

from helpers.corpora import write_file
from helpers.errors import user_error
from helpers.images import noise, save
from helpers.runs import TINY, tiny, unmeasured, write_text
from regard.data import DataConfig, files, load_corpus, prepare
from regard.data.documents import read_chunks, read_documents
from regard.data.files import read_lines
from regard.data.image_readers import read_image_classes
from regard.data.reading import read_together
from regard.training.build import train

BOMBS = {".gz": gzip.compress, ".xz": lambda data: lzma.compress(data, preset=0), ".zst": zstandard.compress}
LINE = b"x" * 99 + b"\n"


def count_bytes(path):
    return sum(map(len, read_lines(str(path))))


# Compressed files


@pytest.mark.parametrize("suffix", BOMBS)
def test_a_bomb_is_refused_in_little_memory(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"bomb.txt{suffix}"
    path.write_bytes(BOMBS[suffix](LINE * 2**19))  # 50 MB
    monkeypatch.setattr(files, "SMALL", 2**22)
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    message = user_error(lambda: count_bytes(path), path, "data.max_bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    limit = max(2**22, files.MAX_EXPANSION * path.stat().st_size)
    assert f"{limit:,}" in message
    assert peak < 2**25


@pytest.mark.parametrize("suffix", BOMBS)
def test_what_may_expand(tmp_path, monkeypatch, suffix):
    """A hundred times the size, or any size that is asked for."""
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(BOMBS[suffix](LINE * 2**14))
    assert count_bytes(path) == 100 * 2**14  # small enough
    monkeypatch.setattr(files, "SMALL", 0)
    user_error(lambda: count_bytes(path), path, "data.max_bytes")
    with read_together(max_bytes=100 * 2**14):
        assert count_bytes(path) == 100 * 2**14
    with read_together(max_bytes=100 * 2**14 - 1):
        user_error(lambda: count_bytes(path), path, f"{100 * 2**14 - 1:,}")
    path.write_bytes(BOMBS[suffix](os.urandom(2**16).hex().encode()))
    assert count_bytes(path) == 2**17


def test_the_limit_is_a_setting(tmp_path, monkeypatch):
    unmeasured(monkeypatch)
    monkeypatch.setattr(files, "SMALL", 100)
    path = write_file(tmp_path / "a.txt", "the same again\n" * 500, ".gz")
    user_error(lambda: tiny(path, tmp_path / "out", steps=1), path, "data.max_bytes")
    assert not (tmp_path / "out").exists()
    tiny(path, tmp_path / "out", steps=1, data__max_bytes=7500)
    tiny(path, tmp_path / "out", steps=2, data__max_bytes=10**6, resume=True)
    user_error(lambda: prepare([path], tmp_path / "a", DataConfig(), []), path, "data.max_bytes")
    prepare([path], tmp_path / "a", DataConfig(max_bytes=7500), [])
    with pytest.raises(ValueError, match="max_bytes=0"):
        DataConfig(max_bytes=0)


# What is not a file


def test_a_pipe_in_a_folder_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "b.txt")
    user_error(lambda: list(read_documents([str(tmp_path)])), tmp_path / "b.txt", "a pipe")
    os.remove(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "b.pipe")  # not data by its name
    assert list(read_documents([str(tmp_path)])) == ["text"]


def test_a_pipe_that_nobody_writes_to(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_WAIT", 0.1)
    os.mkfifo(tmp_path / "pipe")
    user_error(lambda: list(read_documents([str(tmp_path / "pipe")])), tmp_path / "pipe", "a pipe", "0.1")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device(tmp_path, device):
    user_error(lambda: list(read_documents([device])), device, "a device")
    (tmp_path / "a.txt").symlink_to(device)
    user_error(lambda: list(read_documents([str(tmp_path)])), tmp_path / "a.txt", "a device")


def test_pipes_in_a_prepared_folder(tmp_path):
    (tmp_path / "a.txt").write_text("some text, and more of it" * 9)
    prepare([str(tmp_path / "a.txt")], tmp_path / "out", DataConfig(), [])
    for name in ("train-00000.npy", "tokenizer.json"):
        os.rename(tmp_path / "out" / name, tmp_path / "was")
        os.mkfifo(tmp_path / "out" / name)
        user_error(
            lambda: load_corpus([str(tmp_path / "out")], [], DataConfig(), []),
            tmp_path / "out" / name,
            "a pipe",
        )
        os.replace(tmp_path / "was", tmp_path / "out" / name)


def test_links(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "real.md").write_text("text")
    (folder / "a.txt").symlink_to(tmp_path / "real.md")
    assert list(read_documents([str(folder)])) == ["text"]
    (folder / "b.txt").symlink_to("b.txt")
    user_error(lambda: list(read_documents([str(folder)])), folder / "b.txt", "itself")
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to("nowhere")
    user_error(lambda: list(read_documents([str(folder)])), folder / "b.txt", "nowhere")
    user_error(lambda: list(read_documents([str(folder / "b.txt")])), folder / "b.txt", "nowhere")
    (folder / "b.txt").unlink()
    (folder / "back").symlink_to(folder)  # a folder, which is not followed
    assert list(read_documents([str(folder)])) == ["text"]


def test_links_to_no_image(tmp_path):
    save(tmp_path / "a" / "1.png", noise())
    (tmp_path / "a" / "2.png").symlink_to("nowhere")
    user_error(lambda: read_image_classes([str(tmp_path)]), "2.png", "nowhere")


# Names that are not UTF-8


@pytest.fixture
def odd(tmp_path):
    try:
        os.mkdir(os.fsencode(tmp_path) + b"/od\xff")
    except OSError:
        pytest.skip("this file system has no such names")
    return os.fsdecode(os.fsencode(tmp_path) + b"/od\xff")


def test_odd_names_in_a_folder_are_read(tmp_path, odd, monkeypatch):
    """Below a folder that is given, a name may be anything: also in what a run remembers of its data."""
    unmeasured(monkeypatch)
    write_text(tmp_path / "plain.txt")
    name = os.path.join(odd, os.fsdecode(b"b\xfe.txt"))
    os.rename(tmp_path / "plain.txt", name)
    tiny(str(tmp_path), tmp_path.parent / "odd-run", steps=1)
    remembered = json.loads((tmp_path.parent / "odd-run" / "fingerprints.json").read_text())
    assert os.fsencode(remembered[0][0]).endswith(b"od\xff/b\xfe.txt")
    tiny(str(tmp_path), tmp_path.parent / "odd-run", steps=2, resume=True)
    prepare([odd], tmp_path.parent / "odd-shards", DataConfig(), [])
    with open(name, "ab") as file:
        file.write(b"\xff")
    user_error(lambda: list(read_documents([odd])), "not UTF-8")


def test_odd_names_that_would_be_written_down(tmp_path, odd):
    text = write_text(tmp_path / "a.txt")
    os.rename(write_text(tmp_path / "b.txt"), f"{odd}/b.txt")
    settings = {"steps": 1, "set": TINY}
    user_error(lambda: train("write", f"{odd}/b.txt", out=tmp_path / "out", **settings), "name is not UTF-8")
    user_error(lambda: train("write", text, valid=odd, out=tmp_path / "out", **settings), "name is not UTF-8")
    user_error(lambda: train("write", text, out=f"{odd}/out", **settings), "name is not UTF-8")
    user_error(lambda: prepare([text], f"{odd}/out", DataConfig(), []), "name is not UTF-8")
    save(tmp_path / "classes" / "a" / "1.png", noise())
    os.rename(odd, f"{tmp_path}/classes/{os.path.basename(odd)}")
    save(tmp_path / "classes" / os.path.basename(odd) / "1.png", noise())
    user_error(lambda: read_image_classes([str(tmp_path / "classes")]), "name is not UTF-8", "rename")


def test_a_context_inside_keeps_the_limit_and_the_version():
    with read_together(max_bytes=7, version=1), read_together() as inner:
        assert (inner.config.max_bytes, inner.config.version) == (7, 1)
    with read_together(max_bytes=7, version=1), read_together(max_bytes=9, version=2) as inner:
        assert (inner.config.max_bytes, inner.config.version) == (9, 2)


# Chunks


def test_chunks_are_the_document(tmp_path, monkeypatch):
    text = "".join(f"Zeile {n}: é\r\n" for n in range(50)) + "the end"
    (tmp_path / "a.txt").write_text(text, "utf-8", newline="")
    text = text.replace("\r\n", "\n")
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": " "}\n{"text": "two"}\n')
    paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]
    for size in (1, 40, 10**6):
        monkeypatch.setattr("regard.data.documents.CHUNK", size)
        assert list(read_documents(paths)) == [text, "one", "two"]
        chunks = list(read_chunks(paths))
        assert "".join(chunk for _, chunk in chunks) == text + "onetwo"
        assert sum(starts for starts, _ in chunks) == 3
        (tmp_path / "bad.txt").write_bytes(b"a\nb\n\xff\n")
        user_error(lambda: list(read_chunks([str(tmp_path / "bad.txt")])), "bad.txt:3:", "0xff")
        (tmp_path / "blank.txt").write_bytes(b" \n" * 30)
        user_error(lambda: list(read_chunks([str(tmp_path / "blank.txt")])), "blank.txt", "empty")
