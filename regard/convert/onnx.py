"""ONNX: any model as one graph, or as two, what reads (or sees) and what writes.

Shapes: B batch, S source tokens or regions, T target tokens, D width, N layers that remember.

Where the source is read once and the target is written token by token, the writing graph gives the logits of
all of a target so far; a recurrent one, of one token and where it then stands.
"""

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import Mistake
from ..models import GPT, Bert, Captioner, Electra, Labelled, Seq2Seq, Transformer, ViT, Words
from ..models.captioner import Soft
from ..recurrent import RecurrentState
from .card import onnx_card
from .files import CONFIG, GENERATION, whole_folder, write_json
from .generation import written_generation
from .made import Made, extra, write_tokenizers

OPSET = 18
APART = 1e-4  # how far outputs may be from the model's own
LARGE = 2**30  # bytes: weights beyond this go into a file of their own
IDS, MASK, PIXELS = ("ids", "source", "target", "segments"), "mask", "pixels"


@dataclass(frozen=True)
class Part:
    """A graph: what it computes, and the axes of what goes in, sizes or names of such as may change."""

    name: str
    f: Callable[..., Any]
    inputs: dict[str, tuple[Any, ...]]
    outputs: tuple[str, ...] = ("logits",)


class Graph(nn.Module):
    """A part of a model as a module."""

    def __init__(self, model: nn.Module, f: Callable[..., Any]):
        super().__init__()
        self.model, self.f = model, f

    def forward(self, *inputs: Tensor) -> Any:
        return self.f(*inputs)


def export_onnx(folder: str | Path, made: Made) -> str:
    """A folder of ONNX graphs, at once or not at all; in a line, how far they are from the model itself."""
    extra("onnx", "onnxscript")
    model, task = made.module, made.task
    some = parts(model, task)
    with whole_folder(Path(folder)) as beside:
        for part in some:
            write(beside / f"{part.name}.onnx", part, model)
        reads = not any(isinstance(model, kind) for kind in (GPT, Transformer, Seq2Seq, Captioner))
        named = {"eos_token_id": made.end, "decoder_start_token_id": made.begin}
        tokens = {name: id for name, id in named.items() if id is not None and not reads}
        if made.tokenizer is not None:
            write_tokenizers(beside, made, reads)
        if not reads:
            write_json(beside / GENERATION, written_generation(made.generation, tokens))
        about = {part.name: {"inputs": list(part.inputs), "outputs": list(part.outputs)} for part in some}
        config: dict[str, Any] = {"task": task, "graphs": about, **tokens}
        config |= {name: size for name in ("context", "size") if (size := getattr(model.config, name, None))}
        write_json(beside / CONFIG, config)
        two, labels = made.target_tokenizer is not None, task.get("labels") or ()
        text = onnx_card(str(task["name"]), about, two, labels, tokens, model.config.context)  # type: ignore[union-attr, arg-type]
        (beside / "README.md").write_text(text, encoding="utf-8")
        return tried(beside, some, model)


# Parts


def parts(model: Any, task: dict[str, Any]) -> list[Part]:
    if isinstance(model, Transformer):
        return transformer(model)
    if isinstance(model, Seq2Seq):
        return recurrent(model)
    if isinstance(model, Captioner):
        return captioner(model)
    if isinstance(model, Labelled) and isinstance(model.model, ViT):
        return [seeing(model, task)]
    text: dict[str, tuple[Any, ...]] = {"ids": ("batch", "length")}
    if isinstance(model, GPT):  # padded on the right, no token sees the padding
        return [Part("model", lambda ids: model(ids), text)]
    if isinstance(model, Words):
        return [Part("model", lambda ids: model.hidden(ids), text, ("vectors",))]
    inner = model if isinstance(model, Bert) else model.model
    text |= {"mask": ("batch", "length")}
    if task["name"] == "embed":
        return [Part("model", lambda ids, mask: vectors(model, task, ids, mask), text, ("vectors",))]
    text |= {"segments": ("batch", "length")} if getattr(inner.config, "segments", 0) else {}
    if isinstance(model, Electra):

        def both(ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
            encoded = model.model.encode(ids, mask, segments)
            return model(ids, mask, segments), model.replaced(encoded)

        return [Part("model", both, text, ("logits", "replaced"))]
    return [Part("model", lambda *x: model(*x), text)]


def vectors(model: Bert, task: dict[str, Any], ids: Tensor, mask: Tensor) -> Tensor:
    """A vector for each text, as the task has it."""
    x = model.encode(ids, mask)  # (B, T, D)
    y = x[:, 0] if task["pooling"] == "first" else (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(y, dim=1) if task["normalize"] else y


def seeing(model: Labelled, task: dict[str, Any]) -> Part:
    """Pictures go in as they are, in bytes."""
    mean, std = (torch.tensor(task[name])[:, None, None] for name in ("mean", "std"))
    size = (task["channels"], task["size"], task["size"])
    return Part("model", lambda pixels: model((pixels / 255 - mean) / std), {"pixels": ("batch", *size)})


def transformer(model: Transformer) -> list[Part]:
    def read(source: Tensor, mask: Tensor) -> Tensor:
        return model.encode(source, mask)

    def write(target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return model.logits(model.decode(target, memory, mask))

    source, D = ("batch", "source"), model.config.dim
    into = {"target": ("batch", "target"), "memory": (*source, D), "mask": source}
    return [
        Part("encoder", read, {"source": source, "mask": source}, ("memory",)),
        Part("decoder", write, into),
    ]


def recurrent(model: Seq2Seq) -> list[Part]:
    c, cells = model.config, 2 if model.config.cell == "lstm" else 1

    def read(source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        state = model.read(source, mask)
        return state.source, torch.cat(state.hidden)

    def step(target: Tensor, memory: Tensor, state: Tensor, mask: Tensor | None = None) -> Any:
        now = RecurrentState(state.chunk(cells), memory, real=mask)
        logits = F.linear(model.decode(target, now), model.output)
        return logits, torch.cat(now.hidden)

    source, attends = ("batch", "source"), c.attention != "none"
    into: dict[str, tuple[Any, ...]] = {"target": ("batch", 1)}
    into["memory"] = ("batch", "source" if attends else 1, c.dim)
    into["state"] = (cells * c.depth, "batch", c.dim)
    into |= {"mask": source} if attends else {}
    return [
        Part("encoder", read, {"source": source, "mask": source}, ("memory", "state")),
        Part("decoder", step, into, ("logits", "next_state")),
    ]


def captioner(model: Captioner) -> list[Part]:
    c, decoder = model.config, model.decoder
    N, regions = c.decoder_depth, c.side**2

    def see(pixels: Tensor) -> Any:
        x = model.encoder(pixels)  # (B, S, D)
        if not isinstance(decoder, Soft):
            return x
        first = torch.tanh(decoder.first(x.mean(1)))
        return x, first.unflatten(1, (2 * N, -1)).transpose(0, 1)  # (B, S, D), (2 N, B, D)

    def step(target: Tensor, memory: Tensor, state: Tensor) -> Any:
        now = RecurrentState(state.chunk(2), memory)
        logits = F.linear(model.decode(target, now), model.output)
        return logits, torch.cat(now.hidden)

    def write(target: Tensor, memory: Tensor) -> Tensor:
        return F.linear(model.decode(target, decoder.begin(memory)), model.output)

    pixels = {"pixels": ("batch", c.channels, c.size, c.size)}
    memory, state = ("batch", regions, c.dim), (2 * N, "batch", c.dim)
    if isinstance(decoder, Soft):
        into = {"target": ("batch", 1), "memory": memory, "state": state}
        return [
            Part("encoder", see, pixels, ("memory", "state")),
            Part("decoder", step, into, ("logits", "next_state")),
        ]
    into = {"target": ("batch", "target"), "memory": memory}
    return [Part("encoder", see, pixels, ("memory",)), Part("decoder", write, into)]


# Writing and trying


def drawn(part: Part, vocab: int, sizes: dict[str, int], seed: int) -> tuple[Tensor, ...]:
    """Inputs of a part, at random; rows that are masked are as long as they can be, or shorter."""
    rng, found = torch.Generator().manual_seed(seed), []
    for name, axes in part.inputs.items():
        shape = [sizes.get(axis, axis) for axis in axes]
        if name in IDS:
            high = 2 if name == "segments" else vocab
            found.append(torch.randint(high, shape, generator=rng))
        elif name == MASK:
            lengths = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=rng)
            lengths[0] = shape[1]
            found.append(torch.arange(shape[1]) < lengths)
        elif name == PIXELS:
            found.append(torch.randint(256, shape, generator=rng, dtype=torch.uint8))
        else:
            found.append(torch.randn(shape, generator=rng))
    return tuple(found)


def sizes_of(model: Any, batch: int, *lengths: int) -> dict[str, int]:
    """Names of axes, and sizes that the model can read."""
    c = model.config
    fit = [max(1, min(length, c.context)) for length in lengths]
    if window := getattr(c, "window", None):  # so long that it matters
        fit[0] = min(c.context, getattr(c, "globals", 0) + 3 * window + batch)
    return {"batch": batch, "length": fit[0], "source": fit[0], "target": fit[1]}


def vocab_of(model: Any) -> int:
    """Of what is read and of what is written, the smaller: ids that both know."""
    c = model.config
    return min(size for name in ("vocab", "target_vocab") if (size := getattr(c, name, None) or 2**31))


@torch.no_grad()
def write(path: Path, part: Part, model: Any) -> None:
    if isinstance(model, Seq2Seq) and part.name == "encoder":
        extra("onnx").save_model(reading(model), str(path))
        return
    inputs = drawn(part, vocab_of(model), sizes_of(model, 3, 7, 5), 0)
    shapes = tuple(
        {i: axis for i, axis in enumerate(axes) if isinstance(axis, str)} for axes in part.inputs.values()
    )
    large = sum(p.numel() * p.element_size() for p in model.parameters()) > LARGE
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it tells of packages that are not needed, and of all that it does
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Graph(model, part.f).eval(),
                inputs,
                str(path),
                input_names=list(part.inputs),
                output_names=list(part.outputs),
                dynamic_shapes=(shapes,),
                opset_version=OPSET,
                dynamo=True,
                external_data=large,
                verbose=False,
            )
    finally:
        logging.disable(before)


@torch.inference_mode()
def tried(folder: Path, some: list[Part], model: Any) -> str:
    """The graphs' outputs for inputs of two sizes, which must be the model's."""
    try:
        runtime = extra("onnx", "onnxruntime")
    except Mistake:
        return "not tried, for there is no onnxruntime: pip install onnxruntime"
    farthest = 0.0
    for part in some:
        options = runtime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, torch.get_num_threads()
        session = runtime.InferenceSession(str(folder / f"{part.name}.onnx"), options)
        for seed, (batch, *lengths) in enumerate([(2, 11, 3), (5, 4, 13)]):
            inputs = drawn(part, vocab_of(model), sizes_of(model, batch, *lengths), seed)
            given = {name: t.numpy() for name, t in zip(part.inputs, inputs, strict=True)}
            own = part.f(*inputs)
            own = own if isinstance(own, tuple) else (own,)
            for a, b in zip(session.run(list(part.outputs), given), own, strict=True):
                if a.shape != b.shape:
                    raise Mistake(f"{part.name}.onnx gives {a.shape}, the model itself {tuple(b.shape)}")
                farthest = max(farthest, float((torch.from_numpy(a) - b).abs().max()))
    if not farthest <= APART:
        raise Mistake(f"onnxruntime's outputs are {farthest:.1e} from the model's own; nothing was kept")
    return f"onnxruntime's outputs are the model's own, but for {farthest:.0e}"


# Recurrent layers, which torch's exporter does not know with sources of unequal length

GATES = {"rnn": [0], "gru": [1, 0, 2], "lstm": [0, 3, 1, 2]}  # theirs in our order: z r h, and i o f c


def reading(model: Seq2Seq) -> Any:
    """The encoder's graph, node by node."""
    onnx = extra("onnx")
    helper, c, rnn = onnx.helper, model.config, model.encoder.rnn
    ways, L, D, bridge = 1 + c.bidirectional, c.depth, c.dim, model.encoder.bridge
    cell, nodes, weights = c.cell.upper(), list[Any](), list[Any]()

    def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def weight(name: str, t: Tensor) -> str:
        weights.append(onnx.numpy_helper.from_array(t.detach().contiguous().numpy(), name))
        return name

    weight("first", torch.tensor([0, 0, -1]))
    node("Cast", ["mask"], ["counted"], to=onnx.TensorProto.INT32)
    node("ReduceSum", ["counted", weight("axis", torch.tensor([1]))], ["lengths"], keepdims=0)
    node("Gather", [weight("embed", model.embed.weight), "source"], ["words"])
    x = node("Transpose", ["words"], ["x"], perm=[1, 0, 2])  # (S, B, D)
    ends: dict[str, list[str]] = {"h": [], "c": []}
    for n in range(L):
        kinds: dict[str, Tensor] = {}
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            each = [getattr(rnn, f"{kind}_l{n}{way}") for way in ("", "_reverse")[:ways]]
            kinds[kind] = torch.stack(
                [torch.cat([t.chunk(len(GATES[c.cell]))[g] for g in GATES[c.cell]]) for t in each]
            )
        W, R = weight(f"W{n}", kinds["weight_ih"]), weight(f"R{n}", kinds["weight_hh"])
        b = weight(f"b{n}", torch.cat([kinds["bias_ih"], kinds["bias_hh"]], dim=1))
        outputs = [f"{name}{n}" for name in ("y", "h", "c")][: 3 if c.cell == "lstm" else 2]
        more: dict[str, Any] = {"linear_before_reset": 1} if c.cell == "gru" else {}
        way = "bidirectional" if ways == 2 else "forward"
        node(cell, [x, W, R, b, "lengths"], outputs, hidden_size=D // ways, direction=way, **more)
        side = node("Transpose", [f"y{n}"], [f"side{n}"], perm=[0, 2, 1, 3])  # (S, B, ways, D / ways)
        x = node("Reshape", [side, "first"], [f"x{n}"])  # (S, B, D)
        for name in outputs[1:]:
            row = node("Transpose", [name], [f"{name}_row"], perm=[1, 0, 2])  # (B, ways, D / ways)
            ends[name[0]].append(
                node("Reshape", [row, weight(f"{name}_flat", torch.tensor([1, -1, D]))], [f"{name}_end"])
            )
    states = ends["h"] + ends["c"]  # (1, B, D) each
    if bridge is not None:
        for i, W in enumerate(cast("Any", bridge)):
            y = node("MatMul", [states[i], weight(f"bridge{i}", W.weight.T)], [f"bridged{i}"])
            y = node("Add", [y, weight(f"bridge{i}_bias", W.bias)], [f"added{i}"])
            states[i] = node("Tanh", [y], [f"state{i}"])
    node("Concat", states, ["state"], axis=0)
    last = x if model.decoder.look is not None else states[L - 1]
    node("Transpose", [last], ["memory"], perm=[1, 0, 2])
    kinds_of, float32 = onnx.TensorProto, onnx.TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("source", kinds_of.INT64, ["batch", "source"]),
        helper.make_tensor_value_info("mask", kinds_of.BOOL, ["batch", "source"]),
    ]
    outputs_of = [
        helper.make_tensor_value_info("memory", float32, ["batch", None, D]),
        helper.make_tensor_value_info("state", float32, [len(states), "batch", D]),
    ]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs_of, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
