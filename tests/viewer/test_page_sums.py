"""The page's own sums equal the model's numbers, for every value of every family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.browsing import OPEN_CELLS, Tab, saved_tensors, shown
from helpers.families import FAMILIES, load_folder, whole_input
from helpers.serving import serve_session
from regard import trace
from regard.runs.model import Model
from regard.viewer.session import trace_session

FOLDERS = {"qwen3": 1, "t5": 2, "vit": 0}  # and a seed; that of T5 makes a gated one
# Families that have, together, every operation, every formula and every named part of all.
COVERING = [
    *("vit-captioner", "lstm-additive", "t5-geglu", "gpt-classes", "plain", "electra-blank", "captioner"),
    *("elmo-next", "rnn", "gru-classes", "long-classes", "gru-writer", "vit-mean", "electra", "lstm-writer"),
    *("qk-norm-learned", "gru-forward", "untied", "swiglu", "rnn-both", "elmo", "alibi", "hear-waves", "t5"),
    *("lstm", "geglu", "waves", "qk-norm", "narrow-next", "rnn-writer", "lstm-tags", "embed", "embed-first"),
]
# Signs that are not drawn as they are written: brackets may go, and lines and roots are no signs.
WRITTEN = dict.fromkeys(map(ord, " _^{}()/√")) | str.maketrans("ᵀΣ", "⊤∑")
DRAWN = dict.fromkeys(map(ord, "()"))


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """A page whose modules open the cells of any run."""
    with serve_session(shown("gpt")) as server:
        tab = Tab(browser, server.url).open()
        yield tab.page
        tab.page.close()
    assert tab.wrong == []


def check_page(page: Any, model: Model, input: Any) -> None:
    session = trace_session(trace(model, whole_input(model, input)))
    assert session is not None
    manifest, tensors = session.manifest, session.trace.tensors | session.weights
    if session.rollout is not None:
        tensors["rollout"] = session.rollout
    cells = page.evaluate(OPEN_CELLS, {"manifest": manifest, "tensors": saved_tensors(tensors)})
    assert {name: cell["text"] for name, cell in cells.items() if cell["fits"] == "false"} == {}
    assert {name for name, cell in cells.items() if cell["fits"]} == set(manifest["sums"])
    for name in manifest["sums"]:  # all of the formula is drawn
        text = manifest["texts"][name]["formula"]
        assert sorted(cells[name]["formula"].translate(DRAWN)) == sorted(text.translate(WRITTEN)), name


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind in COVERING else pytest.mark.slow)
        for kind in FAMILIES
        if kind != "efficientnet"  # its weights are many
    ],
)
def test_every_sum_of_a_family(page: Any, kind: str) -> None:
    check_page(page, *FAMILIES[kind]())


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_sum_of_a_loaded_folder(page: Any, tmp_path: Path, kind: str) -> None:
    model, input = load_folder(tmp_path, kind, FOLDERS[kind])
    if kind == "t5":
        assert model.model.config.ffn == "geglu"  # type: ignore[union-attr]
    check_page(page, model, input)
