"""Watching a model: what is recorded, and that no hooks remain."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.core.attention import Attention, padding_mask
from regard.core.layers import Block, FeedForward
from regard.describe.watch import watch
from regard.models import GPT, GPTConfig

B, T, S, H, D, d = 3, 5, 7, 2, 22, 11


def gpt() -> GPT:
    return GPT(GPTConfig(vocab=61, context=23, dim=40, depth=3, heads=4, kv_heads=2)).eval()


@torch.no_grad()
def test_one_record_per_call_by_name() -> None:
    model, ids = gpt(), torch.randint(61, (B, T))
    with watch(model) as records:
        assert records == {f"blocks.{i}.attn.f": [] for i in range(3)}
        _, state = model.start(ids)
        model.step(ids[:, :1], state)
    for calls in records.values():
        assert [record["weights"].shape for record in calls] == [(B, 4, T, T), (B, 4, 1, T + 1)]
        for record in calls:
            assert set(record) == {"q", "k", "v", "scores", "weights", "heads"} | (
                {"mask"} if record["q"].shape[2] > 1 else set()  # a lone last query may look at every key
            )
            assert_close(record["scores"], record["q"] @ record["k"].mT / 10**0.5)
            assert_close(record["weights"].sum(-1), torch.ones(record["weights"].shape[:-1]))
            assert_close(record["heads"], record["weights"] @ record["v"])
            assert record["k"].shape[1] == 4  # each head with the keys it used, shared or not


@torch.no_grad()
def test_record_explains_the_output() -> None:
    attention, x, source = Attention(D, H), torch.randn(B, T, D), torch.randn(B, S, D)
    mask = padding_mask(torch.tensor([7, 2, 3]), S)
    with watch(attention) as records:
        y = attention(x, source, mask=mask)
    (record,) = records[""]
    assert_close(y, attention(x, source, mask=mask))
    assert record["q"].shape == (B, H, T, d)
    assert record["k"].shape == record["v"].shape == (B, H, S, d)
    scores = record["q"] @ record["k"].mT / d**0.5
    assert_close(record["weights"], scores.masked_fill(~mask, -torch.inf).softmax(-1))
    assert_close(attention.out(record["heads"].transpose(1, 2).flatten(2)), y)


def test_self_and_cross_attention_are_told_apart() -> None:
    block = Block(D, Attention(D, H, causal=True), FeedForward(D), Attention(D, H))
    with watch(block) as records:
        block(torch.randn(B, T, D), torch.randn(B, S, D))
    assert {name: records[0]["weights"].shape for name, records in records.items()} == {
        "attn.f": (B, H, T, T),
        "cross.f": (B, H, T, S),
    }


def test_nothing_is_watched_afterwards_even_after_an_error() -> None:
    model, ids = gpt(), torch.zeros(1, 5, dtype=torch.long)

    def watching() -> int:
        return sum(m.records is not None for m in model.modules() if isinstance(m, Attention))

    with watch(model) as records:
        assert watching() == 3
    assert watching() == 0
    model(ids)
    assert not any(records.values())
    with pytest.raises(ValueError, match="do not fit"), watch(model):
        model(torch.zeros(1, 24, dtype=torch.long))
    assert watching() == 0


def test_one_within_another_gives_back() -> None:
    model, ids = gpt(), torch.zeros(1, 5, dtype=torch.long)
    with watch(model) as outer:
        model(ids)
        with watch(model) as inner:
            model(ids)
        model(ids)
    assert [len(records) for records in outer.values()] == [2, 2, 2]
    assert [len(records) for records in inner.values()] == [1, 1, 1]


def test_gradients_of_the_weights_can_be_asked_for() -> None:
    model, ids = gpt(), torch.randint(61, (B, T))
    with watch(model) as records:
        logits = model(ids)
    weights = [records[0]["weights"] for records in records.values()]
    for gradient in torch.autograd.grad(logits.logsumexp(-1).sum(), weights):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@torch.no_grad()
def test_some_are_watched_and_the_others_are_not() -> None:
    model, ids = gpt(), torch.randint(61, (B, T))
    with watch(model, list(model.blocks[1].modules())) as records:
        model(ids)
        assert model.blocks[0].attn.f.records is None
    assert {name: len(records) for name, records in records.items()} == {"blocks.1.attn.f": 1}


def test_a_model_without_attention_has_nothing_to_watch() -> None:
    with watch(nn.Linear(3, 5)) as records:
        assert records == {}
