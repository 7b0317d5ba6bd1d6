"""Recurrent language models. Elman 1990; Mikolov et al. 2010; Zaremba et al. 2014.

Shapes: B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.core.cache import Mask
from regard.core.recurrent import RecurrentState, init_recurrent, stack
from regard.describe import export, parts
from regard.models.base import CausalLM, Presets, TextConfig


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(TextConfig):
    """Settings of all recurrent models."""

    depth: int = 1  # layers; in an encoder-decoder, of the encoder and of the decoder
    bidirectional: bool = False  # also reads texts backwards, with half of the width each
    tied: bool = True  # the output layer has the (target) embedding's weights

    PRESETS: ClassVar[Presets] = {
        "tiny": {"context": 128, "dim": 128, "depth": 1},
        "small": {"context": 256, "dim": 256, "depth": 2},
        "base": {"context": 512, "dim": 512, "depth": 2, "dropout": 0.2},
    }


@dataclass(frozen=True, kw_only=True)
class RecurrentLMConfig(RecurrentConfig):
    cell: Literal["rnn", "gru", "lstm"] = "lstm"


class RecurrentLM(CausalLM):
    """logits[:, t] scores the token that follows ids[:, : t + 1].

    A bidirectional one reads the tokens that it would have to predict: it encodes texts, and cannot write.
    """

    def __init__(self, c: RecurrentLMConfig):
        super().__init__(c)
        self.rnn = stack(c.cell, c.dim, c.dim, c.depth, c.dropout, c.bidirectional)
        self.head = None if c.tied else nn.Linear(c.dim, c.vocab, bias=False)
        self.blocks: list[nn.Module] = [self.rnn]  # torch has all layers in one
        init_recurrent(self)

    def new_state(self, rows: int) -> RecurrentState:
        """The state before the first token; there is no source to attend to."""
        return RecurrentState((), self.embed.weight.new_empty(rows, 0, self.config.dim))

    def hidden(self, ids: Tensor, state: RecurrentState | None = None, attention_mask: Mask = None) -> Tensor:
        """The final hidden states, before the output layer; given a state, the tokens continue it."""
        self.check_length(ids, state)
        x = self.drop(self.embed(ids))  # (B, T, D)
        return self.drop((state or self.new_state(len(ids))).read(self.rnn, x, attention_mask))  # (B, T, D)

    decode = hidden

    def start(self, prompt: Tensor, attention_mask: Mask = None) -> tuple[Tensor, RecurrentState]:
        """Read prompts (B, T), padded on the left where the mask is False; the last logits (B, vocab)."""
        state = self.new_state(len(prompt))
        if attention_mask is None:
            return super().step(prompt, state)
        first = torch.arange(prompt.shape[1], device=prompt.device) - attention_mask.sum(1, keepdim=True)
        right, mask = prompt.gather(1, first % prompt.shape[1]), attention_mask.flip(1)  # padded on the right
        return self.logits(self.pooled(self.decode(right, state, mask), mask)), state

    def encode(self, ids: Tensor, attention_mask: Mask = None) -> Tensor:
        """The hidden states of texts (B, T), padded on the right where not `attention_mask`."""
        return self.hidden(ids, None, attention_mask)

    def pooled(self, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """The last state (B, D), or the last of each direction: [→h_T; ←h_1]."""
        forwards = torch.arange(self.config.dim, device=x.device) < self.rnn.hidden_size
        return torch.where(forwards, super().pooled(x, attention_mask), x[:, 0])

    describe, describe_pooled, graphs = parts.recurrent_lm, parts.pooled_ends, export.language_graphs
