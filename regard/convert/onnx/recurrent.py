"""Graphs of recurrent layers over texts, node by node.

torch's exporter writes out every step of a recurrent layer, and cannot pack rows of unequal length.

Shapes: B batch, S tokens, D width, V vocabulary or classes.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.convert.export import import_extra
from regard.describe.export import ENCODER, Graph

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
        graph = helper.make_graph(self.nodes, "recurrent", *sides, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def recurrent_graph(model: Any, declared: Graph, task: dict[str, Any]) -> Any:
    """The graph that a model declares as recurrent."""
    if declared.name == ENCODER:
        return encoder_graph(model)
    return writer_graph(model) if "state" in declared.inputs else reader_graph(model, task)


def encoder_graph(model: Any) -> Any:
    """input_ids, attention_mask -> last_hidden_state, state: of a model with `embed` and `encoder`."""
    graph, rnn = GraphBuilder(), cast("nn.RNNBase", model.encoder.rnn)
    D = model.embed.embedding_dim
    types = graph.onnx.TensorProto
    x, states = add_layers(graph, model.embed, rnn, "input_ids", add_lengths(graph))
    if model.encoder.bridge is not None:
        for i, linear in enumerate(model.encoder.bridge):
            y = add_linear(graph, states[i], f"bridge{i}", linear.weight, linear.bias)
            states[i] = graph.node("Tanh", [y], [f"state{i}"])
    graph.node("Concat", states, ["state"], axis=0)
    memory = x if model.decoder.look is not None else states[rnn.num_layers - 1]
    graph.node("Transpose", [memory], ["last_hidden_state"], perm=[1, 0, 2])
    source = ["batch", "source"]
    return graph.model(
        {"input_ids": (types.INT64, source), "attention_mask": (types.INT64, source)},
        {
            "last_hidden_state": (types.FLOAT, ["batch", None, D]),
            "state": (types.FLOAT, [len(states), "batch", D]),
        },
    )


def writer_graph(model: Any) -> Any:
    """input_ids, state -> logits, next_state: a language model with `embed` and `rnn`."""
    graph, types, D = GraphBuilder(), import_extra("onnx").TensorProto, model.config.dim
    count = model.rnn.num_layers * (2 if isinstance(model.rnn, nn.LSTM) else 1)
    first = [f"state{i}" for i in range(count)]
    graph.node("Split", ["state"], first, axis=0, num_outputs=count)
    x, states = add_layers(graph, model.embed, model.rnn, "input_ids", "", first)
    graph.node("Concat", states, ["next_state"], axis=0)
    graph.node("Transpose", [add_linear(graph, x, "output", model.output)], ["logits"], perm=[1, 0, 2])
    ids, state = ["batch", "length"], (types.FLOAT, [count, "batch", D])
    return graph.model(
        {"input_ids": (types.INT64, ids), "state": state},
        {"logits": (types.FLOAT, [*ids, len(model.output)]), "next_state": state},
    )


def reader_graph(model: Any, task: dict[str, Any]) -> Any:
    """input_ids, attention_mask -> logits: a recurrent model with a head, over tokens or a pooled vector; or
    -> vectors of texts, without a head."""
    graph, types, embeds = GraphBuilder(), import_extra("onnx").TensorProto, task["name"] == "embed"
    reader = model if embeds else model.model
    mix = getattr(reader, "mix", None)  # of an ELMo's layers
    rnn = reader.rnn if mix is None else reader.encoder.rnn
    x, states = add_layers(graph, reader.embed, rnn, "input_ids", add_lengths(graph))
    x = x if mix is None else add_mix(graph, mix, "x", x)
    if not embeds and model.each:
        x = graph.node("Transpose", [x], ["by_text"], perm=[1, 0, 2])  # (B, S, D)
    elif task["pooling"] == "mean" if embeds else model.mean:
        x = add_mean(graph, x)
    elif mix is not None:
        x = graph.node("Gather", [x, graph.weight("first", torch.tensor(0))], ["first_token"])  # (B, D)
    else:
        last = [states[rnn.num_layers - 1], graph.weight("layer", torch.tensor([0]))]
        x = graph.node("Squeeze", last, ["last"])  # (B, D)
    ids = ["batch", "length"]
    if embeds:
        if task["normalize"]:
            x = graph.node("LpNormalization", [x], ["unit"], axis=1)
        graph.node("Identity", [x], ["vectors"])
        output = {"vectors": (types.FLOAT, [*ids[:1], reader.config.dim])}
    else:
        graph.node("Identity", [add_linear(graph, x, "head", model.head.weight, model.head.bias)], ["logits"])
        output = {"logits": (types.FLOAT, [*(ids if model.each else ids[:1]), model.head.out_features])}
    return graph.model({"input_ids": (types.INT64, ids), "attention_mask": (types.INT64, ids)}, output)


def add_mix(graph: GraphBuilder, mix: Any, *layers: str) -> str:
    """Add the mixture of layers of an ELMo; return its name."""
    weights = mix.gamma * mix.w.softmax(0)
    parts = [
        graph.node("Mul", [layer, graph.weight(f"s{j}", weights[j])], [f"part{j}"])
        for j, layer in enumerate(layers)
    ]
    return graph.node("Sum", parts, ["mixed"])


def add_mean(graph: GraphBuilder, x: str) -> str:
    """Add the mean over the tokens of each text, from (S, B, D) to (B, D); return its name."""
    present = graph.node("Cast", ["attention_mask"], ["present"], to=graph.onnx.TensorProto.FLOAT)  # (B, S)
    count = graph.node("ReduceSum", [present, "axis"], ["count"], keepdims=1)  # (B, 1)
    by_token = graph.node("Transpose", [present], ["by_token"], perm=[1, 0])
    by_token = graph.node(
        "Unsqueeze", [by_token, graph.weight("width", torch.tensor([2]))], ["weights"]
    )  # (S, B, 1)
    x = graph.node("Mul", [x, by_token], ["unpadded"])
    total = graph.node("ReduceSum", [x, graph.weight("tokens", torch.tensor([0]))], ["total"], keepdims=0)
    return graph.node("Div", [total, count], ["mean"])


def add_linear(graph: GraphBuilder, x: str, name: str, W: Tensor, b: Tensor | None = None) -> str:
    """Add x Wᵀ + b; return its name."""
    y = graph.node("MatMul", [x, graph.weight(name, W.T)], [f"{name}_product"])
    if b is None:
        return y
    return graph.node("Add", [y, graph.weight(f"{name}_bias", b)], [f"{name}_sum"])


def add_lengths(graph: GraphBuilder) -> str:
    """Add the number of tokens of each row of the mask; return its name."""
    graph.node("Cast", ["attention_mask"], ["counts"], to=graph.onnx.TensorProto.INT32)
    axis = graph.weight("axis", torch.tensor([1]))
    return graph.node("ReduceSum", ["counts", axis], ["lengths"], keepdims=0)


def add_layers(
    graph: GraphBuilder,
    embed: nn.Embedding,
    rnn: nn.RNNBase,
    ids: str,
    lengths: str,
    first: Sequence[str] = (),
) -> tuple[str, list[str]]:
    """Add an embedding and recurrent layers; return the names of the last one's outputs (S, B, D), and of the
    last states of each layer (1, B, D), then of an LSTM's cells. `first` are their first states."""
    D, depth = embed.embedding_dim, rnn.num_layers
    graph.weight("row", torch.tensor([0, 0, -1]))
    graph.node("Gather", [graph.weight("embed", embed.weight), ids], ["embeddings"])
    x = graph.node("Transpose", ["embeddings"], ["x"], perm=[1, 0, 2])  # (S, B, D)
    hidden, cells = list[str](), list[str]()
    for layer in range(depth):
        x, last = add_layer(graph, rnn, layer, x, D, [lengths, *first[layer::depth]])
        hidden.append(last[0])
        cells += last[1:]
    return x, hidden + cells


def add_layer(
    graph: GraphBuilder, rnn: nn.RNNBase, n: int, x: str, D: int, more: list[str]
) -> tuple[str, list[str]]:
    """Add one recurrent layer; return the names of its outputs (S, B, D) and its last states (1, B, D).
    `more` are its other inputs: the lengths, and first states (1, B, D) if it has them."""
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
        [x, W, R, bias, *more],
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
