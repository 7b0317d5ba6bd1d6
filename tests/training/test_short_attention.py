"""The kernels for short rows agree with plain attention; without a GPU, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from regard.core.attention import fused_attention, padding_mask, split
from regard.core.positions import Rotary, rotate

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H, T, S, d = 3, 2, 73, 83, 32


def plain(
    x: Tensor, source: Tensor | None, rotary: tuple[Tensor, Tensor] | None, keys: Tensor | None, causal: bool
) -> Tensor:
    q, k, v = (
        split(t, H) for t in (x.chunk(3, -1) if source is None else (x, *source.chunk(2, -1)))
    )  # (B, H, T, d)
    mask = None if keys is None else keys[:, None, None]
    y = fused_attention(rotate(q, rotary), rotate(k, rotary), v, mask, causal=causal)
    return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("kind", "causal"),
    [("self", False), ("self", True), ("rotary", False), ("rotary", True), ("cross", False)],
)
def test_kernels_and_plain_attention_agree(kind: str, masked: bool, causal: bool) -> None:
    from regard.training.short_attention import attend_short

    torch.manual_seed(0)
    D = H * d
    x = torch.randn(B, T, D if kind == "cross" else 3 * D, device=DEVICE, requires_grad=True)
    source = torch.randn(B, S, 2 * D, device=DEVICE, requires_grad=True) if kind == "cross" else None
    rotary = Rotary(T, D, H).to(DEVICE).rotary(torch.arange(T, device=DEVICE)) if kind == "rotary" else None
    length = S if kind == "cross" else T
    lengths = torch.tensor([length, 3, 1 if causal else 0], device=DEVICE)  # a row without any key
    keys = padding_mask(lengths, length)[:, 0, 0] if masked else None
    inputs = [t for t in (x, source) if t is not None]
    grad = torch.randn(B, T, D, device=DEVICE)

    def results(y: Tensor) -> list[Tensor]:
        return [y, *torch.autograd.grad(y, inputs, grad)]

    cos, sin = (None, None) if rotary is None else (t.reshape(T, -1) for t in rotary)
    expected = results(plain(x, source, rotary, keys, causal))
    actual = results(attend_short(x, source, cos, sin, keys, None, H, causal, 0.0))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_leaves_out_its_share_and_both_kernels_agree_which() -> None:
    from regard.training.short_attention import attend_short

    torch.manual_seed(0)
    share, n = 0.25, 64
    x = torch.zeros(5, n, 3 * d, device=DEVICE)  # equal scores: every weight is 1/n
    x[:, :, 2 * d :] = torch.eye(n, device=DEVICE)[:, :d]  # values that tell the keys apart
    x.requires_grad_()
    seed = torch.tensor([7], device=DEVICE)

    def attend(seed: Tensor) -> Tensor:
        return attend_short(x, None, None, None, None, seed, 1, False, share)

    y = attend(seed)  # (5, n, d): of each query, the weights of the first d keys
    stays = y > 0
    assert abs(stays.float().mean() - (1 - share)) < 0.02
    torch.testing.assert_close(y[stays], torch.full_like(y[stays], 1 / n / (1 - share)))
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx[:, :d, 2 * d], y.sum(1), rtol=1e-4, atol=1e-6)  # the weights that keys get
    assert (attend(torch.tensor([8], device=DEVICE)) > 0).ne(stays).float().mean() > 0.2
    assert torch.equal(attend(seed), y)
    assert not torch.equal(stays[0], stays[1])
