"""Shortlists: the output layer of few tokens gives what masked logits of all tokens give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.errors import user_error
from regard.decode import shortlist as shortlist_module
from regard.decode.beam import Hypothesis
from regard.decode.sampling import Sampling
from regard.decode.shortlist import Shortlist, ShortlistWriter, make_shortlist
from regard.files.tensors import write_tensors
from regard.models import MODELS
from regard.quantize.model import PRECISIONS, quantize_model
from regard.tasks.answers import generate_tokens, search_beams

END, VOCAB, TARGETS = 2, 61, 53
SIZES: dict[str, Any] = {"vocab": VOCAB, "context": 23, "dim": 64, "depth": 2, "dropout": 0.0}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    *(("transformer", dtype, {"heads": 4, "output_bias": True}) for dtype in ("float32", *PRECISIONS)),
    ("transformer", "int8", {"heads": 4, "tied": False}),  # packed
    ("t5", "float32", {"heads": 4}),
    ("lstm", "float32", {"attention": "dot", "tied": False}),
]
GREEDY = Sampling(max_new_tokens=9, temperature=0)
SOURCES = [[7, 1, 5], [8, 3, 8, 1, 9], [4, 5]]


def build(kind: str, dtype: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    cls, config, _ = MODELS[kind]
    own = {} if kind == "t5" else {"target_vocab": TARGETS}
    model = cls(config(**SIZES | own | settings)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    if dtype != "float32":
        quantize_model(model, dtype)
    return model


@pytest.fixture(scope="module")
def shortlist() -> Shortlist:
    rng = np.random.default_rng(0)
    lists = rng.integers(3, TARGETS, (VOCAB, 3)).astype(np.int32)
    return make_shortlist(lists, rng.integers(0, 9, TARGETS), [END], shared=False)


def allowed(shortlist: Shortlist, source: list[int]) -> set[int]:
    return {*shortlist.by_source[source].flatten().tolist(), *shortlist.always.tolist()}


@pytest.mark.parametrize(("kind", "dtype", "settings"), CASES)
def test_few_logits_are_the_masked_ones(
    shortlist: Shortlist, kind: str, dtype: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(kind, dtype, settings)
    writer, beams = ShortlistWriter(model, shortlist), Sampling(max_new_tokens=9, num_beams=4)

    def search(sources: list[list[int]]) -> list[list[Hypothesis]]:
        return search_beams(writer, [[1]] * len(sources), beams, END, 2, sources)

    def same(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> None:
        for a, b in zip(ours, theirs, strict=True):
            assert [h.tokens for h in a] == [h.tokens for h in b]
            assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-4)

    few = search(SOURCES)
    same(few, [several for source in SOURCES for several in search([source])])
    greedy, penalized = (
        [several[0].tokens for several in generate_tokens(writer, [[1]] * 3, sampling, END, 1, SOURCES)]
        for sampling in (
            GREEDY,
            Sampling(max_new_tokens=9, num_beams=3, no_repeat_ngram_size=2),
        )
    )
    for texts in (greedy, penalized, [several[0].tokens for several in few]):
        assert any(texts)
        for source, text in zip(SOURCES, texts, strict=True):
            assert set(text) <= allowed(shortlist, source)
    monkeypatch.setattr(ShortlistWriter, "compact", lambda self: self)
    for source, text in zip(SOURCES, greedy, strict=True):
        assert text == generate_tokens(writer, [[1]], GREEDY, END, 1, [source])[0][0].tokens
    monkeypatch.setattr("regard.tasks.answers.beam_search", masked(model))
    same(few, search(SOURCES))


def masked(model: Any) -> Any:
    """`beam_search` of a state whose logits are those of all tokens."""
    from regard.decode.beam import beam_search

    def search(step: Any, logits: torch.Tensor, state: Any, **options: Any) -> Any:
        assert options["vocab"] is None
        assert logits.shape[1] == len(model.output)
        return beam_search(step, logits, state, **options)

    return search


def test_a_list_that_allows_all_changes_nothing() -> None:
    model = build("transformer", "float32", {"heads": 4})
    everything = Shortlist(torch.zeros(VOCAB, 0, dtype=torch.int32), torch.arange(TARGETS, dtype=torch.int32))
    beams = Sampling(max_new_tokens=9, num_beams=3)
    results = [
        search_beams(m, [[1]] * 3, beams, END, 3, SOURCES)
        for m in (model, ShortlistWriter(model, everything))
    ]
    assert [[h.tokens for h in row] for row in results[0]] == [[h.tokens for h in row] for row in results[1]]


def test_what_a_shortlist_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortlist_module, "FREQUENT", 1)
    lists, counts = np.array([[3, 4], [6, END]], np.int32), np.array([0, 9, 0, 1, 2, 7, 3])
    own = make_shortlist(lists, counts, [END], shared=False)
    assert own.always.tolist() == [END, 1, 5]  # two frequent ones
    assert own.allowed(
        torch.tensor([[0, 1], [0, 1]]), torch.tensor([[True, True], [True, False]]), 7
    ).int().tolist() == [
        [0, 1, 1, 1, 1, 1, 1],
        [0, 1, 1, 1, 1, 1, 0],
    ]
    assert make_shortlist(lists, counts, [END], shared=True).by_source.tolist() == [[0, 3, 4], [1, 6, END]]


def test_files_that_do_not_fit(tmp_path: Path, shortlist: Shortlist) -> None:
    path = tmp_path / "shortlist.safetensors"
    shortlist.save(path)
    again = Shortlist.load(path, VOCAB, TARGETS)
    assert torch.equal(again.by_source, shortlist.by_source)
    assert torch.equal(again.always, shortlist.always)
    user_error(lambda: Shortlist.load(path, VOCAB + 1, TARGETS), str(path), "not a shortlist for this model")
    user_error(lambda: Shortlist.load(path, VOCAB, 50), str(path), "tokens")
    for always in (torch.arange(3), torch.zeros(0, dtype=torch.int32)):
        write_tensors(path, {"by_source": shortlist.by_source, "always": always})
        user_error(lambda: Shortlist.load(path, VOCAB, TARGETS), "not a shortlist")
