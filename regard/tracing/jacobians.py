"""The influence of earlier states on later ones: vanishing and exploding gradients.

The gradient of a loss at token t reaches the state k tokens before through the product of k Jacobians,
∂h_t/∂h_{t−k} = Π ∂h_i/∂h_{i−1}; Hochreiter 1991, Bengio et al. 1994, Pascanu et al. 2013, eq. 5. In a
Transformer, no product grows with the distance: attention connects every two tokens directly.

Shapes: T tokens, N numbers of a state, D width.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.describe.cells import cell_step, unpacked
from regard.describe.export import stacks_of
from regard.describe.watch import evaluating, watch
from regard.errors import UserError
from regard.runs.model import Model
from regard.tasks.write import Writer
from regard.tracing.reading import read_input


def jacobian_norms(model: Model, text: str) -> Tensor:
    """|∂h_T/∂h_{T−k}| for k = 0, 1, ... (T,): the largest factor by which a change of a state grows.

    It is the spectral norm: 1 at the distance 0 of a recurrent network.
    """
    return torch.linalg.matrix_norm(jacobians(model, text), ord=2)


def jacobians(model: Model, text: str) -> Tensor:
    """∂h_T/∂h_{T−k} for k = 0, 1, ..., of the last token T of a text: (T, N, N).

    A recurrent network's h are the states of all layers, with an LSTM's cells. A Transformer has no
    recurrent states: its h_{T−k} is the vector that enters the blocks at T − k, and its h_T the one that
    leaves them at T.
    """
    module = model.model
    if not isinstance(model.task, Writer):
        raise UserError(
            "Jacobians by distance are measured of models that write; train one with the recipe write"
        )
    with watch(module), evaluating(module), torch.enable_grad():  # watched: the readable attention
        run = read_input(model, text).run
        assert run is not None
        if stacks := stacks_of(module):
            return block_jacobians(stacks[0].blocks, run)
        rnn = cast(nn.RNNBase, module.rnn)
        inputs: list[Tensor] = []
        hook = rnn.register_forward_pre_hook(lambda _, args: inputs.append(unpacked(args[0])))
        try:
            run()
        finally:
            hook.remove()
        return state_jacobians(rnn, inputs[0].detach()[0])


def state_jacobians(rnn: nn.RNNBase, x: Tensor) -> Tensor:
    """∂h_T/∂h_{T−k} of torch's recurrent layers on inputs x (T, D), by the equations of their cells."""
    if rnn.bidirectional:
        raise UserError("this model reads in both directions, so that no state is the last of all")
    kinds = ("state", "cell") if isinstance(rnn, nn.LSTM) else ("state",)
    state = x.new_zeros(len(kinds) * rnn.num_layers * rnn.hidden_size)
    states: list[Tensor] = []
    for y in x:
        h, *cells = state.view(len(kinds), rnn.num_layers, rnn.hidden_size)
        c = cells[0] if cells else h
        steps: list[dict[str, Tensor]] = []
        for n, weights in enumerate(rnn.all_weights):
            steps.append(cell_step(rnn, y, h[n], c[n], *weights))
            y = steps[-1]["state"]  # which the next layer reads
        state = torch.cat([step[kind] for kind in kinds for step in steps])
        states.append(state)
    return by_distance(state, states)


def block_jacobians(blocks: nn.ModuleList, run: Any) -> Tensor:
    """∂(output of the blocks at the last token)/∂(input of the blocks at T − k)."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs.extend(args[0].detach()[0].unbind())  # a tensor for each token, to differentiate by
        return torch.stack([x.requires_grad_() for x in inputs])[None], *args[1:]

    hooks = [
        blocks[0].register_forward_pre_hook(enter),
        blocks[-1].register_forward_hook(lambda _, __, y: outputs.append(y[0, -1])),
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return by_distance(outputs[0], inputs)


def by_distance(y: Tensor, xs: list[Tensor]) -> Tensor:
    """∂y/∂x of each x, from the last one back."""
    rows = torch.eye(len(y), dtype=y.dtype, device=y.device)
    gradients = torch.autograd.grad(y, xs, rows, is_grads_batched=True, allow_unused=True)
    return torch.stack([torch.zeros_like(rows) if g is None else g for g in reversed(gradients)])
