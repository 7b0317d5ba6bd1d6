"""Training in fewer operations computes what the modules' own methods do."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.models import GPT, GPTConfig, Transformer, TransformerConfig
from regard.training.lean import LeanAttention, LeanNorm, use_fewer_operations

SIZES = {"vocab": 29, "context": 13, "dim": 24, "depth": 2, "heads": 3, "dropout": 0.0}
SIZES |= {"norm": "rms", "positions": "rotary", "ffn": "swiglu", "bias": False}
IDS = torch.randint(29, (5, 11), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(11) < torch.tensor([11, 7, 3, 1, 9])[:, None]


def gpt(**more: object) -> nn.Module:
    return GPT(GPTConfig(**SIZES | more))


def transformer(**more: object) -> nn.Module:
    return Transformer(TransformerConfig(**SIZES | {"pre": True} | more))


PAIR = (IDS, IDS.flip(1), MASK)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "gpt": (gpt, (IDS,)),
    "grouped heads": (lambda: gpt(kv_heads=1), (IDS,)),
    "normalized queries": (lambda: gpt(qk_norm=True), (IDS,)),
    "window": (lambda: gpt(sliding_window=4), (IDS,)),
    "transformer": (transformer, PAIR),
    "other positions": (lambda: transformer(positions="sinusoidal"), PAIR),
    "as published": (lambda: transformer(pre=False, norm="layer"), PAIR),
}


def gradients(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    model.zero_grad()
    loss = model(*inputs).float().logsumexp(-1).square().mean()
    loss.backward()
    return loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)


def relative_error(gradients: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    pairs = zip(gradients, exact, strict=True)
    return max(float((y - expected).norm() / (expected.norm() + 1e-6)) for y, expected in pairs)


@pytest.mark.parametrize("case", CASES)
def test_lean_and_plain_agree(case: str) -> None:
    make, inputs = CASES[case]
    torch.manual_seed(1)
    plain = make().train()
    for p in plain.parameters():
        p.data.add_(0.05 * torch.randn(p.shape))
    lean = copy.deepcopy(plain)
    use_fewer_operations(lean)
    assert lean.state_dict().keys() == plain.state_dict().keys()
    exact, ours = gradients(plain, inputs), gradients(lean, inputs)
    for y, expected in zip(ours, exact, strict=True):
        assert_close(y, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max() + 1))
    with torch.autocast("cpu", torch.bfloat16):
        errors = [relative_error(gradients(model, inputs), exact) for model in (lean, plain)]
    assert errors[0] <= 1.5 * errors[1] <= 0.1
    assert torch.equal(lean.eval()(*inputs), plain.eval()(*inputs))


def test_what_is_lean() -> None:
    models = gpt(), gpt(qk_norm=True), transformer(), transformer(pre=False, norm="layer")
    for model in models:
        use_fewer_operations(model)
    kinds = [[type(m) for m in model.modules()] for model in models]
    counts = [(each.count(LeanAttention), each.count(LeanNorm)) for each in kinds]
    assert counts == [(2, 4), (0, 4), (6, 10), (6, 0)]
