"""A readable reference of torch's recurrent layers, gate by gate, and the description of its values.

Shapes: B batch, T tokens, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.describe.texts import Op, Text, as_title, sign
from regard.describe.values import Description

Edit = Callable[[str, Tensor], Tensor]  # of the value (B, D) with a name
CellEdit = Callable[[Tensor, int], Tensor]  # of the value (B, 1, D) at a token


def cell_step(
    rnn: nn.RNNBase, x: Tensor, h: Tensor, c: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor,
    *, edit: Edit = lambda name, value: value
) -> dict[str, Tensor]:  # fmt: skip
    """One step of a cell, with torch's order of gates: from x, h and an LSTM's c to all gates and states.

    `edit` may change each of them before it is used.
    """
    h = edit("previous", h)
    Wx, Uh = F.linear(x, W, b), F.linear(h, U, d)
    if isinstance(rnn, nn.RNN):
        return {"previous": h, "state": edit("state", torch.tanh(Wx + Uh))}
    if isinstance(rnn, nn.GRU):
        (Wr, Wz, Wn), (Ur, Uz, Un) = Wx.chunk(3, -1), Uh.chunk(3, -1)
        r, z = edit("reset_gate", torch.sigmoid(Wr + Ur)), edit("update_gate", torch.sigmoid(Wz + Uz))
        Wn, Un = edit("from_input", Wn), edit("from_state", Un)
        n = edit("candidate", torch.tanh(Wn + r * Un))
        gates = {"reset_gate": r, "update_gate": z, "from_input": Wn, "from_state": Un, "candidate": n}
        return {"previous": h, **gates, "state": edit("state", (1 - z) * n + z * h)}
    c = edit("previous_cell", c)
    i, f, g, o = (Wx + Uh).chunk(4, -1)
    i, f = edit("input_gate", torch.sigmoid(i)), edit("forget_gate", torch.sigmoid(f))
    g, o = edit("candidate", torch.tanh(g)), edit("output_gate", torch.sigmoid(o))
    new = edit("cell", f * c + i * g)
    gates = {"input_gate": i, "forget_gate": f, "candidate": g, "output_gate": o, "cell": new}
    return {"previous": h, "previous_cell": c, **gates, "state": edit("state", o * torch.tanh(new))}


def unroll(
    rnn: nn.RNNBase,
    x: Tensor | PackedSequence,
    hidden: Tensor | tuple[Tensor, ...] | None = None,
    attention_mask: Tensor | None = None,
    edits: Mapping[tuple[int, str], CellEdit] | None = None,
) -> list[dict[str, Tensor]]:
    """The computation of nn.RNN, nn.GRU and nn.LSTM, step by step: for each layer and direction, in torch's
    order, all gates and states by name, and the `previous` states, (B, T, D) each; 0 where a row is padded.

    `edits` change a gate or state of a layer and direction, which affects later ones.
    """
    directions, x = 1 + rnn.bidirectional, unpacked(x)
    hidden = hidden if hidden is None or isinstance(hidden, tuple) else (hidden,)
    h0 = hidden or (x.new_zeros(rnn.num_layers * directions, len(x), rnn.hidden_size),)
    mask = torch.ones_like(x[..., 0], dtype=torch.bool) if attention_mask is None else attention_mask
    unpadded, layers = mask[..., None], list[dict[str, Tensor]]()
    for n, weights in enumerate(rnn.all_weights):
        h, c = h0[0][n], h0[-1][n]
        steps: list[dict[str, Tensor]] = []
        backward, times = n % directions, range(x.shape[1])
        for t in reversed(times) if backward else times:
            edit = partial(edit_value, edits or {}, n, t)
            steps.append(cell_step(rnn, x[:, t], h, c, *weights, edit=edit))
            new = steps[-1]
            h = torch.where(unpadded[:, t], new["state"], h)
            c = torch.where(unpadded[:, t], new.get("cell", c), c)
        steps = steps[::-1] if backward else steps
        layers.append(
            {name: unpadded * torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}
        )
        if n % directions == directions - 1:
            x = torch.cat([layer["state"] for layer in layers[-directions:]], dim=-1)
    return layers


def edit_value(edits: Mapping[tuple[int, str], CellEdit], n: int, t: int, name: str, value: Tensor) -> Tensor:
    """Apply the edit of a gate or state (B, D) at token t, if there is one."""
    return edits[n, name](value[:, None], t)[:, 0] if (n, name) in edits else value


class EditedCells:
    """Replaces the `forward` of a recurrent layer: the same computation step by step, with changes."""

    def __init__(self, rnn: nn.RNNBase, edits: Mapping[tuple[int, str], CellEdit]):
        self.rnn, self.edits = rnn, edits
        self.layers: list[dict[str, Tensor]] = []  # the values of the last call

    def __call__(self, x: Any, hidden: Any = None) -> tuple[Any, Any]:
        packed, counts = isinstance(x, PackedSequence), None
        if packed:
            x, counts = pad_packed_sequence(x, True)
        lengths = torch.full((len(x),), x.shape[1]) if counts is None else counts
        mask = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]
        self.layers = unroll(self.rnn, x, hidden, mask, self.edits)
        directions, rows = 1 + self.rnn.bidirectional, torch.arange(len(x))
        ends = {
            kind: torch.stack(
                [
                    layer[kind][rows, 0 if n % directions else lengths - 1]
                    for n, layer in enumerate(self.layers)
                ]
            )
            for kind in ("state", "cell")
            if kind in self.layers[0]
        }
        states: Any = torch.cat([layer["state"] for layer in self.layers[-directions:]], dim=-1)
        if packed:
            states = pack_padded_sequence(states, lengths, True, enforce_sorted=False)
        return states, tuple(ends.values()) if "cell" in ends else ends["state"]


def unpacked(x: Tensor | PackedSequence) -> Tensor:
    """The tensor (B, T, D) of a packed batch."""
    return x if isinstance(x, Tensor) else pad_packed_sequence(x, True)[0]


def carried_states(x: Any, hidden: Tensor | tuple[Tensor, ...] | None = None) -> Tensor | None:
    """The states that a recurrent layer was called with (B, N, D); None at the beginning of a text."""
    if hidden is None:
        return None
    return (hidden if isinstance(hidden, Tensor) else torch.cat(hidden)).transpose(0, 1)


def describe_cells(
    d: Description, rnn: nn.RNNBase, x: str, first: str | None = None, carried: bool = False
) -> str:
    """Note the gates and states of torch's recurrent layers; return the name of the last layer's states.

    `first` is the name of the first states, a row for each layer, and after these of an LSTM's cells; without
    it they are 0. If they are `carried` from one call to the next, they are 0 in the first.
    """
    directions, memory = 1 + rnn.bidirectional, dict[str, Any]()

    def gates(args: tuple[Any, ...], kwargs: Any, result: Any) -> list[dict[str, Tensor]]:
        if memory.get("result") is not result:  # the first value of a call computes those of all
            layers = rnn.forward.layers if isinstance(rnn.forward, EditedCells) else unroll(rnn, *args)
            memory.update(result=result, gates=layers)
        return memory["gates"]

    for layer in range(rnn.num_layers):
        states = []
        for n in range(layer * directions, (layer + 1) * directions):
            way = ("forward", "backward")[n % directions] if directions == 2 else ""
            part, before = d.at("cells", layer, way), "{t+1}" if way == "backward" else "{t−1}"
            values = CELLS[rnn.mode.partition("_")[0]](part, rnn.all_weights[n], x, before)
            values = previous_states(part, values, first, layer, rnn.num_layers, before) | values
            for name, (op, text) in values.items():
                pick = partial(gate_values, gates, n, name)
                part.see(name, op, text, rnn, pick=pick)
                if carried and "first" in op:  # a trace of the first call has no such value
                    at_zero = {key: operand for key, operand in op.items() if key not in ("first", "row")}
                    part.see(name, at_zero, text, rnn, pick=pick)
            states.append(part.name("state"))
        if directions == 2:
            both: Op = {"does": "concat", "x": states}
            text = Text("States", "The states of both directions side by side.", "[→h_t; ←h_t]")
            pick = partial(side_by_side, gates, layer)
            states = [d.at("cells", layer).see("states", both, text, rnn, pick=pick)]
        (x,) = states
    return x


def gate_values(gates: Any, n: int, name: str, *call: Any) -> Tensor:
    """The values of one gate of a layer and direction."""
    return gates(*call)[n][name]


def side_by_side(gates: Any, layer: int, *call: Any) -> Tensor:
    """The states of both directions of a layer."""
    return torch.cat([one["state"] for one in gates(*call)[2 * layer : 2 * layer + 2]], dim=-1)


Gates = dict[str, tuple[Op, Text]]
GATES = {  # the letter and the meaning of each
    "state": ("h", "The state after a token."),
    "reset_gate": ("r", "How much of the previous state goes into the candidate."),
    "update_gate": ("z", "How much of the previous state stays."),
    "input_gate": ("i", "How much of the candidate goes into the cell."),
    "forget_gate": ("f", "How much of the cell stays."),
    "output_gate": ("o", "How much of the cell shows in the state."),
    "candidate": ("g", "What the token would add."),
}


def previous_states(
    d: Description, values: Gates, first: str | None, layer: int, depth: int, before: str
) -> Gates:
    """The state of the step before; of an LSTM, also its cell."""
    states: Gates = {}
    for i, (name, x, letter) in enumerate((("previous", "state", "h"), ("previous_cell", "cell", "c"))):
        if x in values:
            op: Op = {"does": "before", "x": d.name(x)} | ({"back": True} if "+" in before else {})
            op |= {} if first is None else {"first": first, "row": layer + i * depth}
            decodes = first is not None and not first.endswith("carried")
            start = "at the beginning the decoder's first" if decodes else "at the beginning 0"
            about = f"The {x} after the token {'behind' if '+' in before else 'before'} this one; {start}."
            states[name] = op, Text(f"Previous {x}", about, f"{letter}_{before}")
    return states


def affine_gates(
    d: Description, weights: Sequence[Tensor], x: str, before: str, names: dict[str, str]
) -> Gates:
    """f(W x + U h + b) of each gate, with the function by the gate's name; W and U are side by side."""
    W, b = torch.cat([*weights[:2]], dim=1), weights[2] + weights[3]
    previous, gates = d.name("previous"), Gates()
    for i, (name, f) in enumerate(names.items()):
        gate_weights = {"W": W.chunk(len(names))[i], "b": b.chunk(len(names))[i]}
        operands = {key: d.weight(f"{name}.{key}", t) for key, t in gate_weights.items()}
        letter, about = GATES[name]
        formula = f"{letter}_t = {sign(f)}(W_{letter} x_t + U_{letter} h_{before} + b_{letter})"
        op = {"does": "linear", "x": [x, previous], "f": f} | operands
        gates[name] = op, Text(as_title(name), about, formula)
    return gates


def describe_rnn(d: Description, weights: Sequence[Tensor], x: str, before: str) -> Gates:
    """tanh(W x + U h + b)"""
    return affine_gates(d, weights, x, before, {"state": "tanh"})


def describe_gru(d: Description, weights: Sequence[Tensor], x: str, before: str) -> Gates:
    """h' = (1 - z) ⊙ tanh(W x + r ⊙ (U h)) + z ⊙ h, with gates r and z"""
    names = {"reset_gate": "sigmoid", "update_gate": "sigmoid", "candidate": "tanh"}
    gates = affine_gates(d, weights, x, before, names)
    del gates["candidate"]  # its reset gate is inside
    for name, operand, i, formula in (
        ("from_input", x, 0, "W_g x_t + b_g"),
        ("from_state", d.name("previous"), 1, f"U_g h_{before} + d_g"),
    ):
        W, b = (d.weight(f"{name}.{key}", weights[i + j].chunk(3)[2]) for key, j in (("W", 0), ("b", 2)))
        about = f"What the {'token' if i == 0 else 'previous state'} gives to the candidate."
        gates[name] = {"does": "linear", "x": operand, "W": W, "b": b}, Text(as_title(name), about, formula)
    terms = [[d.name("from_input"), None], [d.name("reset_gate"), d.name("from_state")]]
    formula = f"g_t = tanh(W_g x_t + b_g + r_t ⊙ (U_g h_{before} + d_g))"
    text = Text("Candidate", "What the new state would be.", formula)
    gates["candidate"] = {"does": "combine", "terms": terms, "f": "tanh"}, text
    new = {"does": "blend", "x": d.name("candidate"), "y": d.name("previous"), "by": d.name("update_gate")}
    formula = f"h_t = (1 − z_t) ⊙ g_t + z_t ⊙ h_{before}"
    gates["state"] = new, Text("State", GATES["state"][1], formula)
    return gates


def describe_lstm(d: Description, weights: Sequence[Tensor], x: str, before: str) -> Gates:
    """c' = f ⊙ c + i ⊙ g, h' = o ⊙ tanh(c'), with gates i, f, o and the candidate g"""
    names = {"input_gate": "sigmoid", "forget_gate": "sigmoid", "candidate": "tanh", "output_gate": "sigmoid"}
    terms = [
        [d.name("forget_gate"), d.name("previous_cell")],
        [d.name("input_gate"), d.name("candidate")],
    ]
    text = Text("Cell", "What is remembered.", f"c_t = f_t ⊙ c_{before} + i_t ⊙ g_t")
    cell: Gates = {"cell": ({"does": "combine", "terms": terms}, text)}
    op = {"does": "activate", "x": d.name("cell"), "f": "tanh", "times": d.name("output_gate")}
    text = Text("State", GATES["state"][1], "h_t = o_t ⊙ tanh(c_t)")
    return affine_gates(d, weights, x, before, names) | cell | {"state": (op, text)}


CELLS = {"RNN": describe_rnn, "GRU": describe_gru, "LSTM": describe_lstm}


# First states


def describe_last_states(m: Any, d: Description) -> str:
    """The states that an encoder hands to its decoder: the last ones, or tanh(W [→h; ←h]) of both ends."""
    kinds, rows = ("state", "cell") if m.rnn.mode == "LSTM" else ("state",), list[Op]()
    for kind in kinds:
        for layer in range(m.rnn.num_layers):
            if m.bridge is None:
                rows.append({"does": "same", "x": d.at("cells", layer).name(kind), "row": -1})
                continue
            ends = [d.at("cells", layer, way).name(kind) for way in ("forward", "backward")]
            text = Text("Bridge", "The last states of both directions, projected.", "W [→h_S; ←h_1]")
            n = len(rows)
            bridge = d.at("bridge").linear(str(n), m.bridge[n], ends, text, row=[-1, 0])
            rows.append({"does": "activate", "x": bridge, "row": 0, "f": "tanh"})
    formula = "h_S" if m.bridge is None else "tanh(W [→h_S; ←h_1] + b)"
    op, text = {"does": "rows", "of": rows}, first_text(formula)
    return d.see("hidden", op, text, m, pick=lambda _, __, y: torch.cat(y[1]).transpose(0, 1))


def describe_first_states(m: Any, d: Description, source: str) -> str:
    """The first states of a decoder that begins with the mean of its source: tanh(W mean + b)."""
    text = Text("Mean of the source", "One vector for all that can be attended to.", "mean_s(x_s)")
    mean = d.see("mean", {"does": "mean", "x": source}, text, m.first, "input")
    text = Text("First states, before tanh", "The mean, projected for every layer.", "W x")
    d.linear("first", m.first, mean, text)
    rows = []
    parts = (t.split(m.rnn.hidden_size) for t in (m.first.weight, m.first.bias))
    for n, (W, b) in enumerate(zip(*parts, strict=True)):
        names = {key: d.weight(f"first.{n}.{key}", t) for key, t in (("W", W), ("b", b))}
        rows.append({"does": "linear", "x": mean, "row": 0, "f": "tanh"} | names)
    op = {"does": "rows", "of": rows}
    text = first_text("tanh(W x + b)")
    return d.see("hidden", op, text, m, "first_hidden", lambda _, __, y: torch.cat(y).transpose(0, 1))


def first_text(formula: str) -> Text:
    """The text about the first states of a decoder."""
    return Text("First states", "The states that the decoder begins with, a row for each layer.", formula)
