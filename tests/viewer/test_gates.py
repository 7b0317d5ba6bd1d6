"""The gates of recurrent models, drawn."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from helpers.errors import user_error
from helpers.looking import reader
from regard import trace
from regard.draw.heat import Matrix
from regard.runs.model import Model
from regard.viewer.views import Choice, view, views

TEXT = "the quick brown fox"
BOTH = [f"{way} {gate} gate" for way in ("forward", "backward") for gate in ("reset", "update")]
CLASSES: dict[str, Any] = {"task_labels": ("a", "b"), "bidirectional": True}


def draw(model: Model, **choice: Any) -> Matrix:
    matrix = view(model, TEXT, None, Choice(**choice))
    assert isinstance(matrix, Matrix)
    return matrix


def test_the_gates_of_a_layer_by_token() -> None:
    model = reader("write", "recurrent", cell="lstm", depth=2)
    run, matrix = trace(model, TEXT), draw(model)
    assert list(matrix.rows) == ["input gate", "forget gate", "output gate"]
    assert list(matrix.columns) == run.tokens["text"]
    assert_allclose(matrix.weights[1], run["cells.1.forget_gate"].mean(-1), rtol=1e-6)
    first = draw(model, layer=0)
    assert_allclose(first.weights[0], run["cells.0.input_gate"].mean(-1), rtol=1e-6)
    assert "layer 0" in first.title
    user_error(lambda: draw(model, layer=2), "layer=2", "0 to 1")


@pytest.mark.parametrize(
    ("task", "settings", "rows"),
    [
        ("write", {"cell": "rnn"}, ["state"]),
        ("write", {"cell": "gru"}, ["reset gate", "update gate"]),
        ("classify", {"cell": "gru", **CLASSES}, BOTH),
    ],
    ids=["rnn", "gru", "both"],
)  # fmt: skip
def test_every_cell_has_some(task: str, settings: dict[str, Any], rows: list[str]) -> None:
    matrix = draw(reader(task, "recurrent", **settings))
    assert list(matrix.rows) == rows
    assert ((matrix.weights >= 0) & (matrix.weights <= 1)).all()
    assert np.ptp(matrix.weights) > 0


def test_it_is_the_first_view_of_a_model_without_attention() -> None:
    assert list(views(reader("write", "recurrent"))) == ["gates", "embeddings", "map"]
    assert "gates" not in views(reader("write", "gpt"))
    assert "gates" not in views(reader("translate", "gru"))
