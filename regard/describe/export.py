"""Declarations of models for the exporters, which know no model classes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

Axes = tuple[int | str, ...]  # fixed sizes, and names of those that may vary
TEXT: Axes = ("batch", "length")
SOURCE: Axes = ("batch", "source")
# Names are those of Hugging Face's optimum, so that its programs can be used
ENCODER, DECODER = "encoder_model", "decoder_model"
PAIR: Mapping[str, Axes] = {"input_ids": SOURCE, "attention_mask": SOURCE}  # an encoder of texts


class ExportedModel(nn.Module):
    """The interface of a model for exporters. It serves type checkers: models need not derive from it."""

    config: Any
    graphs: Callable[[], "list[Graph]"]
    stacks: Callable[[], "list[StackParts]"]
    encode: Callable[..., Tensor]  # of a model that reads
    start: Callable[..., tuple[Tensor, Any]]  # of a model that writes
    step: Callable[[Tensor, Any], tuple[Tensor, Any]]


def as_exported(model: nn.Module) -> ExportedModel:
    return cast(ExportedModel, model)


def without_head(model: nn.Module) -> nn.Module:
    """Return the model below a head, its `model`, or the model itself."""
    return cast(nn.Module, getattr(model, "model", model))


def stacks_of(model: nn.Module) -> list["StackParts"]:
    """The stacks of Transformer blocks that a model declares; none, if it has no such blocks."""
    stacks: list[StackParts] = getattr(model, "stacks", list)()
    return stacks


def layout(model: nn.Module) -> str:
    """The roles of its stacks: encoder, decoder, encoder-decoder, or nothing."""
    return "-".join(stack.role for stack in stacks_of(model))


@dataclass(frozen=True)
class Graph:
    """A function of tensors that becomes one ONNX graph; a model lists its own in `graphs()`."""

    name: str  # of the file, without .onnx
    f: Callable[..., Any]
    inputs: Mapping[str, Axes]  # in the order of the arguments
    outputs: tuple[str, ...] = ("logits",)
    recurrent: bool = False  # has a recurrent layer over texts of any length, which torch cannot export


# Graphs of a model `m`; a class declares `graphs = export.text_graphs`.


def text_graphs(m: Any) -> list[Graph]:
    """The logits of texts, without a mask: no token attends to the padding after it."""
    return [Graph("model", lambda ids: m(ids), {"input_ids": TEXT})]


def word_graphs(m: Any) -> list[Graph]:
    return [Graph("model", m.hidden, {"input_ids": TEXT}, ("vectors",))]


def masked_text_graphs(m: Any) -> list[Graph]:
    """The logits of texts, given a mask, and segments if the model has them."""
    inputs = {"input_ids": TEXT, "attention_mask": TEXT}
    inputs |= {} if m.segments is None else {"token_type_ids": TEXT}
    return [Graph("model", m.forward, inputs)]


def electra_graphs(m: Any) -> list[Graph]:
    def both(ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return m(ids, mask, segments), m.detect(m.model.encode(ids, mask, segments))

    return [replace(m.model.graphs()[0], f=both, outputs=("logits", "replaced"))]


def image_graphs(m: Any) -> list[Graph]:
    return [Graph("model", m.encode, pixel_inputs(m.config), ("hidden",))]


def pixel_inputs(config: Any) -> dict[str, Axes]:
    """An image, or a spectrogram."""
    return {"pixels": ("batch", config.channels, getattr(config, "mels", None) or config.size, config.size)}


def head_graphs(m: Any) -> list[Graph]:
    """The graph of a model with its head, with a mask if it reads texts."""
    (graph,) = m.model.graphs()
    inputs = {name: axes for name, axes in graph.inputs.items() if name != "state"}
    inputs |= {"attention_mask": graph.inputs["input_ids"]} if "input_ids" in inputs else {}
    return [replace(graph, f=m.forward, inputs=inputs, outputs=("logits",))]


def transformer_graphs(m: Any) -> list[Graph]:
    return attention_graphs(m, m.decoder, PAIR, "source")


def seq2seq_graphs(m: Any) -> list[Graph]:
    return recurrent_graphs(m, PAIR, 1 if m.decoder.look is None else "source")


def caption_graphs(m: Any) -> list[Graph]:
    inputs, regions = pixel_inputs(m.config), m.config.side**2
    if hasattr(m.decoder, "rnn"):
        return recurrent_graphs(m, inputs, regions)
    return attention_graphs(m, m.decoder.blocks, inputs, regions)


def attention_graphs(model: Any, decoder: Any, inputs: Mapping[str, Axes], length: int | str) -> list[Graph]:
    """The graphs of an encoder-decoder whose decoder is a Stack.

    The first encodes the inputs to `last_hidden_state` (batch, length, D). The second decodes the whole
    target so far, given these and, if the inputs have one, the source's mask.
    """

    def encode(source: Tensor, mask: Tensor | None = None) -> Tensor:
        return model.begin(source, mask).encoded

    def decode(target: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        return model.logits(model.decode(target, decoder.new_state(None, memory, mask)))

    mask = {"encoder_attention_mask": SOURCE} if "attention_mask" in inputs else {}
    memory: Axes = ("batch", length, model.config.dim)
    target: dict[str, Axes] = {"input_ids": ("batch", "target"), "encoder_hidden_states": memory}
    encoder = Graph(ENCODER, encode, inputs, ("last_hidden_state",))
    return [encoder, Graph(DECODER, decode, target | mask)]


def recurrent_graphs(model: Any, inputs: Mapping[str, Axes], length: int | str) -> list[Graph]:
    """The graphs of an encoder-decoder whose decoder is recurrent.

    The first encodes the inputs to `last_hidden_state` (batch, length, D) and the decoder's first `state`
    (layers, batch, D), an LSTM's with its cells. The second decodes one more token, given these, and the
    source's mask if there is a hidden state for each of its tokens.
    """
    rnn = model.decoder.rnn
    cells = 2 if isinstance(rnn, nn.LSTM) else 1

    def encode(source: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = model.begin(source, mask)
        return first.source, torch.cat(first.hidden or model.decoder.first_hidden(first.source))

    def decode(target: Tensor, memory: Tensor, hidden: Tensor, mask: Tensor | None = None) -> Any:
        now = replace(model.decoder.start(memory, hidden.chunk(cells), mask), source=memory)
        return model.logits(model.decode(target, now)), torch.cat(now.hidden)

    packs, mask = "attention_mask" in inputs, {"encoder_attention_mask": SOURCE} if length == "source" else {}
    memory: Axes = ("batch", length, rnn.hidden_size)
    target: dict[str, Axes] = {"input_ids": ("batch", 1), "encoder_hidden_states": memory}
    target |= {"state": (cells * rnn.num_layers, "batch", rnn.hidden_size)} | mask
    return [
        Graph(ENCODER, encode, inputs, ("last_hidden_state", "state"), packs),
        Graph(DECODER, decode, target, ("logits", "next_state")),
    ]


def language_graphs(model: Any) -> list[Graph]:
    """The graph of a recurrent language model: the logits of more tokens, given the `state` (layers, batch,
    D) after those before, an LSTM's with its cells; at the beginning it is 0. It also returns the next one.
    """
    rnn = model.rnn
    cells = 2 if isinstance(rnn, nn.LSTM) else 1

    def read(ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        now = model.new_state(len(ids))
        now.hidden = state.chunk(cells)
        return model.logits(model.decode(ids, now)), torch.cat(now.hidden)

    state: Axes = (cells * rnn.num_layers, "batch", rnn.hidden_size)
    return [
        Graph("model", read, {"input_ids": TEXT, "state": state}, ("logits", "next_state"), recurrent=True)
    ]


@dataclass(frozen=True)
class StackParts:
    """A stack of Transformer blocks, with the parts before and after it; a model lists its own in `stacks()`.

    An encoder alone encodes texts, a decoder alone writes them, and a decoder after an encoder translates.
    """

    role: Literal["encoder", "decoder"]
    embed: nn.Embedding
    positions: nn.Module
    blocks: nn.ModuleList
    norm: nn.Module  # after the last block, or nn.Identity
    embed_scale: float = 1.0  # embeddings are multiplied by this
    embed_norm: nn.Module | None = None  # after embeddings and positions
    segments: nn.Embedding | None = None  # added to the embeddings
    project: nn.Linear | None = None  # from embeddings of another width to that of the blocks
    encode: Callable[..., Tensor] | None = None  # of an encoder: ids (B, T) -> hidden states (B, T, D)
    pooler: nn.Linear | None = None  # one vector for a text, from its first token
    pooler_activation: str = "tanh"
    output: Tensor | None = None  # (vocab, D): from the last hidden states to logits
    output_bias: Tensor | None = None
    head: nn.Linear | None = None  # of a task, on top of the model


# Stacks of a model `m`; a class declares `stacks = export.decoder_stacks`.


def decoder_stacks(m: Any) -> list[StackParts]:
    return [StackParts("decoder", m.embed, m.positions, m.blocks, m.norm, output=m.output)]


def encoder_stacks(m: Any) -> list[StackParts]:
    more = {"embed_norm": m.embed_norm, "segments": m.segments, "encode": m.encode, "pooler": m.pooler}
    more |= {"pooler_activation": m.config.pooler, "project": m.project if m.config.embed_dim else None}
    return [StackParts("encoder", m.embed, m.positions, m.blocks, m.norm, **more)]


def transformer_stacks(m: Any) -> list[StackParts]:
    scale = math.sqrt(m.config.dim)
    encoder = m.embed, m.encoder_positions, m.encoder, m.encoder_norm, scale
    decoder = m.target_embed or m.embed, m.decoder_positions, m.decoder, m.decoder_norm, scale
    output = StackParts("decoder", *decoder, output=m.output, output_bias=m.output_bias)
    return [StackParts("encoder", *encoder), output]


def head_stacks(m: Any) -> list[StackParts]:
    """The stacks of the model below, if it has any, with the head."""
    return [replace(stack, head=m.head) for stack in stacks_of(m.model)]
