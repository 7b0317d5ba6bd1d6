"""What the data are like: counted exactly where they are small, estimated where they are large."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from helpers.errors import user_error
from regard.training.plan import facts as module
from regard.training.plan.facts import read_facts, stay_mirrored


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


def test_a_text(tmp_path: Path) -> None:
    facts = read_facts("write", [write(tmp_path / "a.txt", "ab ab\ncd\n" * 10)])
    assert (facts.rows, facts.characters, facts.source.words) == (1, 90, 30)
    assert (facts.source.alphabet, facts.source.vocabulary, facts.share) == (6, 2, 1.0)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_large_text_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(module, "SAMPLE", 1000)
    monkeypatch.setattr(module, "COUNTED", 200_000)
    monkeypatch.setattr("regard.data.documents.CHUNK", 500)
    text = "to be or not to be\n" * 5000  # 95,000 characters
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    facts = read_facts("write", [str(path)])
    assert facts.characters == pytest.approx(95_000, rel=0.02)
    assert facts.source.words == pytest.approx(30_000, rel=0.05)
    assert (facts.share < 0.1) is (suffix == "")  # what it expands to is known only by reading it


def test_pairs(tmp_path: Path) -> None:
    facts = read_facts("translate", [write(tmp_path / "a.tsv", "cat\tK AE T\nact\tAE K T\n" * 50)])
    assert (facts.rows, facts.source.alphabet, facts.target.vocabulary) == (100, 3, 3)
    assert facts.target.words == 300


def test_large_tables_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 100)
    pairs = write(tmp_path / "pairs.tsv", "one two\tthree\n" * 2000)
    labels = write(tmp_path / "labels.tsv", "text\tlabel\n" + "good film\t1\nbad film!\t0\n" * 1000)
    assert read_facts("translate", [pairs]).rows == pytest.approx(2000, rel=0.1)
    facts = read_facts("classify", [labels])
    assert facts.rows == pytest.approx(2000, rel=0.1)
    assert (facts.classes, facts.balance) == (2, 0.5)


def test_conversations(tmp_path: Path) -> None:
    turns = [f"turn {i}" for i in range(40)]
    talk = write(tmp_path / "a.tsv", "".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(turns)))
    single = write(tmp_path / "b.tsv", "".join(f"{a}\tyes\n" for a in turns))
    assert (read_facts("chat", [talk]).turns, read_facts("chat", [single]).turns) == (3, 1)
    assert read_facts("chat", [talk], turns=2).turns == 2  # as asked for


def test_scores_are_no_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tother\tscore\nbig\tlarge\t4.5\nbig\tcat\t0.5\n")
    facts = read_facts("classify", [path])
    assert (facts.rows, facts.classes, facts.source.longest) == (2, 0, len("big large") - 1)


def test_a_part_is_held_out(tmp_path: Path) -> None:
    facts = read_facts("translate", [write(tmp_path / "a.tsv", "one\teins\n" * 100)]).training_part(0.9)
    assert (facts.rows, facts.source.characters, facts.source.alphabet) == (90, 270, 3)


def test_missing_files_and_pipes(tmp_path: Path) -> None:
    user_error(lambda: read_facts("write", [str(tmp_path / "none.txt")]), "none.txt")
    assert read_facts("write", ["-"]).share == 0.0  # which is not read before its time


def test_mirrored_pictures() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    halves = np.zeros((200, 8, 8), dtype=np.uint8)
    halves[labels == 0, :, :4] = halves[labels == 1, :, 4:] = 200  # left or right, which a mirror swaps
    rows = np.zeros((200, 8, 8), dtype=np.uint8)
    rows[labels == 0, :4] = rows[labels == 1, 4:] = 200  # above or below
    noise = rng.integers(0, 50, (200, 8, 8), dtype=np.uint8)
    assert not stay_mirrored(halves + noise, labels)
    assert stay_mirrored(rows + noise, labels)
