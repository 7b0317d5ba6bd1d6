"""From logits to a token: filters against Hugging Face's, and random numbers."""

import math

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from regard.decode.filters import min_p, top_k, top_p
from regard.decode.sampling import (
    Sampling,
    beam_processor,
    choose,
    no_repeat_ngram,
    process_logits,
    repetition_penalty,
    row_generator,
    sample_tokens,
    temperature,
)

VOCAB = 29


def test_random_numbers_of_a_row():
    rows = [(3, 0, [1, 2]), (4, 0, [1, 2]), (3, 1, [1, 2]), (3, 0, [1, 3]), (3, 0, [1]), (2**64 - 1, 0, [1])]
    u = np.stack([row_generator(*row).random(2000) for row in rows])
    assert ((u >= 0) & (u < 1)).all()
    assert abs(u.mean(1) - 0.5).max() < 0.03
    assert abs(np.corrcoef(u) - np.eye(len(rows))).max() < 0.1
    assert row_generator(3, 0, [1, 2]).random() == 0.6472614756234952, "seeds keep their meaning"


def test_draw_follows_the_probabilities():
    logits = torch.tensor([0.3, -math.inf, 2.0, -1.0, -math.inf])
    n = 20_000
    tokens = sample_tokens(logits.expand(n, -1), ((torch.arange(n) + 0.5) / n)[:, None])
    assert torch.allclose(tokens.bincount(minlength=5) / n, logits.softmax(0), atol=2 / n)
    grid = (torch.arange(60) + 0.5) / 60
    tokens = sample_tokens(logits.expand(60**3, -1), torch.cartesian_prod(grid, grid, grid))
    assert torch.allclose(tokens.bincount(minlength=5) / 60**3, logits.softmax(0), atol=3 / 60)


@pytest.mark.parametrize("V", [1, 2, 7, 8, 9, 27, 1000, 1001])
def test_every_token_can_be_drawn(V):
    logits = torch.full((V, V), -math.inf).fill_diagonal_(0.0)
    for u in (0.0, 0.3, 1 - 2**-53):
        assert sample_tokens(logits, torch.full((V, 3), u)).tolist() == list(range(V))


def test_rounding_hardly_ever_changes_a_draw():
    """Logits of another batch differ by rounding; with one threshold for every token, that changes draws."""
    g, changed = torch.Generator().manual_seed(0), {1: 0, 3: 0}
    for _ in range(8):
        logits, u = 3 * torch.randn(100, 32_003, generator=g), torch.rand(100, 3, generator=g)
        other = logits + 3e-6 * torch.randn(logits.shape, generator=g)
        for N in changed:
            changed[N] += int((sample_tokens(logits, u[:, :N]) != sample_tokens(other, u[:, :N])).sum())
    assert changed[3] == 0 < changed[1]


@pytest.mark.parametrize("u", [0.0, 1e-30, 0.5, 1 - 2**-53])
def test_draw_never_takes_what_was_ruled_out(u):
    logits = torch.randn(13, 10_007, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, ::2] = -math.inf
    logits[:, -100:] = -math.inf
    logits[:, :100] = -math.inf
    logits[0] = -math.inf
    logits[0, 5003] = -80.0
    for levels in (1, 3):
        tokens = sample_tokens(logits, torch.full((13, levels), u, dtype=torch.float64).float())
        assert logits.gather(1, tokens[:, None]).isfinite().all()


def odd_logits(B=7, V=31):
    """Random, equal, huge, tiny and forbidden logits."""
    x = torch.randn(B, V, generator=torch.Generator().manual_seed(1)) * 3
    x[1] = x[1].round()  # ties
    x[2] = 0.0
    x[3] *= 1e30
    x[4, 3:] = -math.inf
    x[5] = -50.0
    x[5, 4] = 90.0
    x[6, ::2] *= 1e-30
    return x


TEXTS = torch.randint(0, 5, (7, 23), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (temperature, hf.TemperatureLogitsWarper, [0.1, 0.7, 1.0, 5.0]),
        (top_k, hf.TopKLogitsWarper, [1, 2, 5, 30, 31, 1000]),
        (top_p, hf.TopPLogitsWarper, [0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
        (min_p, hf.MinPLogitsWarper, [0.0, 1e-6, 0.1, 0.5, 1.0]),
    ],
)
def test_filters_are_hugging_faces(ours, theirs, values):
    distinct = [0, 3, 6] if ours is top_p else list(range(7))
    for value in values:
        logits = odd_logits()
        left, expected = ours(logits, value), theirs(value)(None, logits)
        assert torch.equal(left[distinct], expected[distinct]), value
        assert torch.equal(left.sort().values, expected.sort().values), value  # of equals, others may stay
        assert torch.equal(logits, odd_logits()), "the argument is left alone"
        assert ours(logits, value).amax(-1).isfinite().all()


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (repetition_penalty, hf.RepetitionPenaltyLogitsProcessor, [0.5, 1.0, 1.2, 30.0]),
        (no_repeat_ngram, hf.NoRepeatNGramLogitsProcessor, [1, 2, 3, 4, 23, 24, 99]),
    ],
)
def test_filters_that_know_the_text_are_hugging_faces(ours, theirs, values):
    for value in values:
        for T in (1, 2, 3, 23):
            logits = odd_logits()
            logits[4] = 1.0  # banning all that is left is where we differ
            expected = theirs(value)(TEXTS[:, :T], logits.clone())
            assert torch.equal(ours(logits, TEXTS[:, :T].tolist(), value), expected), (value, T)


def test_top_p_keeps_the_first_of_equals():
    assert top_p(torch.zeros(1, 997), 0.25)[0].isfinite().nonzero()[:, 0].tolist() == list(range(250))


def test_filters_come_in_hugging_faces_order():
    """Tokens are sampled with the probabilities of Hugging Face's filters."""
    s = Sampling(
        repetition_penalty=1.7, no_repeat_ngram_size=2, temperature=0.6, top_k=11, top_p=0.9, min_p=0.02
    )
    logits = torch.randn(3, 31, generator=torch.Generator().manual_seed(3)) * 2
    scores = hf.RepetitionPenaltyLogitsProcessor(1.7)(TEXTS[:3], logits)
    scores = hf.NoRepeatNGramLogitsProcessor(2)(TEXTS[:3], scores)
    for warp in (
        hf.TemperatureLogitsWarper(0.6),
        hf.TopKLogitsWarper(11),
        hf.TopPLogitsWarper(0.9),
        hf.MinPLogitsWarper(0.02),
    ):
        scores = warp(None, scores)
    texts = TEXTS[:3].tolist()
    choices = torch.tensor([choose(logits, texts, s, np.full((3, 1), (i + 0.5) / 500)) for i in range(500)])
    for row in range(3):
        counts = choices[:, row].bincount(minlength=31) / 500
        assert torch.allclose(counts, scores[row].softmax(0), atol=2 / 500)


def test_greedy_takes_the_first_of_equals():
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]])
    for t in (0, 0.0, 1e-9):
        assert choose(logits, [[0], [0]], Sampling(temperature=t), np.full((2, 3), 0.9)) == [1, 0]


@pytest.mark.parametrize("t", [2e-6, 1e-3, 1e30])
def test_extreme_temperatures(t):
    logits = odd_logits()
    logits[3] *= 1e5  # near the end of what float32 holds
    tokens = choose(logits, TEXTS.tolist(), Sampling(temperature=t, top_p=0.9), np.full((7, 3), 0.7))
    assert all(logits[row, token].isfinite() for row, token in enumerate(tokens))
    if t < 1e-5:
        assert (logits.gather(1, torch.tensor(tokens)[:, None])[:, 0] == logits.amax(-1)).all()


def test_allowed():
    assert beam_processor(Sampling(), [[1]]) is None
    s = Sampling(repetition_penalty=1.7, no_repeat_ngram_size=2)
    logits = torch.randn(2, 3, VOCAB).log_softmax(-1)
    texts = torch.randint(0, 5, (2, 3, 7))
    prompts = [[1], [2, 3], [4, 0, 4]]
    rows = torch.tensor([2, 0])  # row 1 is over
    change = beam_processor(s, prompts)(logits, texts, rows)
    assert change.shape == logits.shape
    for b, row in enumerate(rows.tolist()):
        for k in range(3):
            text = torch.tensor([[*prompts[row], *texts[b, k].tolist()]])
            scores = hf.RepetitionPenaltyLogitsProcessor(1.7)(text, logits[b, k : k + 1])
            scores = hf.NoRepeatNGramLogitsProcessor(2)(text, scores)
            assert torch.equal(change[b, k], scores[0])
            assert torch.equal(process_logits(logits[b, k : k + 1], text.tolist(), s), scores)
    assert torch.equal(process_logits(logits[0], [[1]] * 3, Sampling()), logits[0])
