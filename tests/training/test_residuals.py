"""Residual streams in 16 bits: only in training with autocast, and close to those in 32."""

import copy

import pytest
import torch
from torch import Tensor, nn

from regard.core.layers import Block
from regard.models import GPT, Bert, BertConfig, GPTConfig
from regard.training.joint import join_products
from regard.training.residuals import narrow_residuals

SIZES = {"vocab": 29, "context": 13, "dim": 12, "depth": 2, "heads": 3, "dropout": 0.0}
IDS = torch.randint(29, (5, 11), generator=torch.Generator().manual_seed(0))
MODELS = {
    "norms before": lambda: GPT(GPTConfig(**SIZES)),
    "norms behind": lambda: Bert(BertConfig(**SIZES)),
}


def outputs(model: nn.Module, autocast: bool) -> tuple[Tensor, set[torch.dtype]]:
    dtypes: set[torch.dtype] = set()
    hooks = [
        m.register_forward_hook(lambda m, x, y: dtypes.add(y.dtype))
        for m in model.modules()
        if isinstance(m, Block)
    ]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = model(IDS)
    for hook in hooks:
        hook.remove()
    return y, dtypes


@pytest.mark.parametrize("name", MODELS)
def test_blocks_pass_16_bits_on_in_training_with_autocast_only(name: str) -> None:
    plain = MODELS[name]().train()
    join_products(plain)
    narrow = copy.deepcopy(plain)
    narrow_residuals(narrow)
    assert narrow.state_dict().keys() == plain.state_dict().keys()
    expected, wide = outputs(plain, autocast=True)
    actual, dtypes = outputs(narrow, autocast=True)
    assert (wide, dtypes) == ({torch.float32}, {torch.bfloat16})
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0.05, atol=0.05)
    assert not torch.equal(actual, expected)
    for training, autocast in ((True, False), (False, True)):
        assert torch.equal(*(outputs(model.train(training), autocast)[0] for model in (plain, narrow)))
