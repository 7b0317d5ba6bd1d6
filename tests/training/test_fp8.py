"""Products in 8 bits: what they compute, where they are used, and that a model learns by them."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers.runs import rows, tiny, write_data
from regard.errors import UserError
from regard.models import GPT, GPTConfig
from regard.training import fp8
from regard.training.joint import join_products

IDS = torch.randint(29, (5, 11), generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


@pytest.fixture
def supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "multiplies_float8", lambda device: True)


def make_model(dim: int = 32) -> GPT:
    torch.manual_seed(0)
    sizes = {"vocab": 29, "context": 13, "dim": dim, "depth": 2, "heads": 2, "ffn": "swiglu", "norm": "rms"}
    return GPT(GPTConfig(**sizes, positions="rotary", bias=False)).train()


def dequantize(x: Tensor) -> Tensor:
    x8, scale = fp8.scale_rows(x)
    return x8.float() * scale


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).norm() / b.float().norm())


def test_a_row_is_rounded_by_its_own_largest_number() -> None:
    x = torch.randn(7, 48) * 10.0 ** torch.arange(-3, 4)[:, None]
    x[3] = 0
    assert relative_error(dequantize(x), x) < 0.05
    assert (dequantize(x)[3] == 0).all()
    for row, rounded in zip(x, dequantize(x), strict=True):
        assert float((row - rounded).abs().max()) <= 2.0**-4 * float(row.abs().max())


def test_product_is_that_of_the_rounded_rows() -> None:
    x, w = torch.randn(19, 48).bfloat16(), torch.randn(32, 48).bfloat16()
    expected = dequantize(x) @ dequantize(w).mT
    assert relative_error(fp8.multiply_rows(x, w), expected) < 2.0**-8  # of bfloat16
    assert relative_error(fp8.multiply_rows(x, w), x.float() @ w.float().mT) < 0.06


def test_gradients() -> None:
    """That of the weights is a product in 16 bits; that of the inputs is one of rounded rows."""
    x, w, dy = (torch.randn(*shape).bfloat16() for shape in ((19, 48), (32, 48), (19, 32)))
    x.requires_grad_()
    w.requires_grad_()
    fp8.Product.apply(x, w).backward(dy)
    torch.testing.assert_close(w.grad, (dy.mT @ x).detach())
    assert relative_error(x.grad, dequantize(dy) @ dequantize(w.detach().mT.contiguous()).mT) < 2.0**-8


def loss_of(model: nn.Module, autocast: bool) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(IDS).float().log_softmax(-1)[..., 3].mean()


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.usefixtures("supported")
def test_blocks_of_a_model(join: bool) -> None:
    """In training with autocast only; weights keep their names, gradients are close to those in 16 bits."""
    plain = make_model()
    if join:
        join_products(plain)
    small = copy.deepcopy(plain)
    fp8.use_fp8(small, CPU)
    assert small.state_dict().keys() == plain.state_dict().keys()
    assert sum(type(m) is fp8.Fp8Linear for m in small.modules()) == 2 * 7
    for training, autocast in ((True, False), (False, True)):
        assert torch.equal(*(loss_of(m.train(training), autocast) for m in (plain, small)))
    losses = [loss_of(m.train(), True) for m in (plain, small)]
    assert not torch.equal(*losses)
    torch.testing.assert_close(*losses, rtol=0.02, atol=0.02)
    for loss in losses:
        loss.backward()
    for (name, p), q in zip(plain.named_parameters(), small.parameters(), strict=True):
        assert relative_error(q.grad, p.grad) < 0.25, name


@pytest.mark.usefixtures("supported")
def test_sizes_that_are_no_multiples_of_a_tile_stay_in_16_bits() -> None:
    model = make_model(dim=24)
    fp8.use_fp8(model, CPU)
    assert not any(
        type(m) is fp8.Fp8Linear for m in model.modules() if isinstance(m, nn.Linear) and m.in_features == 24
    )


@pytest.mark.usefixtures("supported")
def test_a_run_learns(tmp_path: Path) -> None:
    data = write_data("write", tmp_path)
    settings = {"model__dim": 32, "train__lr": 0.01, "train__warmup": 1}
    losses = {}
    for precision in ("bf16", "fp8"):
        out = tmp_path / precision
        tiny(data, out, "write", steps=12, train__precision=precision, **settings)
        losses[precision] = [row["loss"] for row in rows(out) if "loss" in row]
    assert losses["fp8"][-1] < losses["fp8"][0] - 0.5
    assert losses["fp8"] != losses["bf16"]
    assert losses["fp8"][-1] == pytest.approx(losses["bf16"][-1], rel=0.05)


def test_a_device_without_it(tmp_path: Path) -> None:
    data = write_data("write", tmp_path)
    with pytest.raises(UserError, match=r"train\.precision=fp8"):
        tiny(data, tmp_path / "run", "write", steps=2, train__precision="fp8")
    assert not (tmp_path / "run").exists()
