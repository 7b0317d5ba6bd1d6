"""Preparing reads chunk by chunk: the ids are those of whole texts, and a large file takes little memory."""

import os
import subprocess
import sys

import numpy as np
import pytest

from helpers.corpora import SPECIALS, ids
from regard.data import DataConfig, documents, encoding, load_corpus, prepare
from regard.text import tokenizer as text

WORDS = ["the", "old", "mill", "by her,", "Fluß;", "naïve\tcafé", "12,345", "don't", "東京", "_x_", "...", ""]


def write_words(path, count, seed=0):
    rng = np.random.default_rng(seed)
    words = [WORDS[i] for i in rng.integers(len(WORDS), size=count)]
    blanks = [" \n"[i] for i in (rng.random(count) < 0.4).astype(int)]
    path.write_text("".join(word + blank for word, blank in zip(words, blanks, strict=True)), "utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "wordpiece", "unigram", "word"])
@pytest.mark.parametrize("count", [1, 3, 11])
def test_chunks_give_the_ids_of_whole_texts(tmp_path, monkeypatch, kind, count):
    """Whatever the sizes of chunks, pieces and batches: cut at the end, or every tenth document held out."""
    paths = [write_words(tmp_path / f"{n}.txt", 300 + 7 * n, seed=n) for n in range(count)]
    config = DataConfig(tokenizer=kind, vocab=320)
    whole = load_corpus(paths, [], config, SPECIALS)
    assert len(whole.train.parts) == 1
    monkeypatch.setattr(documents, "CHUNK", 53)
    monkeypatch.setattr(text, "PIECE", 97)
    for module in (text, encoding):
        monkeypatch.setattr(module, "AT_ONCE", 401)
    about = prepare(paths, tmp_path / "out", config, SPECIALS, shard=1009)
    cut = load_corpus([str(tmp_path / "out")], [], config, SPECIALS)
    assert cut.tokenizer.digest == whole.tokenizer.digest
    assert ids(cut.train) == ids(whole.train)
    assert ids(cut.valid) == ids(whole.valid)
    assert (cut.train.bytes, cut.valid.bytes) == (whole.train.bytes, whole.valid.bytes)
    held_out = 1 if count < 10 else count // 10
    assert about["valid"]["documents"] == held_out


def test_chunks_are_split_where_the_whole_is(monkeypatch):
    monkeypatch.setattr(text, "PIECE", 13)
    rng = np.random.default_rng(3)
    whole = "".join(rng.choice(list("ab_,. \n"), size=2000).tolist())
    for size in (1, 7, 29, 500, 5000):
        chunks = [whole[i : i + size] for i in range(0, len(whole), size)]
        assert list(text.split_chunks(chunks)) == list(text.split_pieces(whole))
    assert list(text.split_chunks([])) == list(text.split_pieces("")) == [""]


MEASURE = """
import sys
from pathlib import Path
from regard.data import DataConfig, prepare

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10

path, small, out, kind = sys.argv[1:]
prepare([small], out + "-small", DataConfig(tokenizer=kind, vocab=1000), [])  # what is loaded once
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
prepare([path], out, DataConfig(tokenizer=kind, vocab=1000), [])
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_a_large_file_takes_little_memory(tmp_path, kind):
    """64 MB, of which nothing but a batch is in memory."""
    small = write_words(tmp_path / "small.txt", 10**5)
    once = (tmp_path / "small.txt").read_bytes() + b"\n"
    with open(tmp_path / "large.txt", "wb") as file:
        for _ in range(2**26 // len(once)):
            file.write(once)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "large.txt"), small, str(tmp_path / "out"), kind],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    grown = int(run.stdout)
    assert grown < 200 << 20, f"{grown >> 20} MiB"
