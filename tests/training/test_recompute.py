"""Blocks that are computed twice: the same training in less memory."""

import copy

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from helpers.errors import user_error
from helpers.runs import same, tiny, write_data
from regard.models import GPT, GPTConfig
from regard.training.recompute import recompute_blocks

pytestmark = pytest.mark.usefixtures("quick")

SLOW = ("restore-t5", "fill-bert", "fill-electra", "caption-transformer", "see-vit", "embed-bert")
BLOCKS = ["write", "translate-transformer", *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)]


@pytest.mark.parametrize("case", BLOCKS)
def test_training_is_the_same_to_the_last_bit(tmp_path, case):
    """Also with dropout, and where blocks have caches."""
    data = write_data(case, tmp_path)
    dropout = {} if case == "see-vit" else {"model__dropout": 0.3}
    for name, recompute in (("kept", False), ("twice", True)):
        tiny(data, tmp_path / name, case=case, steps=2, train__recompute=recompute, **dropout)
    same(tmp_path / "kept", tmp_path / "twice")


def test_less_is_kept_for_the_backward_pass():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=13, context=11, dim=16, depth=3, heads=2))
    tokens = torch.randint(13, (5, 11))
    sizes, grads = [], []
    for each in (model, recomputed := copy.deepcopy(model)):
        if each is recomputed:
            recompute_blocks(each)
        saved = {}

        def keep(t, saved=saved):
            saved[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
            return t

        with saved_tensors_hooks(keep, lambda t: t):
            loss = each(tokens).square().sum()
        loss.backward()
        sizes.append(sum(saved.values()))
        grads.append([p.grad for p in each.parameters()])
    assert all(map(torch.equal, *grads))
    assert sizes[1] < sizes[0] / 3


def test_a_model_without_blocks_has_nothing_to_compute_twice(tmp_path):
    data = write_data("write-lstm-cells", tmp_path)
    user_error(
        lambda: tiny(data, tmp_path / "out", case="write-lstm-cells", steps=1, train__recompute=True),
        "train.recompute",
    )
