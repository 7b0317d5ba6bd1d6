"""Streams of texts: the same windows however they are reached, with a short memory."""

import gzip
import json
import random
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from regard.data import Corpus, DataConfig, load_corpus
from regard.data.reading import read_together
from regard.data.text_stream import StreamWindows
from regard.errors import UserError

WORDS = [
    "der",
    "Hund",
    "und",
    "die",
    "Katze",
    "laufen",
    "durch",
    "den",
    "grossen",
    "Garten",
    "am",
    "Abend",
    "wenn",
    "es",
    "regnet",
]
CONTEXT, SIZE = 7, 6


def document(number: int) -> str:
    rng = random.Random(number)
    return f"{number}: " + " ".join(rng.choices(WORDS, k=rng.randrange(5, 60)))


def write_jsonl(path: Path, first: int, last: int) -> str:
    lines = [json.dumps({"text": document(n)}) + "\n\n" for n in range(first, last)]
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.writelines(lines)
    return str(path)


def write_files(folder: Path, count: int = 5, documents: int = 100) -> list[str]:
    folder.mkdir(exist_ok=True)
    each = documents // count
    return [
        write_jsonl(folder / f"{n}.jsonl{'.gz' * (n % 2)}", n * each, (n + 1) * each) for n in range(count)
    ]


def open_windows(
    paths: list[str], parts: int = 1, seed: int = 3, **more: Any
) -> tuple[StreamWindows, Corpus]:
    config = DataConfig(stream=True, parts=parts, buffer=11 * CONTEXT)
    corpus = load_corpus(paths, (), config, ["<|endoftext|>"])
    return corpus.train.windows(CONTEXT, seed, SIZE), corpus


def test_every_token_once_and_the_first_documents_held_out(tmp_path: Path) -> None:
    windows, corpus = open_windows(write_files(tmp_path / "data"))
    decode = corpus.tokenizer.decode  # type: ignore[union-attr]
    held_out = decode(corpus.valid.read(0, len(corpus.valid)))  # type: ignore[union-attr]
    assert held_out.count("0: ") >= 1
    count = held_out.count(": ")
    assert 1 <= count <= 30
    assert held_out == "".join(document(n) for n in range(count))
    blocks = []
    for block in range(4):
        rows = windows.batch(np.arange(block * 11, (block + 1) * 11))
        plain = windows.parts[0].block(block)
        in_order, shuffled = plain[:-1].reshape(11, CONTEXT).tolist(), rows[:, :-1].tolist()
        assert sorted(shuffled) == sorted(in_order)  # all of them, each once
        assert shuffled != in_order
        blocks.append(plain[:-1])
        following = windows.parts[0].block(block + 1)
        assert plain[-1] == following[0]
    text = decode(np.concatenate(blocks))
    expected = "".join(document(n) for n in range(count, 100))
    assert expected.startswith(text)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("files", [1, 5])
def test_the_same_windows_after_a_jump_by_counting_and_several_epochs_later(
    tmp_path: Path, parts: int, files: int
) -> None:
    paths = write_files(tmp_path / "data", files, documents=40)
    windows, corpus = open_windows(paths, parts)
    steps = [windows.batch(windows.rows(step)) for step in range(260)]
    places = windows.places(200)
    assert max(place[1] for place in places) >= 1  # in a later epoch
    for saved in (places, [[-1] * 6] * parts):
        again, _ = open_windows(paths, parts)
        again.restore(saved)
        for step in (200, 201, 259, 40):
            assert (again.batch(again.rows(step)) == steps[step]).all()
    other, _ = open_windows(paths, parts, seed=4)
    assert any((other.batch(other.rows(step)) != steps[step]).any() for step in range(9))
    assert corpus.train.fingerprint() == again.stream.fingerprint()


def test_each_process_reads_its_own_part(tmp_path: Path) -> None:
    """Rows of one process are of one part, and no document is in two of them."""
    windows, corpus = open_windows(write_files(tmp_path / "data"), parts=2)
    words_of_pass = []
    for rank in range(2):
        mine, _ = open_windows(write_files(tmp_path / "data"), parts=2)
        rows = [mine.batch(mine.rows(step)[rank::2]) for step in range(8)]
        assert [len(part.blocks) > 0 for part in mine.parts] == [rank == 0, rank == 1]
        for step, batch in enumerate(rows):
            assert (batch == windows.batch(windows.rows(step))[rank::2]).all()
        text = " ".join(corpus.tokenizer.decode(block) for block in mine.parts[rank].blocks.values())  # type: ignore[union-attr]
        words_of_pass.append({word for word in text.replace(":", ": ").split() if word[:-1].isdigit()})
    assert not words_of_pass[0] & words_of_pass[1]


def test_memory_does_not_grow(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", 0, 5000)
    windows, _ = open_windows([path])
    peaks = []
    for steps in (range(20), range(20, 300)):
        tracemalloc.start()
        for step in steps:
            windows.batch(windows.rows(step))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000


def test_data_that_changed_are_noticed_where_a_run_goes_on(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "data", 1)
    windows, _ = open_windows(paths)
    windows.batch(windows.rows(60))
    places = windows.places(60)
    text = Path(paths[0]).read_text().splitlines()
    number = places[0][3]
    text[2 * number] = json.dumps({"text": "something else"})
    Path(paths[0]).write_text("\n".join(text) + "\n")
    again, _ = open_windows(paths)
    again.restore(places)
    with pytest.raises(UserError, match=f"document {number + 1:,} of file 1 is not what it was"):
        again.batch(again.rows(60))


def test_one_long_text_and_valid(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(document(n) for n in range(50)))
    (tmp_path / "b.txt").write_text("der Hund")
    with read_together() as reading:
        windows, corpus = open_windows([str(tmp_path / "a.txt")])
    assert corpus.valid is None
    assert any("one document" in note for note in reading.notes)
    assert windows.batch(windows.rows(300)).shape == (SIZE, CONTEXT + 1)
    config = DataConfig(stream=True, buffer=100)
    corpus = load_corpus([str(tmp_path / "a.txt")], [str(tmp_path / "b.txt")], config, [])
    assert len(corpus.valid) == len("der Hund")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "facts"), [("-", ["data.stream", "standard input"]), ("empty.jsonl", ["empty.jsonl", "no text"])]
)
def test_what_is_refused(tmp_path: Path, path: str, facts: list[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError) as error:
        open_windows([path if path == "-" else str(tmp_path / path)])
    assert all(fact in str(error.value) for fact in facts)


class Rows:
    """As much of a dataset that is streamed as is used."""

    def __init__(self, shards: list[list[str]], *columns: str) -> None:
        self.shards, self.column_names, self.first = shards, columns or ("text",), 0

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    def shard(self, num_shards: int, index: int) -> "Rows":
        assert num_shards == len(self.shards)
        return Rows([self.shards[index]], *self.column_names)

    def skip(self, count: int) -> "Rows":
        rows = Rows(self.shards, *self.column_names)
        rows.first = count
        return rows

    def __iter__(self) -> Any:
        rows = [dict.fromkeys(self.column_names, text) for shard in self.shards for text in shard]
        return iter(rows[self.first :])


def test_the_hub_is_streamed_as_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*args: Any, **options: Any) -> Rows:
        calls.append((args, options))
        return Rows([[document(n) for n in range(first, first + 20)] for first in range(0, 100, 20)])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    hub, _ = open_windows(["hf:owner/name/config:test"], parts=2)
    assert calls == [(("owner/name", "config"), {"split": "test", "streaming": True})]
    files, _ = open_windows(write_files(tmp_path / "data"), parts=2)
    for step in (0, 1, 57, 130, 2):
        assert (hub.batch(hub.rows(step)) == files.batch(files.rows(step))).all()
    again, _ = open_windows(["hf:owner/name/config:test"], parts=2)
    again.restore(hub.places(120))
    assert (again.batch(again.rows(120)) == files.batch(files.rows(120))).all()


def test_the_column_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or chosen, or obvious; as it is said. Before version 4, only that of the name."""
    shards, columns = [[document(n) for n in range(50)]], ["title"]
    stub = SimpleNamespace(load_dataset=lambda *_, **__: Rows(shards, *columns))
    monkeypatch.setitem(sys.modules, "datasets", stub)
    for columns, chosen in ((["title"], None), (["Body", "title"], None), (["a", "b"], {"text": "b"})):
        with read_together(columns=chosen) as reading:
            open_windows(["hf:name"])
        (source,) = reading.sources.values()
        assert source.columns == {"text": chosen["text"] if chosen else columns[0]}
        assert source.is_guess == (chosen is None)
    with pytest.raises(UserError, match='"a", "b"; needed are text; choose them with --text NAME'):
        open_windows(["hf:name"])
    with read_together(columns={"text": "c"}), pytest.raises(UserError, match='no column "c" \\(--text\\)'):
        open_windows(["hf:name"])
    columns = ["a", "text"]
    with read_together(columns={"text": "a"}, version=3) as reading:
        open_windows(["hf:name"])
    assert next(iter(reading.sources.values())).columns == {"text": "text"}
