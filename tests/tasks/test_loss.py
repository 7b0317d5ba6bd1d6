"""Chunked cross-entropy: torch's values and gradients, with a limited number of rows of logits."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.slow import slow_after
from regard.tasks import loss
from regard.tasks.loss import IGNORED, chunked_cross_entropy, cross_entropy
from regard.training import compilation, joint

N, V, D = 23, 37, 7


def batch(dtype: torch.dtype = torch.float32, ignored: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(N, D, dtype=dtype).requires_grad_()
    W = torch.randn(V, D, dtype=dtype).requires_grad_()
    targets = torch.randint(V, (N,))
    targets[torch.randperm(N)[:ignored]] = IGNORED
    return x, W, targets


def plain(x: Tensor, W: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(
        x @ W.mT, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7, 1.0])
@pytest.mark.parametrize("multiple", [1, 64])
@pytest.mark.parametrize("ignored", [0, 5, N])
@pytest.mark.parametrize("rows", [1, 2, 5, 22, 23, 24, 100])
def test_chunked_is_plain(rows: int, ignored: int, multiple: int, smoothing: float) -> None:
    x, W, targets = batch(torch.float64, ignored)
    want = plain(x, W, targets, smoothing)
    got = chunked_cross_entropy(x, W, targets, rows, multiple, smoothing)
    torch.testing.assert_close(got, want)
    # a slope other than 1, as the mean over a batch has
    expected = torch.autograd.grad(want / 3, (x, W))
    for mine, torchs in zip(torch.autograd.grad(got / 3, (x, W)), expected, strict=True):
        torch.testing.assert_close(mine, torchs)
        assert ignored < N or not mine.any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradcheck(smoothing: float) -> None:
    x, W, targets = batch(torch.float64)
    loss = lambda x, W: chunked_cross_entropy(x, W, targets, 5, 41, smoothing)  # noqa: E731
    assert torch.autograd.gradcheck(loss, (x, W))


def test_smoothing_is_as_the_paper_has_it() -> None:
    x, W, targets = batch(torch.float64)
    log_p = (x @ W.mT).log_softmax(-1)[targets != IGNORED]
    aims = F.one_hot(targets[targets != IGNORED], V) * 0.9 + 0.1 / V
    torch.testing.assert_close(chunked_cross_entropy(x, W, targets, 5, 64, 0.1), -(aims * log_p).sum())


@pytest.mark.parametrize("which", [0, 1])
def test_only_one_of_them_learns(which: int) -> None:
    x, W, targets = batch(torch.float64)
    one, other = (x, W) if which == 0 else (W, x)
    expected = torch.autograd.grad(plain(x, W, targets), one)
    other.requires_grad_(False)
    got = torch.autograd.grad(chunked_cross_entropy(x, W, targets, 5), one)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_enormous_logits_are_finite(smoothing: float) -> None:
    x, W, targets = batch()
    value = chunked_cross_entropy(x * 1e4, W, targets, 5, 64, smoothing)
    torch.testing.assert_close(value, plain(x * 1e4, W, targets, smoothing))
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, (x, W)))


@pytest.mark.parametrize("limit", [5 * V, N * V])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_autocast_is_as_near_as_plain_autocast(
    smoothing: float, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W, targets = batch()
    exact = plain(x, W, targets, smoothing)
    slopes = torch.autograd.grad(exact, (x, W))
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", limit)
    with torch.autocast("cpu", torch.bfloat16):
        got = cross_entropy(x, W, targets, smoothing)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, exact, rtol=0.01, atol=0)
    for mine, true in zip(torch.autograd.grad(got, (x, W)), slopes, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - true).norm() < 0.02 * true.norm()


class RecordedOperations(TorchDispatchMode):
    """Record the name and shape of every operation's result."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[tuple[str, torch.Size]] = []

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else [result]:
            if isinstance(t, Tensor):
                self.results.append((func.overloadpacket.__name__, t.shape))
        return result

    def logits(self) -> Iterator[int]:
        """The number of rows of every result that is as wide as the vocabulary."""
        return (math.prod(shape) // V for _, shape in self.results if V in shape and D not in shape)


def test_nothing_is_changed_in_place() -> None:
    """Compilers have lost such changes, and their gradients."""
    x, W, targets = batch()
    with RecordedOperations() as operations:
        chunked_cross_entropy(x, W, targets, 5, 16, 0.1).backward()
    assert len(operations.results) > 20
    assert not [name for name, _ in operations.results if name.endswith("_")]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch.compile's own doing
@pytest.mark.parametrize("limit", [5 * V, N * V])
@pytest.mark.parametrize("smoothing", slow_after(1, [0.1, 0.0]))
def test_compiled_is_eager(smoothing: float, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, W, targets = batch(torch.float64)
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", limit)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, W: cross_entropy(x, W, targets, smoothing), backend="aot_eager")
    want, got = plain(x, W, targets, smoothing), compiled(x, W)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, (x, W)), torch.autograd.grad(want, (x, W)))


def test_smoothing_takes_no_more_memory() -> None:
    x, W, targets = batch()
    wide = []
    for smoothing in (0.0, 0.1):
        with RecordedOperations() as operations:
            chunked_cross_entropy(x, W, targets, N, 1, smoothing).backward()
        wide.append([name for name, shape in operations.results if shape == (N, V)])
    views = ("alias", "slice")
    assert [name for name in wide[1] if name not in views] == wide[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("learning", [True, False])
def test_only_so_many_rows_exist(learning: bool, smoothing: float) -> None:
    x, W, targets = batch()
    with RecordedOperations() as operations, torch.set_grad_enabled(learning):
        value = chunked_cross_entropy(x, W, targets, 5, 1, smoothing)
        if learning:
            value.backward()
    assert max(operations.logits()) == 5
    with RecordedOperations() as operations:
        plain(x, W, targets)
    assert max(operations.logits()) == N  # the measure measures


def test_nothing_is_done_for_gradients_that_nobody_wants() -> None:
    x, W, targets = batch()
    for off in (torch.no_grad(), torch.inference_mode()):
        with RecordedOperations() as operations, off:
            value = chunked_cross_entropy(x, W, targets, N)
        assert not value.requires_grad
        torch.testing.assert_close(value, plain(x, W, targets).detach())
        products = [name for name, _ in operations.results if name in ("mm", "addmm", "linear", "matmul")]
        assert len(products) == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit", [1, V, 6 * V, N * V - 1, N * V])
def test_the_choice_makes_no_difference(
    limit: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W, targets = batch(torch.float64)
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", limit)
    shaped = x.detach().reshape(1, N, D).requires_grad_()
    got, want = cross_entropy(shaped, W, targets[None], smoothing), plain(x, W, targets, smoothing)
    torch.testing.assert_close(got, want)
    expected = torch.autograd.grad(want, (x, W))
    mine = torch.autograd.grad(got, (shaped, W))
    torch.testing.assert_close(mine[0][0], expected[0])
    torch.testing.assert_close(mine[1], expected[1])
    with RecordedOperations() as operations:
        cross_entropy(shaped, W, targets[None], smoothing)
    assert max(operations.logits()) == min(N, max(1, limit // V))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("multiple", [1, 64])
@pytest.mark.parametrize("limit", [5 * V, N * V])
def test_a_bias_is_part_of_the_logits(
    limit: int, multiple: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, W, targets = batch(torch.float64)
    bias = torch.randn(V, dtype=torch.float64).requires_grad_()
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", limit)
    logits = x @ W.mT + bias
    want = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    expected = torch.autograd.grad(want / 3, (x, W, bias))
    round_product = loss.round_product
    monkeypatch.setattr(loss, "round_product", lambda x, W, _: round_product(x, W, multiple))  # as on a GPU
    for got in (
        cross_entropy(x, W, targets, smoothing, bias),
        chunked_cross_entropy(x, W, targets, 5, multiple, smoothing, bias),
    ):
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got / 3, (x, W, bias)), expected)


@pytest.mark.parametrize("multiple", [1, V, 16, 128])
def test_a_product_of_round_size_is_the_same(multiple: int) -> None:
    x, W, _ = batch(torch.float64)
    y, want = loss.round_product(x, W, multiple), x @ W.mT
    torch.testing.assert_close(y, want)
    slope = torch.randn(N, V, dtype=torch.float64)
    expected = torch.autograd.grad(want, (x, W), slope)
    torch.testing.assert_close(torch.autograd.grad(y, (x, W), slope), expected)
    with RecordedOperations() as operations:
        loss.round_product(x, W, multiple)
    widths = {shape[1] for _, shape in operations.results if shape[0] == N}
    assert widths == {V, -(-V // multiple) * multiple}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradcheck_with_a_bias(smoothing: float) -> None:
    x, W, targets = batch(torch.float64)
    bias = torch.randn(V, dtype=torch.float64).requires_grad_()
    loss = lambda x, W, b: chunked_cross_entropy(x, W, targets, 5, 41, smoothing, b)  # noqa: E731
    assert torch.autograd.gradcheck(loss, (x, W, bias))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("limit", [2**27, 5 * V])
def test_positions_count_by_their_weights(
    smoothing: float, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", limit)
    x, W, targets = batch(torch.float64)
    bias, weights = torch.randn(V, dtype=torch.float64).requires_grad_(), torch.rand(N, dtype=torch.float64)
    losses = F.cross_entropy(
        x @ W.mT + bias, targets, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    want, got = (losses * weights).sum(), cross_entropy(x, W, targets, smoothing, bias, weights)
    torch.testing.assert_close(got, want)
    expected = torch.autograd.grad(want, (x, W, bias))
    torch.testing.assert_close(torch.autograd.grad(got, (x, W, bias)), expected)


class Forgetful(loss._Chunked):
    """Gives half of a gradient."""

    @staticmethod
    def backward(ctx, grad):
        dx, *rest = loss._Chunked.backward(ctx, grad)
        return dx / 2, *rest


@pytest.mark.parametrize(("kernel", "right"), [(loss._Chunked, True), (Forgetful, False)])
def test_a_wrong_kernel_is_noticed(kernel: type, right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "_Fused", kernel)
    assert loss.fused_agrees(torch.device("cpu")) == right
    monkeypatch.setattr(loss, "FUSED", True)
    monkeypatch.setattr(loss, "fused_agrees", lambda device: right)
    reports: list[str] = []
    monkeypatch.setattr(joint, "SHORT_ROWS", False)
    monkeypatch.setattr(joint, "SPLIT_HEADS", False)
    compilation.check_kernels(torch.device("cuda"), lambda what, error: reports.append(what))
    assert loss.FUSED == right
    assert bool(reports) != right
