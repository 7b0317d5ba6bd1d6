"""The Triton kernel of the loss agrees with its readable twin; without a GPU, in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from regard.tasks.loss import IGNORED, chunked_cross_entropy

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, D, V = 11, 5, 1031


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_kernel_and_chunks_agree(rows: int, with_bias: bool, weighted: bool, smoothing: float) -> None:
    torch.manual_seed(0)
    x, W, bias = (torch.randn(*shape, device=DEVICE, requires_grad=True) for shape in ((N, D), (V, D), (V,)))
    targets = torch.randint(V, (N,), device=DEVICE)
    targets[4] = IGNORED
    weights = torch.rand(N, device=DEVICE) if weighted else None
    inputs = [x, W, bias] if with_bias else [x, W]

    def compute(fused: bool) -> tuple[Tensor, ...]:
        loss = chunked_cross_entropy(
            x, W, targets, rows, 64, smoothing, bias if with_bias else None, weights, fused
        )
        return loss, *torch.autograd.grad(3 * loss, inputs)

    for expected, actual in zip(compute(fused=False), compute(fused=True), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_chunks_are_alike() -> None:
    from regard.tasks.fused_loss import split_evenly

    assert split_evenly(32768, 5341) == 4736  # seven, of which six are whole tiles; not six and a small rest
    assert split_evenly(32768, 10682) == 8192
    assert split_evenly(11, 3) == 3
    assert split_evenly(0, 5) == 1
