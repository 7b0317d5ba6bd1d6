"""Settings find their sections, and a recipe describes its own."""

import pytest
import torch

from helpers.errors import user_error
from regard.models import MODELS
from regard.runs import recipe
from regard.training.settings import describe_recipe, find_sections


def complete(changes: dict, name: str = "write") -> dict:
    find_sections(recipe.read(name), changes)
    return changes


def test_a_setting_finds_its_section() -> None:
    changes = {"lr": 0.5, "dim": 8, "model.depth": 1, "vocab": 300, "preset": "pico", "steps": 7}
    expected = {"train.lr": 0.5, "model.dim": 8, "model.depth": 1, "data.vocab": 300, "model.preset": "pico"}
    assert list(complete(changes).items()) == [*expected.items(), ("train.steps", 7)]
    assert complete({"smoothing": 0.1}, "classify") == {"task.smoothing": 0.1}
    assert complete({"tensorboard": True}) == {"train.tensorboard": True}
    assert complete({"kind": "recurrent", "cell": "gru"}) == {"model.kind": "recurrent", "model.cell": "gru"}


def test_unknown_and_ambiguous() -> None:
    user_error(lambda: complete({"lrr": 1}), "lrr", "lr")
    user_error(lambda: complete({"xyzzy": 1}), "xyzzy", "dim")


def test_candidates_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.settings.FROM_DATA", ())
    user_error(lambda: find_sections(recipe.read("write"), {"vocab": 9}), "model.vocab", "data.vocab")


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_describes_itself(name: str) -> None:
    text = "\n".join(describe_recipe(name))
    assert "train.lr " in text
    assert " plan " in text
    assert "weights: " in text


def test_weights_are_counted() -> None:
    (line,) = (line for line in describe_recipe("write") if line.strip().startswith("pico"))
    model_class, config, presets = MODELS["gpt"]
    with torch.device("meta"):
        model = model_class(config(vocab=8192, **presets["pico"]))
    assert f" {sum(p.numel() for p in model.parameters()):,} weights" in line
