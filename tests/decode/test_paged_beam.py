"""Beam search over pages gives what `beam_search` gives."""

from typing import Any

import pytest
import torch
from bench.equality import make_noisy

from regard.decode import paged_beam, runners
from regard.decode.sampling import Sampling
from regard.models import GPT, GPTConfig, Transformer, TransformerConfig
from regard.models.t5 import T5Config
from regard.tasks.answers import search_beams

VOCAB, CONTEXT, END = 23, 80, 2
SIZES: dict[str, Any] = {"vocab": VOCAB, "dim": 32, "heads": 4, "depth": 2, "context": CONTEXT}


def build(model: Any) -> Any:
    runners.set_dtype(model, torch.float32)
    return make_noisy(model, 0.2)


def make_rows(count: int, low: int, high: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def compare(
    model: Any, prompts: list, sampling: Sampling, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> None:
    """Both searches give the same tokens and scores."""
    expected = search_beams(model, prompts, sampling, END, sampling.num_beams, **more)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))
        by_runner = search_beams(model, prompts, sampling, END, sampling.num_beams, **more)
        runner = runners._entries[model].runner
    assert runner.searches, "it was searched plainly"
    assert runner.pool.free == len(runner.pool.users)
    for ours, theirs in zip(by_runner, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)


@pytest.mark.parametrize("beams", [2, 4])
@pytest.mark.parametrize("penalty", [1.0, 0.0, -0.5])
@pytest.mark.parametrize("config", [TransformerConfig(**SIZES), T5Config(**SIZES)])
def test_sources(config: Any, penalty: float, beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, sources = build(Transformer(config)), make_rows(5, 1, CONTEXT)
    sampling = Sampling(num_beams=beams, max_new_tokens=12, length_penalty=penalty)
    compare(model, [[1]] * 5, sampling, monkeypatch, sources=sources)


def test_long_answers_over_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, sources = build(Transformer(TransformerConfig(**SIZES))), make_rows(3, 1, 9)
    with torch.no_grad():
        model.embed.weight[END] *= 0.1  # the end is seldom likely
    sampling = Sampling(num_beams=3, max_new_tokens=75)
    compare(model, [[1, 5, 6]] * 3, sampling, monkeypatch, sources=sources)


def test_prompts_of_unequal_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, prompts = build(GPT(GPTConfig(**SIZES, kv_heads=2))), [*make_rows(4, 1, 60), [3] * 32, [4] * 33]
    compare(model, prompts, Sampling(num_beams=3, max_new_tokens=15), monkeypatch)


def test_suppressed_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, sources = build(Transformer(TransformerConfig(**SIZES))), make_rows(4, 1, 30)
    plain = search_beams(model, [[1]] * 4, Sampling(num_beams=2, max_new_tokens=8), END, 2, sources)
    often = [hypotheses[0].tokens[0] for hypotheses in plain]
    sampling = Sampling(num_beams=2, max_new_tokens=8, suppress_tokens=often)
    compare(model, [[1]] * 4, sampling, monkeypatch, sources=sources)


def test_more_sentences_than_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_beam, "ROWS", (1, 2, 4, 8))
    torch.manual_seed(0)
    model, sources = build(Transformer(TransformerConfig(**SIZES))), make_rows(11, 1, 30)
    compare(model, [[1]] * 11, Sampling(num_beams=2, max_new_tokens=14), monkeypatch, sources=sources)


def test_options_that_need_the_texts_are_searched_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(GPT(GPTConfig(**SIZES)))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))
    sampling = Sampling(num_beams=2, max_new_tokens=5, no_repeat_ngram_size=2)
    assert len(search_beams(model, [[3]], sampling, END, 2)[0]) == 2
    assert model not in runners._entries
