"""Attention within a window, against its definition and Hugging Face's Longformer.

Sizes: B = 5 rows, H = 6 heads sharing G = 3, S = 7 keys, d = 11 wide.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from regard.core.attention import Attention, attend, padding_mask, window_mask, windowed_attention
from regard.core.cache import KVCache

B, H, G, S, d = 5, 6, 3, 7, 11
LENGTHS = {  # of rows, in shares: whole, middling, one token, none at all
    "none": None,
    "right": [1.0, 0.7, 0.3, 0.01, 0.0],
}


def both_ways(
    T: int,
    window: int,
    globals: int,
    groups: int = H,
    padding: str = "right",
    dtype: torch.dtype = torch.float32,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Outputs and the gradients of q, k and v: by blocks, and by the definition."""
    inputs = [torch.randn(B, heads, T, d).to(dtype) for heads in (H, groups, groups)]
    shares, gradient = LENGTHS[padding], torch.randn(B, H, T, d).to(dtype)
    mask = None if shares is None else padding_mask((torch.tensor(shares) * T).ceil().long(), T)
    near, answers = window_mask(T, T, window, globals), []
    for fast in True, False:
        q, k, v = leaves = [t.clone().requires_grad_() for t in inputs]
        if fast:
            out = windowed_attention(q, k, v, mask, window, globals)
        else:
            k, v = (t.repeat_interleave(H // groups, dim=1) for t in (k, v))
            out, _ = attend(q, k, v, near if mask is None else mask & near)
        answers.append((out, *torch.autograd.grad(out, leaves, gradient)))
    assert all(t.isfinite().all() for answer in answers for t in answer)
    return answers[0], answers[1]


@pytest.mark.parametrize("padding", LENGTHS)
@pytest.mark.parametrize("globals", [0, 1, 3])
@pytest.mark.parametrize("window", [1, 2, 5, 11])
@pytest.mark.parametrize("T", [1, 2, 7, 17, 30, 37, 41])
def test_windowed_is_pool_with_its_mask(T: int, window: int, globals: int, padding: str) -> None:
    """One block or many, the last one full or not, and rows that end in any of them."""
    fast, slow = both_ways(T, window, globals, padding=padding)
    assert_close(fast, slow, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("groups", [G, 1])
@pytest.mark.parametrize("padding", LENGTHS)
def test_windowed_heads_share_keys_and_values(groups: int, padding: str) -> None:
    fast, slow = both_ways(41, 5, 2, groups, padding)
    assert_close(fast, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("T", [17, 41, 523])  # short, in blocks, and longer than the kernel is avoided for
def test_windowed_in_half_precision(T: int) -> None:
    fast, slow = both_ways(T, 7, 1, dtype=torch.bfloat16)
    for mine, true in zip(fast, slow, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - true).float().norm() < 0.02 * true.float().norm()


def test_windowed_gradients_are_true() -> None:
    q, k, v = torch.randn(3, 2, 1, 11, 3, dtype=torch.float64).requires_grad_()
    mask = padding_mask(torch.tensor([11, 7]), 11)
    assert torch.autograd.gradcheck(lambda *qkv: windowed_attention(*qkv, mask, 2, 1), (q, k, v))


@pytest.mark.parametrize("T", [1, 7, 41])
def test_a_window_on_everything_is_full_attention(T: int) -> None:
    full, x = Attention(H * d, H, G), torch.randn(B, T, H * d)
    mask = padding_mask(torch.tensor([T, T // 2, 1, 1, 0]), T)
    for window in T, T - 1, T + 100:
        wide = Attention(H * d, H, G, window=max(window, 1))
        wide.load_state_dict(full.state_dict())
        assert_close(wide(x), full(x))
        assert_close(wide(x, mask=mask), full(x, mask=mask))
    everyone = Attention(H * d, H, G, window=1, globals=T)
    everyone.load_state_dict(full.state_dict())
    assert_close(everyone(x), full(x))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("T", [7, 41])
def test_a_watched_window_is_an_unwatched_one(T: int, padded: bool) -> None:
    attention, x = Attention(H * d, H, G, window=3, globals=2), torch.randn(B, T, H * d)
    mask = padding_mask(torch.tensor([T, 6, 3, 2, 1]), T) if padded else None
    unwatched, attention.records = attention(x, mask=mask), []
    assert_close(attention(x, mask=mask), unwatched, atol=1e-5, rtol=1e-5)
    (record,) = attention.records
    looked = window_mask(T, T, 3, 2) if mask is None else mask & window_mask(T, T, 3, 2)
    assert torch.equal(record["weights"] > 0, looked.expand(B, H, T, T))


def test_windowed_rows_attend_as_if_alone() -> None:
    attention, x, lengths = Attention(H * d, H, window=3), torch.randn(5, 41, H * d), [41, 40, 23, 9, 1]
    mask = padding_mask(torch.tensor(lengths), 41)
    together = attention(x, mask=mask)
    other = attention(torch.where(mask[:, 0, 0, :, None], x, 7.0), mask=mask)
    for row, length in enumerate(lengths):
        assert torch.equal(other[row, :length], together[row, :length])
        alone = attention(x[row : row + 1, :length])
        assert_close(together[row : row + 1, :length], alone, atol=1e-5, rtol=1e-5)


def test_scores_of_a_window_are_linear_in_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, scores = F.scaled_dot_product_attention, []

    def counting(q: Tensor, k: Tensor, *args: object, **kwargs: object) -> Tensor:
        scores[-1] += q.shape[:-1].numel() * k.shape[-2]
        return kernel(q, k, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counting)
    for T in 512, 1024, 2048, 4096:
        scores.append(0)
        windowed_attention(*torch.randn(3, 1, 2, T, 3), None, window=16, globals=1)
    for T, count in zip((512, 1024, 2048, 4096), scores, strict=True):
        assert (
            count <= 2 * T * (3 * 16 + 2) + 2 * 16 * 49
        )  # a block's, a global query's, the last block's filling
        assert count >= 2 * T * (2 * 16 + 1)
    assert scores[3] < 8.1 * scores[0]


def test_windowed_dropout_keeps_the_mean_and_spreads_as_the_definition_does() -> None:
    draws, T = 10_000, 13
    q, k, v = (t.expand(draws, 1, T, d) for t in torch.randn(3, 1, 1, T, d))
    fast = windowed_attention(q, k, v, None, 3, 1, dropout=0.3)
    slow = attend(q, k, v, window_mask(T, T, 3, 1), dropout=0.3)[0]
    plain = windowed_attention(q[:1], k[:1], v[:1], None, 3, 1)[0]
    for out in fast, slow:
        assert_close(out.mean(0), plain, atol=0.06, rtol=0)
    assert_close(fast.std(0), slow.std(0), atol=0.06, rtol=0)
    assert slow.std(0).min() > 0.05


def longformers(**settings) -> tuple[LongformerSelfAttention, Attention]:
    """Theirs and ours with the same random projections, and no output projection."""
    D, window = H * d, 4
    config = LongformerConfig(hidden_size=D, num_attention_heads=H, attention_window=[2 * window])
    theirs, ours = LongformerSelfAttention(config, 0).eval(), Attention(D, H, window=window, **settings)
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_(std=0.2)
    for name in "query", "key", "value":
        getattr(ours, name[0]).load_state_dict(getattr(theirs, name).state_dict())
    nn.init.eye_(ours.out.weight)
    nn.init.zeros_(ours.out.bias)
    return theirs, ours


@pytest.mark.parametrize("globals", [1, 3])
def test_window_is_hugging_faces_longformer(globals: int) -> None:
    """Theirs, with the projections of global tokens equal to those of the others."""
    D, T = H * d, 48  # they want whole blocks
    theirs, ours = longformers(globals=globals)
    for name in "query", "key", "value":
        getattr(theirs, f"{name}_global").load_state_dict(getattr(theirs, name).state_dict())
    x, attention_mask = torch.randn(3, T, D), torch.arange(T) < torch.tensor([[T], [29], [5]])
    is_global = (torch.arange(T) < globals).expand(3, T)
    marks = torch.zeros(3, T).masked_fill(~attention_mask, -1e4).masked_fill(is_global, 1e4)
    y = theirs(
        x, marks, is_index_masked=~attention_mask, is_index_global_attn=is_global, is_global_attn=True
    )[0]
    z = ours(x, mask=attention_mask[:, None, None, :])
    assert y[attention_mask].std() > 0.1
    assert_close(z[attention_mask], y[attention_mask], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("T", [8, 48])
def test_global_projections_are_hugging_faces(T: int, watched: bool) -> None:
    """Each row has another number of global tokens; in one block, and in several."""
    D, counts = H * d, torch.tensor([3, 1, 5])
    theirs, ours = longformers(global_qkv=True)
    for name in "query", "key", "value":
        getattr(ours, f"{name[0]}_global").load_state_dict(getattr(theirs, f"{name}_global").state_dict())
    x, attention_mask = torch.randn(3, T, D), torch.arange(T) < torch.tensor([[T], [T - 1], [6]])
    is_global = torch.arange(T) < counts[:, None]
    marks = torch.zeros(3, T).masked_fill(~attention_mask, -1e4).masked_fill(is_global, 1e4)
    y = theirs(
        x, marks, is_index_masked=~attention_mask, is_index_global_attn=is_global, is_global_attn=True
    )[0]
    ours.records = [] if watched else None
    z = ours(x, mask=attention_mask[:, None, None, :], globals=counts[:, None, None, None])
    assert_close(z[attention_mask], y[attention_mask], atol=1e-5, rtol=1e-4)


def test_what_a_window_does_not_go_with() -> None:
    for wrong in {"window": 0}, {"window": 3, "globals": -1}, {"window": -1, "causal": True}:
        with pytest.raises(ValueError, match=r"window=.*globals="):
            Attention(H * d, H, **wrong)
    attention, x = Attention(H * d, H, window=3), torch.randn(B, S, H * d)
    for more in {"source": x}, {"bias": torch.zeros(H, S, S)}, {"cache": KVCache()}:
        with pytest.raises(ValueError, match="window=3 takes no source, bias or cache"):
            attention(x, **more)


@pytest.mark.parametrize("window", [0, 1, 3, 100])
@pytest.mark.parametrize("padded", [False, True])
def test_a_causal_window_is_its_definition(window: int, padded: bool) -> None:
    """0 <= i - j <= window; watched and not, at once and step by step with a cache."""
    attention, x = Attention(H * d, H, G, causal=True, window=window, globals=0), torch.randn(B, S, H * d)
    mask = padding_mask(torch.tensor([7, 5, 3, 2, 1]), S).flip(-1) if padded else None
    i, j = torch.arange(S)[:, None], torch.arange(S)
    near = (i >= j) & (i - j <= window)
    plain = Attention(H * d, H, G)
    plain.load_state_dict(attention.state_dict())
    full = attention(x, mask=mask)
    assert_close(full, plain(x, mask=near if mask is None else mask & near), atol=1e-5, rtol=1e-5)
    cache, steps = KVCache(), []
    for t in range(S):
        steps.append(
            attention(x[:, t : t + 1], mask=None if mask is None else mask[..., : t + 1], cache=cache)
        )
    assert_close(torch.cat(steps, dim=1), full, atol=1e-5, rtol=1e-5)
    attention.records = []
    assert_close(attention(x, mask=mask), full, atol=1e-5, rtol=1e-5)
    looked = near if mask is None else mask & near
    assert torch.equal(attention.records[0]["weights"] > 0, looked.expand(B, H, S, S))
