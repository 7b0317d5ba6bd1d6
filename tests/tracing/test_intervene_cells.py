"""Changing the gates and states of recurrent cells."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.looking import reader
from regard import change, trace
from regard.runs.model import Model
from regard.tracing.intervene import changeable

TEXT, OTHER = "the quick brown fox", "over the lazy dog"
CLASSES: dict[str, Any] = {"task_labels": ("a", "b"), "bidirectional": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn": ("write", {"cell": "rnn"}),
    "gru": ("write", {"cell": "gru", "depth": 2}),
    "lstm": ("write", {"cell": "lstm", "depth": 2}),
    "gru-both": ("classify", {"cell": "gru", "depth": 2, **CLASSES}),
    "lstm-both": ("classify", {"cell": "lstm", **CLASSES}),
}


def build(kind: str) -> tuple[Model, list[str]]:
    """A model, and the names of its cells' values."""
    task, settings = MODELS[kind]
    model = reader(task, "recurrent", **settings)
    return model, [name for name in changeable(model.model) if name.startswith("cells.")]


@pytest.mark.parametrize("kind", MODELS)
def test_the_cells_step_by_step_are_torchs(kind: str) -> None:
    """With a change that changes nothing; and every value of a trace can be put where it was."""
    model, names = build(kind)
    plain = trace(model, TEXT)
    assert len(names) == len([name for name in plain if name.startswith("cells.") and name[-6:] != "states"])
    for values in ({name: lambda x: x for name in names}, {name: plain[name] for name in names}):
        with change(model, values):
            same = trace(model, TEXT)
        for name in plain:
            assert_close(same[name], plain[name], atol=1e-5, rtol=1e-4)
    assert torch.equal(trace(model, TEXT)["logits"], plain["logits"])


@pytest.mark.parametrize("kind", MODELS)
def test_each_of_them_changes_the_answer(kind: str) -> None:
    model, names = build(kind)
    plain, other = trace(model, TEXT), trace(model, OTHER)
    for name in names:
        with change(model, {name: other[name]}):
            changed = trace(model, TEXT)
        assert_close(changed[name], other[name])
        assert not torch.allclose(changed["logits"], plain["logits"]), name


def test_closed_and_open_gates() -> None:
    """An LSTM that forgets everything is the same from any token on; one that lets nothing in stays at 0."""
    model, _ = build("lstm")
    shut = {f"cells.{n}.{gate}": torch.zeros_like for n in (0, 1) for gate in ("input_gate", "forget_gate")}
    with change(model, shut):
        run = trace(model, TEXT)
        assert not run["states"].any()
        assert not run["logits"].any()
    open_gates = {"cells.0.forget_gate": torch.ones_like, "cells.0.input_gate": torch.ones_like}
    with change(model, open_gates):
        run = trace(model, TEXT)
    assert_close(run["cells.0.cell"], run["cells.0.candidate"].cumsum(0))


def test_a_changed_gate_holds_while_it_writes() -> None:
    model, _ = build("gru")
    with change(model, {f"cells.{n}.update_gate": torch.ones_like for n in (0, 1)}):  # nothing new comes in
        steps = trace(model, TEXT, steps=True, max_new_tokens=3, temperature=0.0)
    assert not any(step["states"].any() for step in steps)


def test_tokens_are_hidden_only_from_attention() -> None:
    def hide() -> None:
        with change(build("lstm")[0], hide=[0]):
            pass

    user_error(hide, "attention")
