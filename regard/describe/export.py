"""What models declare about themselves, for the code that exports them and knows no model class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Axes = tuple[int | str, ...]  # fixed sizes, and names of those that may vary
TEXT: Axes = ("batch", "length")
SOURCE: Axes = ("batch", "source")
PAIR: Mapping[str, Axes] = {"source": SOURCE, "mask": SOURCE}  # what an encoder of texts reads


@dataclass(frozen=True)
class Graph:
    """A function of tensors that becomes one ONNX graph; a model lists its own in `graphs()`."""

    name: str  # of the file, without .onnx
    f: Callable[..., Any]
    inputs: Mapping[str, Axes]  # in the order of the arguments
    outputs: tuple[str, ...] = ("logits",)
    recurrent: bool = False  # has a recurrent layer over texts of any length, which torch cannot export


def attention_graphs(model: Any, decoder: Any, inputs: Mapping[str, Axes], length: int | str) -> list[Graph]:
    """The graphs of an encoder-decoder whose decoder is a Stack.

    The first encodes the inputs to `memory` (batch, length, D). The second decodes the whole target so far,
    given the memory and, if the inputs have one, the source's mask.
    """

    def encode(source: Tensor, mask: Tensor | None = None) -> Tensor:
        return model.begin(source, mask).encoded

    def decode(target: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        return model.logits(model.decode(target, decoder.new_state(None, memory, mask)))

    mask = {"mask": SOURCE} if "mask" in inputs else {}
    target: dict[str, Axes] = {"target": ("batch", "target"), "memory": ("batch", length, model.config.dim)}
    return [Graph("encoder", encode, inputs, ("memory",)), Graph("decoder", decode, target | mask)]


def recurrent_graphs(model: Any, state: Any, inputs: Mapping[str, Axes], length: int | str) -> list[Graph]:
    """The graphs of an encoder-decoder whose decoder is recurrent, with states of the class `state`.

    The first encodes the inputs to `memory` (batch, length, D) and the decoder's first `state` (layers,
    batch, D), an LSTM's with its cells. The second decodes one more token, given these, and the source's mask
    if the memory is as long as the source.
    """
    rnn = model.decoder.rnn
    cells = 2 if isinstance(rnn, nn.LSTM) else 1

    def encode(source: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = model.begin(source, mask)
        return first.source, torch.cat(first.hidden or model.decoder.first_hidden(first.source))

    def decode(target: Tensor, memory: Tensor, hidden: Tensor, mask: Tensor | None = None) -> Any:
        now = state(hidden.chunk(cells), memory, attention_mask=mask)
        return model.logits(model.decode(target, now)), torch.cat(now.hidden)

    packs, mask = "mask" in inputs, {"mask": SOURCE} if length == "source" else {}
    target: dict[str, Axes] = {"target": ("batch", 1), "memory": ("batch", length, rnn.hidden_size)}
    target |= {"state": (cells * rnn.num_layers, "batch", rnn.hidden_size)} | mask
    return [
        Graph("encoder", encode, inputs, ("memory", "state"), packs),
        Graph("decoder", decode, target, ("logits", "next_state")),
    ]


def language_graph(model: Any) -> Graph:
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
    return Graph("model", read, {"ids": TEXT, "state": state}, ("logits", "next_state"), recurrent=True)


@dataclass(frozen=True)
class StackParts:
    """A stack of Transformer blocks, and what comes before and after; a model lists its own in `stacks()`.

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
