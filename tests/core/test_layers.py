"""Blocks against torch's own layers with the same weights, and the published initialisations.

Sizes: B = 3 rows, T = 5 tokens, S = 7 of the source, H = 2 heads, D = 22 wide, 31 in the feed-forward.
"""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from regard.core.attention import Attention, causal_mask, padding_mask
from regard.core.cache import CrossKVCache, KVCache
from regard.core.layers import (
    FEED_FORWARDS,
    Block,
    FeedForward,
    Residual,
    SwiGLU,
    init_bert,
    init_gpt2,
    init_xavier,
    make_norm,
)

B, T, S, H, D, HIDDEN = 3, 5, 7, 2, 22, 31
tight = partial(assert_close, atol=1e-12, rtol=1e-9)


# The parts


@pytest.mark.parametrize(
    ("name", "f"),
    [("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", partial(F.gelu, approximate="tanh"))],
)
def test_feed_forward_is_its_formula(name: str, f: partial[Tensor]) -> None:
    ffn, x = FEED_FORWARDS[name](D, HIDDEN), torch.randn(B, T, D)
    assert isinstance(ffn, FeedForward)
    W1, b1, W2, b2 = ffn.up.weight, ffn.up.bias, ffn.down.weight, ffn.down.bias
    assert_close(ffn(x), f(x @ W1.T + b1) @ W2.T + b2)


def test_swiglu_is_its_formula() -> None:
    ffn, x = SwiGLU(D, HIDDEN), torch.randn(B, T, D)
    a = x @ ffn.gate.weight.T
    assert_close(ffn(x), (a * torch.sigmoid(a) * (x @ ffn.up.weight.T)) @ ffn.down.weight.T)
    assert ffn.up.bias is None


@pytest.mark.parametrize("dim", [384, 768, 2048])
def test_swiglu_has_about_as_many_weights_as_feed_forward(dim: int) -> None:
    def count(m: nn.Module) -> int:
        return sum(p.numel() for p in m.parameters())

    with torch.device("meta"):
        assert count(SwiGLU(dim)) == pytest.approx(count(FeedForward(dim, bias=False)), rel=0.05)


def test_norms_are_their_formulas() -> None:
    x = 3 * torch.randn(B, T, D) + 1
    center = x - x.mean(-1, keepdim=True)
    assert_close(make_norm("layer")(D)(x), center / (center.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    assert_close(make_norm("rms")(D)(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())


def test_residual_before_and_after() -> None:
    f, x = nn.Linear(D, D), torch.randn(B, T, D)
    before, after = (Residual(D, f, nn.LayerNorm, pre, dropout=0.0) for pre in (True, False))
    assert_close(before(x), x + f(F.layer_norm(x, [D])))
    assert_close(after(x), F.layer_norm(x + f(x), [D]))


def test_residual_drops_the_branch_only() -> None:
    residual, x = Residual(D, nn.Identity(), nn.LayerNorm, True, dropout=0.5), torch.randn(B, T, D)
    branch, dropped = F.layer_norm(x, [D]), residual(x) - x
    nonzero = dropped.abs() > 1e-6
    assert 0.3 < nonzero.float().mean() < 0.7
    assert_close(dropped[nonzero], 2 * branch[nonzero], atol=1e-5, rtol=1e-4)
    assert_close(residual.eval()(x), x + branch)


# Blocks against torch


def copy_attention(theirs: nn.MultiheadAttention, ours: Residual) -> None:
    assert isinstance(ours.f, Attention)
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for part, weight, bias in zip((ours.f.q, ours.f.k, ours.f.v), weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    ours.f.out.load_state_dict(theirs.out_proj.state_dict())


def gradients(theirs: nn.Module, ours: Block) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients of the same weights in the same order, theirs and ours."""
    pairs = [("self_attn", ours.attn)] + ([("multihead_attn", ours.cross)] if ours.cross else [])
    a, b = [], []
    for name, residual in pairs:
        attention, f = theirs.get_submodule(name), residual.f
        a += [*attention.in_proj_weight.grad.chunk(3), *attention.in_proj_bias.grad.chunk(3)]
        b += [m.weight.grad for m in (f.q, f.k, f.v)] + [m.bias.grad for m in (f.q, f.k, f.v)]
        a += [attention.out_proj.weight.grad, attention.out_proj.bias.grad]
        b += [f.out.weight.grad, f.out.bias.grad]
    for name, module in modules_of_block(ours):
        a += [p.grad for p in theirs.get_submodule(name).parameters()]
        b += [p.grad for p in module.parameters()]
    return a, b


def modules_of_block(ours: Block) -> list[tuple[str, nn.Module]]:
    """Torch's names of everything in a block but the attentions."""
    norms = [ours.attn.norm, *([ours.cross.norm] if ours.cross else []), ours.ffn.norm]
    modules = [(f"norm{i}", norm) for i, norm in enumerate(norms, start=1)]
    return [*modules, ("linear1", ours.ffn.f.up), ("linear2", ours.ffn.f.down)]


@torch.no_grad()
def copy_block(theirs: nn.Module, ours: Block) -> None:
    for p in theirs.parameters():  # torch starts with zeros and ones, which hide mistakes
        p.add_(0.2 * torch.randn_like(p))
    copy_attention(theirs.self_attn, ours.attn)
    if ours.cross is not None:
        copy_attention(theirs.multihead_attn, ours.cross)
    for name, module in modules_of_block(ours):
        module.load_state_dict(theirs.get_submodule(name).state_dict())


def block(activation: str, pre: bool, cross: bool, causal: bool) -> Block:
    source = Attention(D, H) if cross else None
    attn, ffn = Attention(D, H, causal=causal), FEED_FORWARDS[activation](D, HIDDEN)
    return Block(D, attn, ffn, source, pre=pre).double()


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("cross", [False, True])
def test_block_is_torchs(cross: bool, activation: str, pre: bool) -> None:
    """An encoder's, and a decoder's with `cross`: output and all gradients."""
    layer = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    theirs = layer(D, H, HIDDEN, 0.0, activation, batch_first=True, norm_first=pre).double()
    ours = block(activation, pre, cross=cross, causal=cross)
    copy_block(theirs, ours)
    x, gradient = torch.randn(2, B, T, D, dtype=torch.float64)
    inputs = [x, torch.randn(B, S, D, dtype=torch.float64)] if cross else [x]
    mask = padding_mask(torch.tensor([7, 2, 3]), S) if cross else padding_mask(torch.tensor([5, 2, 3]), T)
    padding = ~mask[:, 0, 0]
    a, b = ([t.clone().requires_grad_() for t in inputs] for _ in range(2))
    if cross:
        y = theirs(*a, tgt_mask=~causal_mask(T, T), memory_key_padding_mask=padding)
        z = ours(*b, mask)
    else:
        y, z = theirs(*a, src_key_padding_mask=padding), ours(*b, mask=mask)
    tight(z, y)
    y.backward(gradient)
    z.backward(gradient)
    tight([t.grad for t in b], [t.grad for t in a])
    tight(*gradients(theirs, ours))


# Blocks in a batch and in steps


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_unequal_length_are_as_if_alone(causal: bool) -> None:
    layer, x, lengths = (
        block("relu", True, False, causal),
        torch.randn(B, T, D, dtype=torch.float64),
        [2, 5, 3],
    )
    together = layer(x, mask=padding_mask(torch.tensor(lengths), T))
    for row, length in enumerate(lengths):
        tight(together[row : row + 1, :length], layer(x[row : row + 1, :length]))


def test_decoder_block_in_steps_is_the_whole() -> None:
    layer = block("gelu", True, cross=True, causal=True)
    x, source = torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    attention_mask, reads = padding_mask(torch.tensor([7, 2, 3]), S), []
    assert layer.cross is not None
    layer.cross.f.k.register_forward_hook(lambda *_: reads.append(1))
    past, fixed = KVCache(), CrossKVCache()
    steps = [layer(x[:, t : t + 1], source, attention_mask, cache=past, source_cache=fixed) for t in range(T)]
    assert len(reads) == 1  # the source is read at the first step only
    tight(torch.cat(steps, dim=1), layer(x, source, attention_mask))


# Where training starts


def model(depth: int = 3, dim: int = 128, vocab: int = 257, ffn: str = "relu") -> nn.Module:
    blocks = [
        Block(dim, Attention(dim, 4, 2), FEED_FORWARDS[ffn](dim), Attention(dim, 4)) for _ in range(depth)
    ]
    net = nn.Sequential(nn.Embedding(vocab, dim), *blocks, nn.Linear(dim, vocab))
    for p in net.parameters():
        nn.init.constant_(p, 7.0)  # whatever is not initialised shows
    for m in net.modules():
        if isinstance(m, nn.LayerNorm):
            m.reset_parameters()
    return net


def named(net: nn.Module, *ends: str) -> list[Tensor]:
    parameters = [p for name, p in net.named_parameters() if name.endswith(ends)]
    assert parameters
    return parameters


def spread(p: Tensor, std: float) -> None:
    error = 4 / math.sqrt(p.numel())  # four standard errors and more
    assert p.std().item() == pytest.approx(std, rel=error)
    assert abs(p.mean().item()) < error * std


def untouched_norms_and_zero_biases(net: nn.Module) -> None:
    for m in net.modules():
        if isinstance(m, nn.LayerNorm):
            assert (m.weight == 1).all()
            assert (m.bias == 0).all()
        elif isinstance(m, nn.Linear) and m.bias is not None:
            assert (m.bias == 0).all()


@pytest.mark.parametrize("ffn", ["relu", "swiglu"])
def test_gpt2_start(ffn: str) -> None:
    net = model(ffn=ffn)
    init_gpt2(net)
    ends = named(net, "out.weight", "down.weight")
    assert len(ends) == 9  # two attentions and a feed-forward in each of three blocks
    for p in ends:
        spread(p, 0.02 / 3)
    for p in named(net, "q.weight", "k.weight", "v.weight", "up.weight", "0.weight", "4.weight"):
        spread(p, 0.02)
    untouched_norms_and_zero_biases(net)


def test_gpt2_start_shrinks_by_twice_the_depth() -> None:
    for depth in 1, 4:
        net = nn.Sequential(*(Block(128, Attention(128, 4), FeedForward(128)) for _ in range(depth)))
        init_gpt2(net)
        for p in named(net, "out.weight", "down.weight"):
            spread(p, 0.02 / math.sqrt(2 * depth))


def test_xavier_start() -> None:
    net = model()
    init_xavier(net)
    for m in net.modules():
        if isinstance(m, nn.Linear):
            bound = math.sqrt(6 / (m.in_features + m.out_features))
            assert 0.99 * bound < m.weight.abs().max() <= bound
            spread(m.weight, bound / math.sqrt(3))
        elif isinstance(m, nn.Embedding):
            spread(m.weight, 128**-0.5)
    untouched_norms_and_zero_biases(net)


def test_bert_start() -> None:
    net = model()
    init_bert(net)
    for m in net.modules():
        if isinstance(m, nn.Linear | nn.Embedding):
            assert 0.039 < m.weight.abs().max() <= 0.04
            spread(m.weight, 0.02 * 0.8796)  # of what is left of a normal distribution cut off at ±2
    untouched_norms_and_zero_biases(net)
