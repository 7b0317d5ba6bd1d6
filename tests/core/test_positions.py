"""Position encodings against their formulas and against Hugging Face's."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from regard.core.positions import (
    POSITIONS,
    ALiBi,
    Learned,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
    distances,
    rotate,
    sinusoids,
)


@pytest.mark.parametrize("dim", [16, 13])
def test_sinusoids_are_the_published_formula(dim: int) -> None:
    table = sinusoids(torch.arange(101), dim)
    assert table.shape == (101, dim)
    for pos in 0, 1, 2, 37, 100:
        for i in range((dim + 1) // 2):
            angle = pos / 10_000 ** (2 * i / dim)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            if 2 * i + 1 < dim:
                assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_a_shift_turns_every_sinusoid_by_the_same_angle() -> None:
    """The property that the paper wanted: PE(pos + k) is a linear function of PE(pos)."""
    table, k = sinusoids(torch.arange(50), 16).double(), 7
    solution = torch.linalg.lstsq(table[:-k], table[k:]).solution
    assert_close(table[:-k] @ solution, table[k:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", POSITIONS)
def test_the_three_questions(name: str) -> None:
    positions = POSITIONS[name](17, 20, 2)
    x, q, rows = torch.randn(3, 5, 20), torch.randn(3, 2, 5, 10), torch.arange(5).expand(3, 5)
    for pos in torch.arange(5), rows:
        assert positions.add(x, pos).shape == x.shape
        assert rotate(q, positions.rotary(pos)).shape == q.shape
    assert_close(positions.add(x, rows), positions.add(x, rows[0]))
    assert_close(rotate(q, positions.rotary(rows)), rotate(q, positions.rotary(rows[0])))
    bias = positions.bias(5, 7)
    assert bias is None or bias.shape == (2, 5, 7)
    changes = [
        not torch.equal(positions.add(x, rows), x),
        positions.rotary(rows) is not None,
        bias is not None,
    ]
    assert sum(changes) == (name != "none")  # each encoding answers one question, the default none


def test_no_positions_change_nothing() -> None:
    x, pos, none = torch.randn(3, 5, 20), torch.arange(5), Positions(17, 20, 2)
    assert none.add(x, pos) is x
    assert none.rotary(pos) is None
    assert none.bias(5, 7) is None


def test_added_tables() -> None:
    x, pos = torch.randn(2, 3, 20), torch.tensor([[4, 0, 16], [1, 2, 3]])
    learned = Learned(17, 20, 2)
    assert_close(learned.add(x, pos), x + learned.table.weight[pos])
    assert_close(Sinusoidal(17, 20, 2).add(x, pos), x + sinusoids(pos, 20))


def test_rotary_turns_pairs_by_position_times_frequency() -> None:
    x, pos, d = torch.randn(3, 2, 5, 10), torch.tensor([0, 1, 2, 5, 16]), 10
    y = rotate(x, Rotary(17, 20, 2).rotary(pos))
    for i in range(d // 2):
        a, b = x[..., i], x[..., i + d // 2]
        angle = pos * 10_000 ** (-2 * i / d)
        assert_close(y[..., i], a * angle.cos() - b * angle.sin())
        assert_close(y[..., i + d // 2], a * angle.sin() + b * angle.cos())
    assert_close(y.norm(dim=-1), x.norm(dim=-1))


def test_rotary_scores_depend_on_distance_only() -> None:
    rotary, (q, k) = Rotary(97, 20, 2), torch.randn(2, 1, 2, 1, 10)
    at = [(0, 3), (11, 14), (90, 93)]
    scores = [
        rotate(q, rotary.rotary(torch.tensor([m]))) @ rotate(k, rotary.rotary(torch.tensor([n]))).mT
        for m, n in at
    ]
    assert_close(scores[1], scores[0], atol=1e-4, rtol=0)
    assert_close(scores[2], scores[0], atol=1e-4, rtol=0)


def test_rotary_names_an_odd_width() -> None:
    with pytest.raises(ValueError, match="dim=21 / heads=7"):
        Rotary(17, 21, 7)


def test_distances_count_from_the_last_query() -> None:
    assert distances(2, 4, torch.device("cpu")).tolist() == [[-2, -1, 0, 1], [-3, -2, -1, 0]]


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 25])
def test_alibi_is_blooms(heads: int) -> None:
    S = 7
    theirs = build_alibi_tensor(torch.ones(1, S), heads, torch.float32).view(
        heads, S
    )  # slope * key's position
    bias = ALiBi(S, 8 * heads, heads).bias(3, S)
    for t in range(3):
        query = S - 3 + t
        records = bias[:, t, : query + 1]
        assert_close(
            records, (theirs - theirs[:, query : query + 1])[:, : query + 1]
        )  # softmax ignores the shift


def test_alibi_slopes_are_the_published_series() -> None:
    assert_close(ALiBi(5, 64, 8).slopes, torch.tensor([2.0**-i for i in range(1, 9)]))
    between = [2.0 ** -(i + 0.5) for i in range(4)]
    assert_close(ALiBi(5, 96, 12).slopes, torch.tensor([2.0**-i for i in range(1, 9)] + between))


@pytest.mark.parametrize("both_ways", [False, True])
def test_relative_bias_is_t5s(both_ways: bool) -> None:
    heads, S = 3, 307
    theirs = T5Attention(
        T5Config(num_heads=heads, is_decoder=not both_ways), has_relative_attention_bias=True
    )
    ours = Relative(S, 24, heads, both_ways=both_ways)
    ours.load_state_dict({"table.weight": theirs.relative_attention_bias.weight.detach()})
    assert_close(ours.bias(S, S), theirs.compute_bias(S, S)[0])
    assert_close(ours.bias(5, S), theirs.compute_bias(5, S, past_seen_tokens=S - 5)[0])
    gradient = torch.randn(heads, S, S)
    ours.bias(S, S).backward(gradient)
    theirs.compute_bias(S, S)[0].backward(gradient)
    assert_close(ours.table.weight.grad, theirs.relative_attention_bias.weight.grad, atol=1e-3, rtol=1e-4)


def test_relative_buckets_are_few_and_grow() -> None:
    ours = Relative(512, 24, 3, both_ways=True, buckets=8, far=20)
    bucket = ours.bucket(torch.arange(-300, 301))
    assert bucket.min() == 0
    assert bucket.max() == 7
    assert ours.bucket(torch.tensor([-300, -20, -1, 0, 1, 20, 300])).tolist() == [3, 3, 1, 0, 5, 7, 7]
