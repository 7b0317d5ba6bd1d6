"""Data of a Python program: the same rows as from files."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import regard
from helpers.runs import settings_of
from regard.data.documents import read_documents
from regard.data.files import display_name
from regard.data.labels import read_labels
from regard.data.memory import find_table, name_data, name_several
from regard.data.pairs import read_pairs
from regard.errors import UserError

ROWS = [("a good film", "yes"), ("a bad one", "no"), ("fine", "yes"), ("no fun", "no")]
RECORDS = [{"text": text, "label": label} for text, label in ROWS]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        lambda: RECORDS,
        lambda: pd.DataFrame(RECORDS),
        lambda: iter(ROWS),
        lambda: {"text": [t for t, _ in ROWS], "label": [x for _, x in ROWS]},
        lambda: SimpleNamespace(columns=["text", "label"], to_dict=lambda how: RECORDS),  # as pandas
        lambda: SimpleNamespace(to_dicts=lambda: RECORDS),  # as polars
    ],
)
def test_labels(make: Callable[[], Any]) -> None:
    table = read_labels([name_data(make())])
    assert table.texts == [text for text, _ in ROWS]
    assert table.labels == [label for _, label in ROWS]


def test_cells_of_numpy() -> None:
    name = name_data({"text": np.array(["a", "b"]), "score": np.array([0.5, 1.0])})
    assert find_table(name) == (["text", "score"], [["a", 0.5], ["b", 1.0]])
    assert display_name(name) == "data in memory"


def test_pairs_and_texts() -> None:
    assert list(read_pairs([name_data(ROWS)])) == ROWS
    assert list(read_documents([name_data(["one", "two"])])) == ["one", "two"]


def test_names() -> None:
    assert name_data(ROWS) == name_data(list(ROWS)) != name_data(ROWS[:2])
    assert name_data(Path("a") / "b.csv") == "a/b.csv"
    assert name_several(["a.txt", Path("b.txt")]) == ["a.txt", "b.txt"]
    assert name_several(ROWS) == [name_data(ROWS)]
    assert name_several(()) == []


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ([], "no rows"),
        (7, "type int"),
        (b"text", "type bytes"),
        ([("a", "b"), ("c",)], "row 2"),
        ({"a": [1], "b": []}, "length"),
    ],
)
def test_what_is_refused(value: Any, fact: str) -> None:
    with pytest.raises(UserError, match=fact):
        name_data(value)


def test_data_of_another_process() -> None:
    with pytest.raises(UserError, match="give the same data again"):
        list(read_pairs(["memory:" + 64 * "0"]))


@pytest.mark.usefixtures("quick")
def test_train_score_and_resume(tmp_path: Path) -> None:
    """A classifier of rows; resumed with the same rows, but not without them."""
    settings = settings_of("classify-bert", {}) | {"train.steps": 2}
    rows = [(f"{text} {n}", label) for n in range(4) for text, label in ROWS]
    model = regard.train("classify", rows, valid=RECORDS, out=tmp_path / "out", set=settings)
    assert model.score(ROWS)["accuracy"] >= 0
    assert "memory:" in (tmp_path / "out" / "recipe.toml").read_text()
    settings["train.steps"] = 3
    regard.train("classify", rows, valid=RECORDS, out=tmp_path / "out", set=settings, resume=True)
