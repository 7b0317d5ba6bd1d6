"""Dropout from random bytes: its share, its gradient, and other masks for every layer and step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.core.layers import Block
from regard.models import GPT, GPTConfig
from regard.training.compilation import CompiledBlocks
from regard.training.dropout import SIGNED, BytesDropout, Drop, bits_for, drop_by_bytes, random_bits
from regard.training.joint import join_products
from regard.training.recompute import recompute_blocks
from regard.training.residuals import narrow_residuals

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTITIONED = "aot_eager_decomp_partition"  # merges and recomputes as compiled code does, without a compiler
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # torch's own compiler's
BACKENDS = [PARTITIONED, pytest.param("inductor", marks=pytest.mark.slow)]


def numbers(*shape: int) -> Tensor:
    return torch.ones(shape, device=DEVICE, requires_grad=True)


def layers(*ps: float) -> nn.ModuleList:
    dropouts = nn.ModuleList(nn.Dropout(p) for p in ps).train()
    drop_by_bytes(dropouts)
    return dropouts


def plain(x: Tensor, bits: Tensor, p: float) -> Tensor:
    """The same in the order of the numbers from 0 to 1 that the bits stand for."""
    count = 2 ** (8 * bits.itemsize)
    p = round(p * count) / count
    uniform = (bits.double() + count / 2) / count
    return x * (uniform >= p) / (1 - p)


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.25, 0.5, 0.9, 255 / 256])
def test_of_all_numbers_of_so_many_bits_a_share_p_is_dropped(p: float) -> None:
    dtype = SIGNED[bits_for(p)]
    bits = torch.arange(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1).to(dtype)
    y = Drop.apply(torch.ones(len(bits)), bits, p)
    assert abs(float((y == 0).double().mean()) - p) <= (0 if len(bits) == 256 else 2**-17)
    assert float(y.double().mean()) == pytest.approx(1, abs=1e-6)
    x = torch.randn(len(bits))
    torch.testing.assert_close(Drop.apply(x, bits, p), plain(x, bits, p))
    assert Drop.apply(x.bfloat16(), bits, p).dtype == torch.bfloat16


@pytest.mark.parametrize("bits", SIGNED)
def test_all_bits_are_drawn_evenly(bits: int) -> None:
    torch.manual_seed(0)
    drawn = random_bits(torch.empty(0, device=DEVICE), (999, 501), bits)
    assert (drawn.shape, drawn.dtype, drawn.is_contiguous()) == ((999, 501), SIGNED[bits], True)
    for i in range(bits):
        assert float((drawn >> i & 1).double().mean()) == pytest.approx(0.5, abs=0.004)  # 5 to 6 deviations
    pairs = (drawn[:, 1:] < 0) == (drawn[:, :-1] < 0)  # neighbours are independent
    assert float(pairs.double().mean()) == pytest.approx(0.5, abs=0.004)


@pytest.mark.parametrize("p", [0.1, 0.25])
def test_in_training_it_is_dropout_and_otherwise_nothing(p: float) -> None:
    (layer,) = layers(p)
    torch.manual_seed(0)
    x = numbers(300, 501)
    y = layer(x)
    assert isinstance(layer, BytesDropout)
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.007)
    assert torch.equal(*torch.autograd.grad(y.sum(), x), y)  # x is one, so both are the mask with its scale
    assert layer.eval()(x) is x


@pytest.mark.parametrize("p", [0.0, 1e-6, 1.0])
def test_what_bytes_cannot_express_stays_as_it_was(p: float) -> None:
    (layer,) = layers(p)
    assert type(layer) is nn.Dropout


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_layers_of_one_shape_drop_different_elements(backend: str) -> None:
    dropouts = layers(0.25, 0.25, 0.25)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        # the last layer is called a second time
        return dropouts[0](x), dropouts[1](x), dropouts[2](x), dropouts[2](x)

    torch._dynamo.reset()
    compiled: Callable[[Tensor], tuple[Tensor, ...]] = torch.compile(
        function, backend=backend, fullgraph=True
    )
    x, results = numbers(64, 33), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks = compiled(x)
        for mask in masks:
            assert torch.equal(*torch.autograd.grad(mask.sum(), x, retain_graph=True), mask)
        results.append(torch.stack([mask.detach() for mask in masks]))
    assert torch.equal(results[0], results[1])  # of one seed
    different = torch.cat([results[0], results[2]]).flatten(1)
    for i, a in enumerate(different):
        for b in different[:i]:
            assert float(((a == 0) == (b == 0)).double().mean()) < 0.7  # of independent masks 0.625


def test_what_is_kept_for_the_backward_pass_are_bytes() -> None:
    (layer,) = layers(0.25)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: layer(x.sin().relu()).cos(), backend=PARTITIONED)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        compiled(numbers(64, 33))
    assert sum(t.nbytes for t in saved) <= 64 * 33 * (4 + 1)  # the input, and a byte for each element


def tiny(dropout: float = 0.25, **changes: Any) -> GPT:
    torch.manual_seed(0)
    sizes = {"vocab": 29, "context": 16, "dim": 12, "depth": 2, "heads": 3, "dropout": dropout}
    model = GPT(GPTConfig(**sizes | changes)).to(DEVICE).train()
    join_products(model)
    narrow_residuals(model)
    drop_by_bytes(model)
    return model


def test_every_dropout_of_a_model_is_changed_and_its_names_are_not() -> None:
    model = tiny()
    plain = GPT(model.config)
    assert model.state_dict().keys() == plain.state_dict().keys()
    count = sum(type(m) is nn.Dropout for m in plain.modules())
    assert sum(type(m) is BytesDropout for m in model.modules()) == count == 5
    assert type(copy.deepcopy(model).drop) is BytesDropout


def gradient(model: nn.Module, call: Callable[..., Tensor], ids: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = call(ids).float().square().mean()
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_blocks_that_are_computed_twice_drop_the_same_elements(compiled: bool) -> None:
    model = tiny()
    recomputed = copy.deepcopy(model)
    recompute_blocks(recomputed)
    ids = torch.randint(29, (5, 16), device=DEVICE)
    torch._dynamo.reset()
    calls = [torch.compile(m) if compiled else m for m in (model, recomputed)]
    a, b = (gradient(m, call, ids) for m, call in zip((model, recomputed), calls, strict=True))
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=1e-4 if compiled else 0)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True])
def test_a_compiled_model_trains(blocks: bool) -> None:
    torch._dynamo.reset()
    model = tiny(dropout=0.1)
    call: Callable[..., Tensor] = CompiledBlocks(model) if blocks else torch.compile(model)
    assert any(isinstance(m, Block) for m in model.modules())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for step in range(60):
        length = 16 - step % 3 if blocks else 16  # shapes change
        ids = torch.arange(length, device=DEVICE)[None] + torch.randint(13, (8, 1), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = call(ids[:, :-1]).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert sum(losses[-5:]) / 5 < losses[0] / 3
