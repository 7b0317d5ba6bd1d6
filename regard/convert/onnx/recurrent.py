"""The graph of a recurrent encoder, node by node: torch's exporter cannot pack rows of unequal length.

Shapes: B batch, S source tokens, D width.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.convert.export import import_extra

OPSET = 18
GATES = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}  # torch's in ONNX's order: z r h, and i o f c


class GraphBuilder:
    """Nodes and weights of a graph, in the order in which they are added."""

    def __init__(self) -> None:
        self.onnx = import_extra("onnx")
        self.nodes, self.weights = list[Any](), list[Any]()

    def node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def weight(self, name: str, t: Tensor) -> str:
        self.weights.append(self.onnx.numpy_helper.from_array(t.detach().contiguous().numpy(), name))
        return name

    def model(
        self, inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, tuple[int, list[Any]]]
    ) -> Any:
        """The ONNX model; inputs and outputs have a type and axes each."""
        helper = self.onnx.helper
        sides = [
            [helper.make_tensor_value_info(name, *info) for name, info in side.items()]
            for side in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "encoder", *sides, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def encoder_graph(model: Any) -> Any:
    """source, mask -> memory, state: the encoder of a model with `embed`, `encoder` and `decoder`."""
    graph, rnn = GraphBuilder(), cast("nn.RNNBase", model.encoder.rnn)
    D = model.embed.embedding_dim
    types = graph.onnx.TensorProto
    graph.weight("row", torch.tensor([0, 0, -1]))
    graph.node("Cast", ["mask"], ["counts"], to=types.INT32)
    graph.node("ReduceSum", ["counts", graph.weight("axis", torch.tensor([1]))], ["lengths"], keepdims=0)
    graph.node("Gather", [graph.weight("embed", model.embed.weight), "source"], ["embeddings"])
    x = graph.node("Transpose", ["embeddings"], ["x"], perm=[1, 0, 2])  # (S, B, D)
    hidden, cells = list[str](), list[str]()  # the last states of each layer, (1, B, D)
    for layer in range(rnn.num_layers):
        x, last = add_layer(graph, rnn, layer, x, D)
        hidden.append(last[0])
        cells += last[1:]
    states = hidden + cells
    if model.encoder.bridge is not None:
        for i, linear in enumerate(model.encoder.bridge):
            y = graph.node(
                "MatMul", [states[i], graph.weight(f"bridge{i}", linear.weight.T)], [f"product{i}"]
            )
            y = graph.node("Add", [y, graph.weight(f"bridge{i}_bias", linear.bias)], [f"sum{i}"])
            states[i] = graph.node("Tanh", [y], [f"state{i}"])
    graph.node("Concat", states, ["state"], axis=0)
    memory = x if model.decoder.look is not None else states[rnn.num_layers - 1]
    graph.node("Transpose", [memory], ["memory"], perm=[1, 0, 2])
    source = ["batch", "source"]
    return graph.model(
        {"source": (types.INT64, source), "mask": (types.BOOL, source)},
        {"memory": (types.FLOAT, ["batch", None, D]), "state": (types.FLOAT, [len(states), "batch", D])},
    )


def add_layer(graph: GraphBuilder, rnn: nn.RNNBase, n: int, x: str, D: int) -> tuple[str, list[str]]:
    """Add one recurrent layer; return the names of its outputs (S, B, D) and its last states (1, B, D)."""
    cell, directions = rnn.mode.removesuffix("_TANH"), 1 + rnn.bidirectional

    def gates(kind: str) -> Tensor:
        both = [getattr(rnn, f"{kind}_l{n}{end}") for end in ("", "_reverse")[:directions]]
        chunks = [t.chunk(len(GATES[cell])) for t in both]
        return torch.stack([torch.cat([chunk[gate] for gate in GATES[cell]]) for chunk in chunks])

    W, R = graph.weight(f"W{n}", gates("weight_ih")), graph.weight(f"R{n}", gates("weight_hh"))
    bias = graph.weight(f"b{n}", torch.cat([gates("bias_ih"), gates("bias_hh")], dim=1))
    outputs = [f"{name}{n}" for name in ("y", "h", "c")][: 3 if cell == "LSTM" else 2]
    graph.node(
        cell,
        [x, W, R, bias, "lengths"],
        outputs,
        hidden_size=rnn.hidden_size,
        direction="bidirectional" if rnn.bidirectional else "forward",
        **({"linear_before_reset": 1} if cell == "GRU" else {}),
    )
    y = graph.node(
        "Transpose", [f"y{n}"], [f"by_row{n}"], perm=[0, 2, 1, 3]
    )  # (S, B, directions, D / directions)
    last = []
    for name in outputs[1:]:
        row = graph.node(
            "Transpose", [name], [f"{name}_row"], perm=[1, 0, 2]
        )  # (B, directions, D / directions)
        shape = graph.weight(f"{name}_shape", torch.tensor([1, -1, D]))
        last.append(graph.node("Reshape", [row, shape], [f"{name}_last"]))
    return graph.node("Reshape", [y, "row"], [f"x{n}"]), last
