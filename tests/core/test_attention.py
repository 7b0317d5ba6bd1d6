"""Attention against its formulas, against itself on the fast path, and against torch's own module.

Sizes: B = 5 rows, H = 6 heads sharing G = 3, S = 7 keys, T = 3 or fewer queries, d = 11 wide.
"""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.core.attention import (
    KERNELS,
    Additive,
    Attention,
    Bilinear,
    add_causal_mask,
    attend,
    boxcar,
    causal_mask,
    dot,
    epanechnikov,
    fused_attention,
    gaussian,
    masked_softmax,
    padding_mask,
    scaled_dot,
    self_attention,
    split,
    window_mask,
)
from regard.core.cache import CrossKVCache, KVCache
from regard.core.positions import sinusoids

B, H, G, S, d = 5, 6, 3, 7, 11
CPU = torch.device("cpu")


# The lecture's example


def test_lecture_scores_become_the_lecture_weights() -> None:
    scores = torch.tensor([112.0, 96.0, 16.0, 8.0])
    assert_close(
        masked_softmax(scores / math.sqrt(64)), torch.tensor([0.881, 0.119, 0.0, 0.0]), atol=5e-4, rtol=0
    )


def test_lecture_weights_from_vectors() -> None:
    q = torch.ones(1, 64)
    k = torch.tensor([112.0, 96.0, 16.0, 8.0])[:, None] / 64 * torch.ones(4, 64)
    assert_close(dot(q, k), torch.tensor([[112.0, 96.0, 16.0, 8.0]]))
    out, weights = attend(q, k, v=torch.eye(4))
    assert_close(weights, torch.tensor([[0.881, 0.119, 0.0, 0.0]]), atol=5e-4, rtol=0)
    assert_close(out, weights)  # the values are the unit vectors, so the average shows the weights


def test_look_ahead_gives_nothing_to_later_words() -> None:
    q, k, v = torch.randn(3, B, H, S, d)
    _, weights = attend(q, k, v, causal=True)
    later = torch.ones(S, S, dtype=torch.bool).triu(1)
    assert (weights[..., later] == 0).all()
    assert (weights[..., ~later] > 0).all()
    assert_close(weights.sum(-1), torch.ones(B, H, S))


def test_without_positions_attention_sees_a_set() -> None:
    attention, x, order = Attention(H * d, H), torch.randn(B, S, H * d), torch.randperm(S)
    assert_close(attention(x[:, order]), attention(x)[:, order])
    placed = sinusoids(torch.arange(S), H * d)
    moved = attention(x[:, order] + placed) - attention(x + placed)[:, order]
    assert moved.abs().max() > 0.01


def test_parameter_free_self_attention() -> None:
    x = torch.randn(B, S, d)
    expected = torch.zeros(B, S, d)
    for b, t in itertools.product(range(B), range(S)):
        e = torch.stack([torch.exp(x[b, t] @ x[b, s]) for s in range(S)])
        expected[b, t] = sum(e[s] / e.sum() * x[b, s] for s in range(S))
    assert_close(self_attention(x), expected)


# Scores


def test_dot_scores() -> None:
    q, k = torch.randn(B, 3, d), torch.randn(B, S, d)
    expected = torch.einsum("btd,bsd->bts", q, k)
    assert_close(dot(q, k), expected)
    assert_close(scaled_dot(q, k), expected / d**0.5)


def test_additive_score_is_its_formula() -> None:
    score, q, k = Additive(q_dim=d, k_dim=13, hidden=17), torch.randn(B, 3, d), torch.randn(B, S, 13)
    W, U, w = score.W.weight, score.U.weight, score.w.weight[0]
    expected = torch.zeros(B, 3, S)
    for b, t, s in itertools.product(range(B), range(3), range(S)):
        expected[b, t, s] = w @ torch.tanh(W @ q[b, t] + U @ k[b, s])
    assert_close(score(q, k), expected)


def test_bilinear_score_is_its_formula() -> None:
    score, q, k = Bilinear(q_dim=d, k_dim=13), torch.randn(B, 3, d), torch.randn(B, S, 13)
    assert_close(score(q, k), torch.einsum("btd,de,bse->bts", q, score.W.weight, k))


def test_attend_takes_any_score() -> None:
    q, k, v = torch.randn(B, 3, d), torch.randn(B, S, 13), torch.randn(B, S, 17)
    for score in Additive(d, 13, 19), Bilinear(d, 13):
        out, weights = attend(q, k, v, score=score)
        assert_close(weights, score(q, k).softmax(-1))
        assert_close(out, weights @ v)


# Nadaraya-Watson: f(x) = Σ K((x - x_i) / h) y_i / Σ K((x - x_i) / h)

FORMULAS = {
    "gaussian": lambda u: np.exp(-(u**2) / 2),
    "boxcar": lambda u: 1.0 * (np.abs(u) <= 1),
    "epanechnikov": lambda u: np.maximum(1 - u**2, 0),
}


@pytest.mark.parametrize("width", [0.4, 1.0])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_regression_on_a_curve(name: str, width: float) -> None:
    rng = np.random.default_rng(0)
    x = np.sort(5 * rng.random(53))
    y = 2 * np.sin(x) + x**0.8 + rng.normal(0, 0.5, 53)
    asked = np.linspace(0, 5, 31)
    K = FORMULAS[name]((asked[:, None] - x) / width)
    column = (torch.tensor(a)[:, None] for a in (asked, x, y))
    out, weights = attend(*column, score=partial(KERNELS[name], width=width))
    assert_close(weights.numpy(), K / K.sum(1, keepdims=True))
    assert_close(out[:, 0].numpy(), K @ y / K.sum(1))


def test_kernels_measure_in_every_dimension() -> None:
    q, k = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    assert_close(gaussian(q, k), torch.tensor([[-12.5]]))
    assert_close(boxcar(q, k, width=5.0), torch.tensor([[0.0]]))
    assert_close(boxcar(q, k, width=4.9), torch.tensor([[-math.inf]]))
    assert_close(epanechnikov(q, k, width=10.0), torch.tensor([[math.log(0.75)]]))


@pytest.mark.parametrize("name", ["boxcar", "epanechnikov"])
def test_a_query_out_of_reach_averages_nothing(name: str) -> None:
    q = torch.tensor([[0.0], [100.0]], requires_grad=True)
    k = torch.tensor([[-0.5], [0.1], [2.0]], requires_grad=True)
    v = torch.randn(3, 1, requires_grad=True)
    out, weights = attend(q, k, v, score=KERNELS[name])
    assert (weights[1] == 0).all()
    assert (out[1] == 0).all()
    (1e3 * out).sum().backward()
    for t in q, k, v:
        assert t.grad is None or t.grad.isfinite().all()
    assert v.grad is not None
    assert v.grad[2] == 0


# Softening


def test_masked_softmax_is_softmax_in_every_precision() -> None:
    scores = 10 * torch.randn(B, S)
    assert_close(masked_softmax(scores), scores.softmax(-1))
    assert_close(masked_softmax(scores + 1e4), (scores + 1e4).softmax(-1))
    for dtype in torch.bfloat16, torch.float16:
        assert masked_softmax(scores.to(dtype)).dtype == dtype
        assert_close(masked_softmax(scores.to(dtype)), scores.to(dtype).softmax(-1))


def test_masked_softmax_gradient_is_softmax_gradient() -> None:
    scores = torch.randn(B, S, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(masked_softmax, scores)


def test_nothing_to_look_at_gives_zero_whatever_gradient_arrives() -> None:
    scores = torch.full((2, S), -math.inf)
    scores[1, 3] = 1.0
    scores.requires_grad_()
    weights = masked_softmax(scores)
    assert_close(weights, torch.eye(S)[3] * torch.tensor([[0.0], [1.0]]))
    weights.backward(torch.full_like(weights, 1e30))
    assert scores.grad is not None
    assert (scores.grad == 0).all()


# Masks


def test_padding_mask() -> None:
    mask = padding_mask(torch.tensor([2, 5, 0]), 5)
    assert mask.shape == (3, 1, 1, 5)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]


def test_causal_mask_is_aligned_to_the_last_key() -> None:
    assert causal_mask(3, 3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(2, 5).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_masks_combine() -> None:
    mask = padding_mask(torch.tensor([2, 3]), 3)
    assert add_causal_mask(None, 3, 3, False, CPU) is None
    assert add_causal_mask(mask, 3, 3, False, CPU) is mask
    both = add_causal_mask(mask, 3, 3, True, CPU)
    assert both is not None
    assert both[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert both[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_window_mask_is_a_band_and_a_cross() -> None:
    assert window_mask(5, 5, 1, 0).int().tolist() == [
        [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]
    ]  # fmt: skip
    assert window_mask(5, 5, 1, 1).int().tolist() == [
        [1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [1, 0, 0, 1, 1]
    ]  # fmt: skip
    assert window_mask(5, 5, 3, 1).all()  # 1 and 4 are the farthest that are not global


@pytest.mark.parametrize("causal", [False, True])
def test_padded_rows_attend_as_if_alone(causal: bool) -> None:
    attention, x, lengths = Attention(H * d, H, G, causal=causal), torch.randn(3, S, H * d), [2, 7, 3]
    together = attention(x, mask=padding_mask(torch.tensor(lengths), S))
    for row, length in enumerate(lengths):
        assert_close(together[row : row + 1, :length], attention(x[row : row + 1, :length]))


# The fast path and the definition


def masks(kind: str, T: int) -> Tensor | None:
    if kind == "right":
        return padding_mask(torch.tensor([7, 5, 3, 2, 1]), S)
    if kind == "left":  # early queries of a causal row see only padding
        return padding_mask(torch.tensor([7, 5, 3, 2, 1]), S).flip(-1)
    if kind == "blind":  # whole rows may look nowhere, and one row of the batch is nothing but padding
        mask = torch.rand(B, 1, T, S) > 0.5
        mask[0], mask[1, :, 0] = False, False
        return mask
    return None


@pytest.mark.parametrize("groups", [H, G, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["none", "right", "left", "blind"])
@pytest.mark.parametrize("T", [S, 3, 1])
def test_fused_is_attend(T: int, kind: str, biased: bool, causal: bool, groups: int) -> None:
    inputs = [torch.randn(B, H, T, d), torch.randn(B, groups, S, d), torch.randn(B, groups, S, d)]
    inputs += [torch.randn(H, T, S)] if biased else []
    mask, gradient = masks(kind, T), 100 * torch.randn(B, H, T, d)

    def run(open_path: bool) -> tuple[Tensor, ...]:
        q, k, v, *rest = leaves = [t.clone().requires_grad_() for t in inputs]
        bias = rest[0] if rest else None
        if open_path:
            k, v = (t.repeat_interleave(H // groups, dim=1) for t in (k, v))
            out, weights = attend(q, k, v, mask, bias, causal)
            assert weights.isfinite().all()
        else:
            out = fused_attention(q, k, v, mask, bias, causal)
        return out, *torch.autograd.grad(out, leaves, gradient)

    fast, slow = run(open_path=False), run(open_path=True)
    assert all(t.isfinite().all() for t in fast + slow)
    assert_close(fast, slow, atol=1e-3, rtol=1e-5)  # of gradients in the hundreds
    assert_close(fast[0], slow[0], atol=2e-6, rtol=1e-5)
    blind = None if (may := add_causal_mask(mask, T, S, causal, CPU)) is None else ~may.any(-1)
    if blind is not None:
        assert (fast[0][blind.expand(B, H, T)] == 0).all()


def test_fused_in_half_precision_takes_a_bias_in_full() -> None:
    q, k, v = torch.randn(3, B, H, S, d, dtype=torch.bfloat16)
    bias = torch.randn(H, S, S)
    expected, _ = attend(q.float(), k.float(), v.float(), bias=bias)
    assert_close(fused_attention(q, k, v, bias=bias).float(), expected, atol=0.05, rtol=0.05)


def test_causal_in_half_precision_is_the_definition_bit_for_bit() -> None:
    """Also its gradients, though it looks for no query that may attend to nothing."""
    q, k, v = torch.randn(3, B, H, S, d, dtype=torch.bfloat16, requires_grad=True)
    results = []
    for f in (fused_attention, lambda *qkv, **how: attend(*qkv, **how)[0]):
        y = f(q, k, v, causal=True)
        results.append([y, *torch.autograd.grad(y.square().sum(), [q, k, v])])
    assert_close(*results, atol=0, rtol=0)


def test_dropout_keeps_the_mean_and_spreads_alike_on_both_paths() -> None:
    draws = 20_000
    q, k, v = (t.expand(draws, 1, S, d) for t in torch.randn(3, 1, 1, S, d))
    plain = fused_attention(q[:1], k[:1], v[:1])[0]
    fast, slow = fused_attention(q, k, v, dropout=0.3), attend(q, k, v, dropout=0.3)[0]
    for out in fast, slow:
        assert_close(out.mean(0), plain, atol=0.04, rtol=0)
    assert_close(fast.std(0), slow.std(0), atol=0.04, rtol=0)
    assert slow.std(0).min() > 0.05


def test_dropout_is_for_training_only() -> None:
    attention, x = Attention(H * d, H, dropout=0.5), torch.randn(B, S, H * d)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    quiet = Attention(H * d, H)
    quiet.load_state_dict(attention.state_dict())
    assert_close(attention(x), quiet(x))


# The module


def test_split_heads() -> None:
    x = torch.randn(B, S, H * d)
    assert split(x, H).shape == (B, H, S, d)
    assert torch.equal(split(x, H)[:, 2], x[..., 2 * d : 3 * d])


def test_sizes_that_do_not_divide_are_named() -> None:
    with pytest.raises(ValueError, match=r"dim=10 .*heads=3"):
        Attention(10, 3)
    with pytest.raises(ValueError, match=r"heads=6.*kv_heads=4"):
        Attention(66, 6, 4)


@pytest.mark.parametrize("kv_heads", [G, 1])
def test_grouped_heads_are_heads_with_copied_keys_and_values(kv_heads: int) -> None:
    shared, full, x = Attention(H * d, H, kv_heads), Attention(H * d, H), torch.randn(B, S, H * d)
    weights = shared.state_dict()
    for name in "k.weight", "k.bias", "v.weight", "v.bias":
        by_head = weights[name].unflatten(0, (kv_heads, d))
        weights[name] = by_head.repeat_interleave(H // kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    assert_close(shared(x), full(x))


def copy_from_torch(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    q, k, v = theirs.in_proj_weight.detach().chunk(3)
    bq, bk, bv = theirs.in_proj_bias.detach().chunk(3)
    ours.load_state_dict(
        {
            "q.weight": q, "k.weight": k, "v.weight": v, "out.weight": theirs.out_proj.weight.detach(),
            "q.bias": bq, "k.bias": bk, "v.bias": bv, "out.bias": theirs.out_proj.bias.detach(),
        }
    )  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_parity_with_torch(kind: str, padded: bool) -> None:
    D, T = H * d, S if kind != "cross" else 3
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    nn.init.normal_(theirs.in_proj_weight, std=0.3)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = Attention(D, H, causal=kind == "causal")
    copy_from_torch(theirs, ours)
    theirs, ours = theirs.double(), ours.double()  # so that the bounds can be narrow
    x = torch.randn(B, T, D).double()
    source = torch.randn(B, S, D).double() if kind == "cross" else None
    mask = padding_mask(torch.tensor([7, 2, 5, 1, 3]), S) if padded else None
    gradient = torch.randn(B, T, D).double()

    leaves = [t.clone().requires_grad_() for t in (x, source) if t is not None]
    y = ours(leaves[0], leaves[1] if kind == "cross" else None, mask=mask)
    y.backward(gradient)
    twins = [t.clone().requires_grad_() for t in (x, source) if t is not None]
    z, _ = theirs(
        twins[0], twins[-1], twins[-1],
        key_padding_mask=None if mask is None else ~mask[:, 0, 0],
        attn_mask=~causal_mask(S, S) if kind == "causal" else None,
    )  # fmt: skip
    z.backward(gradient)

    tight = partial(assert_close, atol=1e-12, rtol=1e-9)
    tight(y, z)
    tight([t.grad for t in leaves], [t.grad for t in twins])
    parts = (ours.q, ours.k, ours.v)
    tight(torch.cat([m.weight.grad for m in parts]), theirs.in_proj_weight.grad)
    tight(torch.cat([m.bias.grad for m in parts]), theirs.in_proj_bias.grad)
    tight(
        (ours.out.weight.grad, ours.out.bias.grad), (theirs.out_proj.weight.grad, theirs.out_proj.bias.grad)
    )


def test_growing_cache_continues_a_causal_attention() -> None:
    attention, x, cache = Attention(H * d, H, G, causal=True), torch.randn(B, S, H * d), KVCache()
    pieces = [attention(piece, cache=cache) for piece in x.split([3, 1, 2, 1], dim=1)]
    assert_close(torch.cat(pieces, dim=1), attention(x))


def test_fixed_cache_reads_the_source_once() -> None:
    attention, source, cache, calls = Attention(H * d, H), torch.randn(B, S, H * d), CrossKVCache(), []
    attention.k.register_forward_hook(lambda *_: calls.append("k"))
    attention.v.register_forward_hook(lambda *_: calls.append("v"))
    x = torch.randn(B, 3, H * d)
    steps = [attention(x[:, t : t + 1], source, cache=cache) for t in range(3)]
    assert calls == ["k", "v"]
    assert_close(torch.cat(steps, dim=1), attention(x, source))


@pytest.mark.slow  # inductor compiles C++
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch has deprecated
def test_compiled_in_bfloat16() -> None:
    """A compiler may use more digits than eager mode; weights and gradients must not depend on it.

    Scores as large as trained models have them, in the precision that `train.precision=bf16` uses.
    """
    q, k, v = (torch.randn(2, 3, 11, 8, dtype=torch.bfloat16) * scale for scale in (7, 7, 1))
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(attend(*exact, causal=True)[0].square().sum(), exact)
    rough = [t.clone().requires_grad_() for t in (q, k, v)]
    for f in (lambda *t: attend(*t, causal=True)[0], partial(fused_attention, causal=True)):
        got = torch.autograd.grad(torch.compile(f)(*rough).square().sum(), rough)
        for mine, true in zip(got, want, strict=True):
            assert (mine.double() - true).norm() < 0.05 * true.norm()
