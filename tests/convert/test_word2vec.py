"""Word vectors of other programs, asked like our own, and written for them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from helpers.commands import call, set_stdin, stdout_of
from helpers.errors import user_error
from regard.runs.export import export
from regard.runs.load import load

# Two directions: royal, and male or female.
VECTORS = {
    "king": [1, 1, 0.1],
    "queen": [1, -1, 0.1],
    "man": [0, 1, 0],
    "woman": [0, -1, 0],
    "apple": [-0.5, 0.1, 2],
}


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    lines = [" ".join([word, *map(str, row)]) for word, row in VECTORS.items()]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "glove.txt"


def parse_text(content: bytes) -> dict[str, list[float]]:
    """word2vec's text format, read as simply as can be."""
    first, *lines = content.decode().splitlines()
    rows = {line.split(" ")[0]: [float(x) for x in line.split(" ")[1:]] for line in lines}
    assert first == f"{len(rows)} {len(next(iter(rows.values())))}"
    return rows


def parse_binary(content: bytes) -> dict[str, list[float]]:
    """The steps of gensim's `_word2vec_read_binary`: a word is what is before a space, without newlines."""
    first, rest = content.split(b"\n", 1)
    count, width = map(int, first.split())
    rows = {}
    for _ in range(count):
        word, rest = rest.split(b" ", 1)
        rows[word.decode().lstrip("\n")] = np.frombuffer(rest[: 4 * width], np.float32).tolist()
        rest = rest[4 * width :]
    assert rest.strip() == b""
    return rows


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_ask_a_file(glove: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert stdout_of(capsys, "ask", glove, "king - man + woman").startswith("queen ")
    rows = {word: np.array(row) for word, row in VECTORS.items()}
    neighbours = sorted((-cosine(rows["king"], rows[word]), word) for word in rows if word != "king")
    expected = ", ".join(f"{word} {-value:.2f}" for value, word in neighbours)
    assert stdout_of(capsys, "ask", glove, "king") == expected + "\n"
    set_stdin(monkeypatch, "king\nKing\n")
    answers = [json.loads(line) for line in stdout_of(capsys, "ask", glove, "--json").splitlines()]
    nearest = [(word, round(-value, 5)) for value, word in neighbours]
    for answer in answers:
        assert [(row["word"], round(row["score"], 5)) for row in answer["output"]] == nearest
    options = ["--num-return-sequences", 2, "--json"]
    several = [json.loads(line) for line in stdout_of(capsys, "ask", glove, "king", *options).splitlines()]
    assert [(row["output"], round(row["score"], 5)) for row in several] == nearest[:2]


def test_in_python(glove: Path) -> None:
    model = regard.load(glove)
    assert model.ask("king - man + woman", top_k=1).startswith("queen ")
    assert model.ask("king", distance="euclidean", top_k=1).startswith("man 1.00")  # not queen, 2 away
    assert torch.equal(regard.vectors(model)["apple"], torch.tensor(VECTORS["apple"]))
    user_error(lambda: model.ask("kin"), "kin", "did you mean king")
    user_error(lambda: model.score(str(glove)), "glove.txt", ".csv")


def test_score_a_file(glove: Path, tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("word1,word2,similarity\nking,queen,3\nking,man,8\nking,apple,1\nking,unheard,1\n")
    assert load(glove).score(str(table)) == {"spearman": pytest.approx(1.0), "covered": 0.75}


def test_look_at_a_file(glove: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    map = tmp_path / "map.svg"
    stdout_of(capsys, "look", glove, "king queen man woman", "--save", map)
    assert all(word in map.read_text() for word in ("king", "queen", "man", "woman"))
    assert len(regard.trace(load(glove), "King apple unheard")["embed"]) == 3


@pytest.mark.parametrize("name", ["a.txt", "b.bin", "c.txt.gz", "d.bin.gz", "e.vec"])
def test_export_and_back(glove: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / name
    assert stdout_of(capsys, "export", glove, out, "--to", "word2vec") == f"{out}\n"
    content = gzip.decompress(out.read_bytes()) if name.endswith(".gz") else out.read_bytes()
    rows = (parse_binary if ".bin" in name else parse_text)(content)
    expected = {word: np.array(row, np.float32) for word, row in VECTORS.items()}
    assert {word: np.array(row, np.float32).tolist() for word, row in rows.items()} == {
        word: row.tolist() for word, row in expected.items()
    }
    assert load(out).ask("king") == load(glove).ask("king")
    assert call("export", glove, out, "--to", "word2vec") == 2  # it exists


def test_random_numbers_come_back_exactly(tmp_path: Path) -> None:
    matrix = torch.randn(13, 7, generator=torch.Generator().manual_seed(3)) * 1e-5
    regard.vectors(load(write_vectors(tmp_path / "a.txt", matrix))).save(tmp_path / "b.txt")
    assert torch.equal(regard.vectors(load(tmp_path / "b.txt")).matrix, matrix)


def write_vectors(path: Path, matrix: torch.Tensor) -> Path:
    rows = (" ".join([f"w{n}", *map(repr, row)]) for n, row in enumerate(matrix.tolist()))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_export_refuses(glove: Path, tmp_path: Path) -> None:
    model = load(glove)
    user_error(lambda: export(model, tmp_path / "folder", "word2vec"), "folder", ".bin", ".txt")
    user_error(lambda: export(model, tmp_path / "a.txt.xz", "word2vec"), "a.txt.xz", ".gz")
    assert list(tmp_path.iterdir()) == [glove]


def test_continue_training_from_a_file(glove: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("king queen man woman apple\n" * 40)
    settings = {"train.device": "cpu"}
    model = regard.train("words", str(text), out=tmp_path / "run", base=str(glove), steps=2, set=settings)
    assert model.model.config.dim == 3
    before, after = (regard.vectors(m) for m in (load(glove), model))
    assert before.words == after.words
    assert not torch.equal(before.matrix, after.matrix)
