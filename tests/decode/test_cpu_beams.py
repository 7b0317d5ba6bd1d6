"""Beams that share keys and values are those whose caches are copied."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from helpers.decoders import MODEL_KINDS, PROMPTS, SOURCES, build
from regard.decode import cpu_beams
from regard.decode.beam import Hypothesis, beam_search
from regard.decode.cpu_beams import MAX_BEAMS, BeamState, branch
from regard.decode.cpu_steps import CPUStack
from regard.decode.ensemble import Ensemble, States
from regard.decode.prompts import read_rows

WINDOWED = {kind for kind, (_, changes) in MODEL_KINDS.items() if "sliding_window" in changes}


def start(kind: str) -> tuple[Any, torch.Tensor, Any]:
    """A model that has read three texts of unequal lengths, or sources."""
    model: Any = build(kind).double()
    pairs = hasattr(model, "decoder")
    logits, state = read_rows(model, [[3]] * 3 if pairs else PROMPTS, SOURCES if pairs else None)
    assert isinstance(state.run, CPUStack)
    return model, logits, state


@pytest.mark.parametrize("later", [[[0, 1, 3, 2]] * 2, [[1, 1, 2, 2], [0, 1, 3, 2]]], ids=["apart", "joined"])
@pytest.mark.parametrize("kind", MODEL_KINDS)
@torch.inference_mode()
def test_steps_are_those_of_copies(
    kind: str, later: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after beams were chosen, after the second text has left, in many steps, and after columns that no
    beam attends to were dropped."""
    monkeypatch.setattr(cpu_beams, "FEW", 1)
    both = []
    for beams in (2, 1):
        model, _, state = start(kind)
        state = branch(state, beams, torch.arange(3))
        if beams == 1:
            state.run = None
            state.reorder(torch.arange(3).repeat_interleave(2))
        steps = []
        for rows in ([1, 1, 2, 3, 5, 4], [1, 0, 5, 5], *later * 8):
            ids = torch.arange(7, 7 + len(rows))[:, None]
            state.reorder(torch.tensor(rows))
            steps.append(model.step(ids, state)[0])
        both.append(torch.cat(steps))
    assert_close(both[0], both[1], rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_beams_with_a_common_text_share_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_beams, "FEW", 1)
    model, _, state = start("llama")
    state = branch(state, 2, torch.arange(3))
    before = state.length
    for rows, columns in (([1, 1, 2, 2, 4, 5], 14), ([1, 1, 2, 2, 4, 4], 20)):
        for _ in range(7):  # at first, the last two beams have no step in common
            state.reorder(torch.tensor(rows))
            model.step(torch.arange(7, 13)[:, None], state)
        assert state.layers[0].length == state.places.shape[1] <= before + columns
    assert state.length == before + 14


def search(kind: str, shared: bool) -> list[list[Hypothesis]]:
    model, logits, state = start(kind)
    if not shared:
        state.run = None
    return beam_search(model.step, logits, state, beams=3, end=list(range(20, 26)), max_new_tokens=9)


@pytest.mark.parametrize("kind", ["llama", "t5"])
@torch.inference_mode()
def test_hypotheses_are_those_of_copies(kind: str) -> None:
    shared, copied = search(kind, True), search(kind, False)
    assert [[h.tokens for h in row] for row in shared] == [[h.tokens for h in row] for row in copied]
    for ours, theirs in zip(shared, copied, strict=True):
        assert_close([h.score for h in ours], [h.score for h in theirs])


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@torch.inference_mode()
def test_what_is_shared(kind: str) -> None:
    """Not with a window of positions, which columns have not, nor for very many beams."""
    for beams in (1, 2, MAX_BEAMS + 1):
        state = branch(start(kind)[2], beams, torch.arange(3))
        assert isinstance(state, BeamState) == (kind not in WINDOWED and beams == 2)
        assert len(state.layers[0].kv[0]) == (3 if isinstance(state, BeamState) else 3 * beams)


@torch.inference_mode()
def test_ensembles_share_too() -> None:
    ensemble = Ensemble([build("gpt2"), build("alibi")])
    logits, state = read_rows(ensemble, PROMPTS)  # type: ignore[arg-type]
    assert isinstance(branch(state, 2, torch.arange(3)), States)
    assert len(beam_search(ensemble.step, logits, state, beams=2, end=1, max_new_tokens=3)) == 3
