"""Sums are ticked also if a model computes with fewer digits, and not if a number is wrong."""

import pytest
import torch

from helpers.browsing import MODELS, OPEN_CELLS
from helpers.serving import serve_session
from regard.quantize.model import quantize_model
from regard.viewer.session import Session


@pytest.mark.parametrize(
    ("kind", "dtype", "within"),
    [
        ("gpt2", torch.bfloat16, 256),
        pytest.param("transformer", torch.bfloat16, 256, marks=pytest.mark.slow),
        ("gpt2", torch.float16, 2048),
        ("gpt2", "int8", 64),
        pytest.param("gpt2", "bfloat16", 256, marks=pytest.mark.slow),
    ],
)
def test_in_fewer_digits(tab, kind, dtype, within):
    model, input = MODELS[kind]()
    if isinstance(dtype, str):
        quantize_model(model.model, dtype)
    else:
        model.model.to(dtype)
    it = Session(model, input, "der Fuchs springt" if kind == "transformer" else None)
    assert it.manifest["model"]["dtype"] == str(dtype).removeprefix("torch.")
    with serve_session(it) as server:
        cells = tab(server.url).page.evaluate(OPEN_CELLS)
    totals = [cell["total"] for cell in cells.values() if cell["fits"] is not None]
    assert len(totals) > 20
    assert {name: cell["total"] for name, cell in cells.items() if cell["fits"] == "false"} == {}
    assert all(f"within 1/{within} of what was added up" in total for total in totals)


def test_products_are_ticked_by_the_same_rule_as_sums(tab):
    """Within 1e-5 of what was added up; what is no number is never right."""
    it = Session(*MODELS["gpt"]())
    name = "blocks.1.attn.scores"
    scores = it.trace[name][0, 3]
    size = (it.trace["blocks.1.attn.q"][0, 3] * it.trace["blocks.1.attn.k"][0, 1]).abs().sum()
    scores[0], scores[1] = float("nan"), scores[1] + 5e-5 * size
    with serve_session(it) as server:
        opened = tab(server.url)
        for column, fits in enumerate(("false", "false", "true")):
            product = f"#view=look&depth=product&layer=1&head=0&at=3,{column}"
            for state in (product, f"#cell={name}:0,3,{column}"):
                page = opened.turn(state).page
                page.wait_for_selector(".tick")
                assert page.get_attribute(".tick", "data-fits") == fits, state


def test_a_wrong_number_is_not_ticked(tab):
    """Also not for a model of low precision: an error of a twentieth is shown."""
    model, input = MODELS["gpt2"]()
    model.model.to(torch.bfloat16)
    it = Session(model, input)
    name = "blocks.0.attn.weights"
    it.trace[name][0, 1, 0] += 0.05
    it.trace[name][0, 1, 1] -= 0.05
    with serve_session(it) as server:
        page = tab(server.url, f"#cell={name}:0,1,1&layer=0").page
        assert page.get_attribute(".cell .tick", "data-fits") == "false"
