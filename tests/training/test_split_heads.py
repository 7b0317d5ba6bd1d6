"""The kernels that split, rotate and join heads agree with plain operations; without a GPU, in Triton's
interpreter."""

import pytest
import torch
from torch import Tensor

from regard.core.attention import split
from regard.core.positions import Rotary, rotate

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, T, d, D = 3, 53, 32, 7


@pytest.mark.parametrize(("H", "G"), [(5, 5), (6, 2)])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_kernels_and_plain_operations_agree(H: int, G: int, rotary: bool, biased: bool) -> None:
    from regard.training.split_heads import SplitHeads

    torch.manual_seed(0)
    x = torch.randn(B, T, D, device=DEVICE, requires_grad=True)
    weight = torch.randn((H + 2 * G) * d, D, device=DEVICE, requires_grad=True)
    bias = torch.randn(len(weight), device=DEVICE, requires_grad=True) if biased else None
    angles = Rotary(T, H * d, H).to(DEVICE).rotary(torch.arange(T, device=DEVICE)) if rotary else None
    inputs = [t for t in (x, weight, bias) if t is not None]
    # as attention leaves them: heads before tokens, tokens before heads, and one number for all
    grads = torch.randn(B, H, T, d, device=DEVICE), torch.randn(B, T, G, d, device=DEVICE).transpose(1, 2)
    last = torch.ones((), device=DEVICE).expand(B, G, T, d)

    def results(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        return [q, k, v, *torch.autograd.grad([q, k, v], inputs, [*grads, last])]

    q, k, v = torch.nn.functional.linear(x, weight, bias).split([H * d, G * d, G * d], -1)
    expected = results(rotate(split(q, H), angles), rotate(split(k, G), angles), split(v, G))
    cos, sin = (None, None) if angles is None else (t.reshape(T, -1) for t in angles)
    product = torch.nn.functional.linear(x, weight, None if bias is None else bias.detach())
    actual = results(*SplitHeads.apply(product, bias, cos, sin, H, G))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
