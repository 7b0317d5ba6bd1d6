"""Joint products compute what separate ones do, and leave the names of weights alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from regard.models import GPT, MODELS, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig
from regard.runs import lora
from regard.tasks.converse import hidden_states
from regard.training import joint
from regard.training.joint import JointAttention, JointSwiGLU, join_products

SIZES = {"vocab": 29, "context": 13, "dim": 12, "depth": 2, "heads": 3}
IDS = torch.randint(29, (5, 11), generator=torch.Generator().manual_seed(0))
MASK = torch.arange(11) < torch.tensor([11, 7, 3, 1, 9])[:, None]


def gpt(**more: object) -> GPT:
    return GPT(GPTConfig(**SIZES | more))


CASES = {
    "grouped heads": (lambda: gpt(kv_heads=1, qk_norm=True), (IDS,)),
    "biases of queries, keys and values only": (lambda: gpt(qkv_bias=True), (IDS,)),
    "window": (lambda: gpt(sliding_window=4), (IDS,)),
    "bert": (lambda: Bert(BertConfig(**SIZES | {"dropout": 0.0})), (IDS, MASK)),
    "bert with a window": (
        lambda: Bert(BertConfig(**SIZES | {"dropout": 0.0, "window": 2, "globals": 0})),
        (IDS, MASK),
    ),
    "transformer": (
        lambda: Transformer(
            TransformerConfig(**SIZES | {"dropout": 0.0, "ffn": "geglu", "positions": "relative"})
        ),
        (IDS, IDS.flip(1), MASK),
    ),
    "t5": (
        lambda: MODELS["t5"][0](MODELS["t5"][1](**SIZES | {"dropout": 0.0})),
        (IDS, IDS.flip(1), MASK),
    ),
}


def gradients(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor | None]]:
    loss = model(*inputs).square().sum()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_joint_and_separate_agree(case: str) -> None:
    make, inputs = CASES[case]
    torch.manual_seed(1)
    separate = make().double().train()
    joint = copy.deepcopy(separate)
    join_products(joint)
    assert any(isinstance(m, JointAttention) for m in joint.modules())
    assert joint.state_dict().keys() == separate.state_dict().keys()
    (loss, expected), (joint_loss, actual) = gradients(separate, inputs), gradients(joint, inputs)
    torch.testing.assert_close(joint_loss, loss)
    for name, grad in expected.items():
        torch.testing.assert_close(actual[name], grad, msg=name)
    with torch.no_grad():  # asking and looking are as before, bit for bit
        assert torch.equal(joint.eval()(*inputs), separate.eval()(*inputs))


def test_gates_are_joined() -> None:
    model = gpt()
    join_products(model)
    assert sum(isinstance(m, JointSwiGLU) for m in model.modules()) == 2


def test_low_rank_updates_stay_apart() -> None:
    model = gpt()
    lora.add(model, 2, 4.0)
    join_products(model)
    assert not any(isinstance(m, JointAttention) for m in model.modules())


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_wrong_kernel_is_noticed(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = joint.Attention.forward
    monkeypatch.setattr(joint.JointAttention, "forward", lambda *a, **how: factor * plain(*a, **how))
    assert joint.short_rows_agree(torch.device("cpu")) == (factor == 1.0)
    assert joint.split_heads_agree(torch.device("cpu")) == (factor == 1.0)


def test_packed_conversations_stay_apart() -> None:
    """They are computed by a function in the state, which has no caches to leave out."""
    plain = gpt().double().train()
    packed = copy.deepcopy(plain)
    join_products(packed)
    positions = torch.cat([torch.arange(4), torch.arange(7)]).expand(5, -1)
    expected, actual = (hidden_states(model, IDS, positions) for model in (plain, packed))
    torch.testing.assert_close(actual, expected)
    assert not torch.allclose(packed.hidden(IDS)[:, -1], actual[:, -1])
