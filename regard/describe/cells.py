"""The readable twin of torch's recurrent layers, gate by gate, and how its numbers come about.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from regard.describe.values import Description, Op


def cell_step(
    rnn: nn.RNNBase, x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor
) -> dict[str, Tensor]:
    """One step of a cell, with torch's order of gates: from x, h and an LSTM's c to all gates and states."""
    Wx, Uh = F.linear(x, W, b), F.linear(h, U, d)
    if isinstance(rnn, nn.RNN):
        return {"state": torch.tanh(Wx + Uh)}
    if isinstance(rnn, nn.GRU):
        (Wr, Wz, Wn), (Ur, Uz, Un) = Wx.chunk(3, -1), Uh.chunk(3, -1)
        r, z = torch.sigmoid(Wr + Ur), torch.sigmoid(Wz + Uz)
        n = torch.tanh(Wn + r * Un)
        gates = {"reset_gate": r, "update_gate": z, "from_input": Wn, "from_state": Un}
        return gates | {"candidate": n, "state": (1 - z) * n + z * h}
    i, f, g, o = (Wx + Uh).chunk(4, -1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    new = f * c + i * g
    gates = {"input_gate": i, "forget_gate": f, "candidate": g, "output_gate": o}
    return {"previous_cell": c, **gates, "cell": new, "state": o * torch.tanh(new)}


def unroll(
    rnn: nn.RNNBase,
    x: Tensor | PackedSequence,
    hidden: Tensor | tuple[Tensor, ...] | None = None,
    attention_mask: Tensor | None = None,
) -> list[dict[str, Tensor]]:
    """What nn.RNN, nn.GRU and nn.LSTM compute, step by step: for each layer and direction, in torch's order,
    all gates and states by name, and the `previous` states, (B, T, D) each; 0 where a row is padded."""
    directions, x = 1 + rnn.bidirectional, unpacked(x)
    hidden = hidden if hidden is None or isinstance(hidden, tuple) else (hidden,)
    h0 = hidden or (x.new_zeros(rnn.num_layers * directions, len(x), rnn.hidden_size),)
    mask = torch.ones_like(x[..., 0], dtype=torch.bool) if attention_mask is None else attention_mask
    real, layers = mask[..., None], list[dict[str, Tensor]]()
    for n, weights in enumerate(rnn.all_weights):
        h, c = h0[0][n], h0[-1][n]
        steps: list[dict[str, Tensor]] = []
        backward, times = n % directions, range(x.shape[1])
        for t in reversed(times) if backward else times:
            steps.append({"previous": h} | cell_step(rnn, x[:, t], h, c, *weights))
            new = steps[-1]
            h = torch.where(real[:, t], new["state"], h)
            c = torch.where(real[:, t], new.get("cell", c), c)
        steps = steps[::-1] if backward else steps
        layers.append({name: real * torch.stack([step[name] for step in steps], dim=1) for name in steps[0]})
        if n % directions == directions - 1:
            x = torch.cat([layer["state"] for layer in layers[-directions:]], dim=-1)
    return layers


def unpacked(x: Tensor | PackedSequence) -> Tensor:
    """The tensor (B, T, D) of a packed batch."""
    return x if isinstance(x, Tensor) else pad_packed_sequence(x, True)[0]


def describe_cells(d: Description, rnn: nn.RNNBase, x: str) -> str:
    """Note the gates and states of torch's recurrent layers; return the name of the last layer's states."""
    directions, memory = 1 + rnn.bidirectional, dict[str, Any]()

    def gates(args: tuple[Any, ...], kwargs: Any, result: Any) -> list[dict[str, Tensor]]:
        if memory.get("result") is not result:  # the first value of a call computes those of all
            memory.update(result=result, gates=unroll(rnn, *args))
        return memory["gates"]

    for layer in range(rnn.num_layers):
        states = []
        for n in range(layer * directions, (layer + 1) * directions):
            way = ("forward", "backward")[n % directions] if directions == 2 else ""
            part = d.at("cells", layer, way)
            for name, op in CELLS[rnn.mode.partition("_")[0]](part, rnn.all_weights[n], x).items():
                part.see(name, op, rnn, pick=lambda *call, n=n, name=name: gates(*call)[n][name])
            states.append(part.name("state"))
        if directions == 2:
            op = {"does": "concat", "x": states}
            states = [d.at("cells", layer).see("states", op, rnn, pick=partial(side_by_side, gates, layer))]
        (x,) = states
    return x


def side_by_side(gates: Any, layer: int, *call: Any) -> Tensor:
    """The states of both directions of a layer."""
    return torch.cat([one["state"] for one in gates(*call)[2 * layer : 2 * layer + 2]], dim=-1)


def affine_gates(d: Description, weights: Sequence[Tensor], x: str, names: dict[str, str]) -> dict[str, Op]:
    """f(W x + U h + b) of each gate, the function by the gate's name; W and U side by side."""
    W, b = torch.cat([*weights[:2]], dim=1), weights[2] + weights[3]
    previous, ops = d.name("previous"), {}
    for i, (name, f) in enumerate(names.items()):
        some = {"W": W.chunk(len(names))[i], "b": b.chunk(len(names))[i]}
        operands = {key: d.weight(f"{name}.{key}", t) for key, t in some.items()}
        formula = f"{'σ' if f == 'sigmoid' else f}(W x + U h + b)"
        ops[name] = {"does": "linear", "x": [x, previous], "f": f, "formula": formula} | operands
    return ops


def describe_rnn(d: Description, weights: Sequence[Tensor], x: str) -> dict[str, Op | None]:
    """tanh(W x + U h + b)"""
    return {"previous": None} | affine_gates(d, weights, x, {"state": "tanh"})


def describe_gru(d: Description, weights: Sequence[Tensor], x: str) -> dict[str, Op | None]:
    """h' = (1 - z) ⊙ tanh(W x + r ⊙ (U h)) + z ⊙ h, with gates r and z"""
    whole = affine_gates(
        d, weights, x, {"reset_gate": "sigmoid", "update_gate": "sigmoid", "candidate": "tanh"}
    )
    parts: dict[str, Op | None] = {}
    for name, operand, i in (("from_input", x, 0), ("from_state", d.name("previous"), 1)):
        W, b = (d.weight(f"{name}.{key}", weights[i + j].chunk(3)[2]) for key, j in (("W", 0), ("b", 2)))
        parts[name] = {"does": "linear", "x": operand, "W": W, "b": b}
    terms = [[d.name("from_input"), None], [d.name("reset_gate"), d.name("from_state")]]
    new = {"does": "blend", "x": d.name("candidate"), "y": d.name("previous"), "by": d.name("update_gate")}
    new["formula"] = "(1 − z) ⊙ n + z ⊙ h"
    gates = {name: whole[name] for name in ("reset_gate", "update_gate")}
    candidate = {"does": "combine", "terms": terms, "f": "tanh", "formula": "tanh(W x + r ⊙ (U h))"}
    return {"previous": None} | gates | parts | {"candidate": candidate, "state": new}


def describe_lstm(d: Description, weights: Sequence[Tensor], x: str) -> dict[str, Op | None]:
    """c' = f ⊙ c + i ⊙ g, h' = o ⊙ tanh(c'), with gates i, f, o and the candidate g"""
    names = {"input_gate": "sigmoid", "forget_gate": "sigmoid", "candidate": "tanh", "output_gate": "sigmoid"}
    terms = [
        [d.name("forget_gate"), d.name("previous_cell")],
        [d.name("input_gate"), d.name("candidate")],
    ]
    cell = {"does": "combine", "terms": terms, "formula": "f ⊙ c + i ⊙ g"}
    state = {"does": "activate", "x": d.name("cell"), "f": "tanh", "times": d.name("output_gate")}
    state["formula"] = "o ⊙ tanh(c)"
    before = {"previous": None, "previous_cell": None}
    return before | affine_gates(d, weights, x, names) | {"cell": cell, "state": state}


CELLS = {"RNN": describe_rnn, "GRU": describe_gru, "LSTM": describe_lstm}
