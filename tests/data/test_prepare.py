"""Preparing reads chunk by chunk: the ids are those of whole texts, and a large file takes little memory."""

import os
import subprocess
import sys
import tracemalloc

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
    at_once = load_corpus(paths, [], config, SPECIALS)
    assert len(at_once.train.parts) == 1
    monkeypatch.setattr(documents, "CHUNK", 53)
    monkeypatch.setattr(text, "PIECE", 97)
    for module in (text, encoding):
        monkeypatch.setattr(module, "AT_ONCE", 401)
    about = prepare(paths, tmp_path / "out", config, SPECIALS, shard=1009)
    cut = load_corpus([str(tmp_path / "out")], [], config, SPECIALS)
    assert cut.tokenizer.digest == at_once.tokenizer.digest
    assert ids(cut.train) == ids(at_once.train)
    assert ids(cut.valid) == ids(at_once.valid)
    assert (cut.train.bytes, cut.valid.bytes) == (at_once.train.bytes, at_once.valid.bytes)
    held_out = 1 if count < 10 else count // 10
    assert about["valid"]["documents"] == held_out


def test_chunks_are_split_where_the_whole_is(monkeypatch):
    monkeypatch.setattr(text, "PIECE", 13)
    rng = np.random.default_rng(3)
    full_text = "".join(rng.choice(list("ab_,. \n"), size=2000).tolist())
    for size in (1, 7, 29, 500, 5000):
        chunks = [full_text[i : i + size] for i in range(0, len(full_text), size)]
        assert list(text.split_chunks(chunks)) == list(text.split_pieces(full_text))
    assert list(text.split_chunks([])) == list(text.split_pieces("")) == [""]


def test_what_is_held_is_a_part_of_the_file(tmp_path, monkeypatch):
    """With small chunks, pieces and batches, preparing 2 MB takes less."""
    write_words(tmp_path / "once.txt", 10**4)
    (tmp_path / "a.txt").write_bytes((tmp_path / "once.txt").read_bytes() * 40)
    for module, name in ((documents, "CHUNK"), (text, "PIECE"), (text, "AT_ONCE"), (encoding, "AT_ONCE")):
        monkeypatch.setattr(module, name, 2**12)
    tracemalloc.start()
    about = prepare([str(tmp_path / "a.txt")], tmp_path / "out", DataConfig(tokenizer="byte"), [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert about["train"]["bytes"] + about["valid"]["bytes"] == (tmp_path / "a.txt").stat().st_size > 2**21
    assert peak < 2**20, f"{peak:,}"


MEASURE = """
import sys
from pathlib import Path
from regard.data import DataConfig, encoding, prepare
from regard.text import tokenizer

encoding.AT_ONCE = tokenizer.AT_ONCE = 2 * tokenizer.PIECE  # as with two cores

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10

before = status("VmRSS")
prepare([sys.argv[1]], sys.argv[2], DataConfig(tokenizer="byte"), [])
print(status("VmHWM") - before)
"""


@pytest.mark.slow
def test_a_large_file_takes_little_memory(tmp_path):
    """128 MB, of which only a batch is held: some three hundred bytes a character inside the library. The
    whole file and its ids would take as much again."""
    write_words(tmp_path / "once.txt", 10**5)
    once = (tmp_path / "once.txt").read_bytes() + b"\n"
    with open(tmp_path / "large.txt", "wb") as file:
        for _ in range(2**27 // len(once)):
            file.write(once)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "large.txt"), str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 450 << 20, f"{int(run.stdout) >> 20} MiB"
