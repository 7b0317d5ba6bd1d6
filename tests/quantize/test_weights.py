"""Weights in fewer bits: products, embeddings, and what torch sees of them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from regard.quantize import weights
from regard.quantize.weights import WEIGHTS, Int4Weight, Int8Weight

N, K = 37, 96
ERRORS = {"bfloat16": 0.003, "int8": 0.01, "int4": 0.09}  # of weights and products, of their norm


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative_error(x: torch.Tensor, expected: torch.Tensor) -> float:
    return float((x - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("packed", [False, True])
def test_products(dtype: str, packed: bool) -> None:
    W, x, b = normal(N, K), normal(5, 7, K, seed=1), normal(N, seed=2)
    weight = WEIGHTS[dtype].from_float(W)
    expected = weight.dequantize()
    assert relative_error(expected, W) < ERRORS[dtype]
    if packed:
        weight.pack()
    y = F.linear(x, weight, b)
    assert y.dtype == torch.float32
    assert relative_error(y, F.linear(x, W, b)) < ERRORS[dtype]
    x[0, 0, 0] = 100.0  # takes no precision from the other inputs
    y, exact = F.linear(x, weight, b), F.linear(x, expected, b)
    assert relative_error(y, exact) < 0.01
    assert relative_error(y[0, 0], exact[0, 0]) < (1e-4 if dtype == "int8" else 0.01)
    assert relative_error(weight.dequantize(), expected) < 0.005
    alone = torch.stack([F.linear(row, weight, b) for row in x.flatten(0, 1)[:, None]]).view_as(y)
    assert_close(alone, y, rtol=0 if dtype == "int8" else 2**-7, atol=0 if dtype == "int8" else 2**-6)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_rows(dtype: str) -> None:
    weight, ids = WEIGHTS[dtype].from_float(normal(N, K)), torch.tensor([[1, 36, 1], [0, 5, 7]])
    assert_close(F.embedding(ids, weight), weight.dequantize()[ids])
    F.linear(normal(1, K), weight)  # is packed now, but keeps its rows
    assert_close(F.embedding(ids, weight), weight.dequantize()[ids])


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_a_layer_stays_small_where_it_is(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to` is called for every model that is loaded; it must not write float32 numbers into memory."""
    kind, layer, x = WEIGHTS[dtype], nn.Linear(K, N), normal(3, K)
    layer.weight = nn.Parameter(kind.from_float(normal(N, K)), requires_grad=False)
    expected = layer(x)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "dequantize", None)
        for moved in layer.to("cpu"), layer.to(torch.float32):
            assert isinstance(moved.weight, kind)
            assert torch.equal(moved(x), expected)
    assert type(layer.weight.to(torch.float64)) is torch.Tensor


@pytest.mark.skipif(not weights.HAS_UNPACKED, reason="this torch has no product of unpacked integers")
def test_an_output_layer_with_rows_has_one_copy() -> None:
    weight, x = Int8Weight.from_float(normal(N, K)), normal(5, K)
    assert weight.packed is None
    y = F.linear(x, weight)
    assert weight.packed is None
    packed = copy.copy(weight.parts)
    weight.pack()
    assert not weight.parts
    assert torch.equal(F.linear(x, weight), y)
    assert torch.equal(weight.dequantize(), Int8Weight(*packed).dequantize())
    assert torch.equal(F.linear(x[:1], weight), F.linear(x[:1], Int8Weight(*packed)))


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_torch_sees_a_parameter_in_float32(dtype: str) -> None:
    layer = nn.Linear(K, N)
    layer.weight = nn.Parameter(WEIGHTS[dtype].from_float(normal(N, K)), requires_grad=False)
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, len(weight), weight.numel()) == ((N, K), torch.float32, N, N * K)
    assert sum(p.numel() for p in layer.parameters()) == N * K + N
    assert type(weight.T) is torch.Tensor
    assert_close(weight @ torch.eye(K), weight.dequantize())
    assert_close(torch.cat([weight, weight])[N:], weight.dequantize())
    assert_close(copy.deepcopy(layer)(normal(3, K)), layer(normal(3, K)))


def test_fast_products_are_the_plain_ones() -> None:
    """Where torch lacks an operation, the readable form takes its place."""
    x, q = normal(5, K), torch.randint(-127, 128, (N, K), dtype=torch.int8)
    x, scale = x * weights.LEVELS / x.abs().max(), normal(N).abs() + 0.1
    if weights.HAS_INT8:
        fast = weights.multiply_int8_fast(x, weights.pack_int8(q, scale))
        assert_close(weights.multiply_int8_plainly(x, (q, scale)), fast, rtol=1e-5, atol=1e-3)
    small, x = Int4Weight.from_float(normal(N, K)), x.bfloat16()
    if weights.HAS_INT4:
        fast = weights.multiply_int4_fast(x, *weights.pack_int4(*small.parts))[:, :N]
        plain = weights.multiply_int4_plainly(
            x, weights.split_nibbles(small.parts[0]), small.parts[1].transpose(0, 1)
        )
        assert relative_error(fast, plain) < 0.01  # of a sum, the terms are in bfloat16


class LargestTensor(TorchDispatchMode):
    """Notes the bytes of the largest tensor that operations return."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        self.bytes = max(self.bytes, getattr(result, "nbytes", 0))
        return result


@pytest.mark.skipif(not weights.HAS_INT4, reason="this torch has no product of four-bit integers")
@pytest.mark.parametrize("N", [1024, 1000, 80])
def test_packing_needs_no_larger_copy(N: int) -> None:
    """Pieces are packed as the whole is, whose integers in 32 bits would take eight times its size."""
    q = torch.randint(256, (N, 64), dtype=torch.uint8)
    scales = torch.randn(N, 4, 2).bfloat16()
    with LargestTensor() as largest:
        packed, _ = weights.pack_int4(q, scales)
    assert largest.bytes <= max(packed.nbytes, weights.AT_ONCE * 64 * 2 * 4)
    integers = F.pad(weights.split_nibbles(q), (0, 0, 0, -N % weights.ROWS)).int()
    assert torch.equal(packed, torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1))


def test_unusual_numbers() -> None:
    W = normal(N, K)
    W[3] = 0.0
    for kind in (Int8Weight, Int4Weight):
        weight = kind.from_float(W)
        assert F.linear(torch.zeros(2, K), weight).abs().max() == 0.0
        assert weight.dequantize()[3].abs().max() < 1e-6
        assert F.linear(torch.full((1, K), torch.nan), weight).isnan().all()
