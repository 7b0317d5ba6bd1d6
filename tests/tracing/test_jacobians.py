"""Products of Jacobians against known cases, finite differences, and torch's own layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from helpers.errors import user_error
from helpers.looking import reader
from regard.core.recurrent import CELLS
from regard.runs.model import Model
from regard.tracing.jacobians import jacobian_norms, jacobians, state_jacobians

TEXT = "the quick brown fox jumps over the lazy dog"
T, D, N = 7, 5, 3


@pytest.mark.parametrize("radius", [1.5, 0.5])
def test_a_linear_network_explodes_or_vanishes_exponentially(radius: float) -> None:
    """At a state of 0, tanh is linear: the product of k Jacobians is Wᵏ, and W is an orthogonal matrix times
    its spectral radius."""
    rnn = nn.RNN(D, N, batch_first=True).double()
    with torch.no_grad():
        for p in rnn.parameters():
            p.zero_()
        rnn.weight_hh_l0.copy_(radius * nn.init.orthogonal_(torch.empty(N, N).double()))
    products = state_jacobians(rnn, torch.zeros(11, D).double())
    assert_close(torch.linalg.matrix_norm(products, ord=2), radius ** torch.arange(11).double())
    assert_close(products[4], torch.linalg.matrix_power(rnn.weight_hh_l0.detach(), 4))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_they_are_the_differences_of_torchs_layers(cell: str, depth: int) -> None:
    """Each number of the state after t tokens is changed a little, and torch's own layer reads the rest."""
    rnn = CELLS[cell](D, N, depth, batch_first=True).double()
    x, parts = torch.randn(T, D).double(), 2 if cell == "lstm" else 1
    size, step = parts * depth * N, 1e-6
    products = state_jacobians(rnn, x)
    assert products.shape == (T, size, size)

    @torch.no_grad()
    def run(tokens: Tensor, flat: Tensor) -> Tensor:
        hidden = flat.view(parts, depth, 1, N)
        _, last = rnn(tokens[None], tuple(hidden) if parts == 2 else hidden[0])
        return torch.stack(last if isinstance(last, tuple) else (last,)).flatten()

    for k in range(T):
        state = run(x[: T - k], torch.zeros(size).double())
        if k == 0:
            expected = torch.eye(size).double()
        else:
            changes = step * torch.eye(size).double()
            differences = [run(x[T - k :], state + v) - run(x[T - k :], state - v) for v in changes]
            expected = torch.stack(differences, dim=1) / (2 * step)
        assert_close(products[k], expected, atol=1e-8, rtol=1e-6)


def writer(kind: str, **settings: Any) -> Model:
    model = reader("write", kind, **settings)
    model.model.double()
    return model


def test_those_of_a_transformer_are_differences() -> None:
    """The vector that enters the blocks at T − k is changed, by the hook of another module."""
    model, step = writer("gpt"), 1e-6
    products = jacobians(model, TEXT)
    ids = torch.tensor([model.tokenizer.encode(TEXT)])
    assert len(products) == ids.shape[1]

    @torch.no_grad()
    def run(change: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        hooks = [
            model.model.drop.register_forward_hook(lambda _, __, y: y + change),
            model.model.norm.register_forward_pre_hook(lambda _, args: outputs.append(args[0][0, -1])),
        ]
        model.model(ids)
        for hook in hooks:
            hook.remove()
        return outputs[0]

    for k in 0, 1, 8:
        for column in 0, 7:
            change = torch.zeros(1, ids.shape[1], model.model.config.dim).double()
            change[0, -1 - k, column] = step
            expected = (run(change) - run(-change)) / (2 * step)
            assert_close(products[k, :, column], expected, atol=1e-7, rtol=1e-6)


def test_a_window_of_attention_ends_the_influence() -> None:
    model = reader("write", "gpt", depth=2, sliding_window=2)
    norms = jacobian_norms(model, TEXT)
    assert (norms[:3] > 0).all()  # two layers of two tokens reach three
    assert not norms[3:].any()


@pytest.mark.parametrize("cell", CELLS)
def test_a_model_is_measured_on_a_text(cell: str) -> None:
    model = writer("recurrent", cell=cell, depth=2)
    norms = jacobian_norms(model, TEXT)
    ids = model.tokenizer.encode(TEXT)
    assert_close(norms[0], torch.ones(()).double())
    x = model.model.embed(torch.tensor(ids)).detach()
    assert_close(norms, torch.linalg.matrix_norm(state_jacobians(model.model.rnn, x), ord=2))
    assert model.model.rnn.weight_hh_l0.grad is None


def test_what_cannot_be_measured_is_said() -> None:
    user_error(lambda: jacobians(reader("translate", "gru"), "the fox"), "write")
    user_error(lambda: jacobians(reader("fill", "bert"), "the ___ fox"), "write")
    both = nn.GRU(D, N, bidirectional=True)
    user_error(lambda: state_jacobians(both, torch.zeros(T, D)), "both directions")
