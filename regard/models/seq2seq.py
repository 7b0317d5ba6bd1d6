"""Recurrent sequence to sequence: Cho et al. 2014, Bahdanau et al. 2015 (attention), Luong et al. 2015.

Shapes: B batch, S source tokens, T target tokens, D width.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers import init_xavier
from ..recurrent import Decoder, Encoder, Hidden, RecurrentState, init_recurrent
from .sizes import check_sizes


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """What the three kinds share; each names its cell."""

    cell: ClassVar[str]  # a key of CELLS in recurrent.py
    vocab: int  # of the source
    target_vocab: int | None = None  # the source's, and both share one embedding
    context: int = 128  # the longest source, and the longest target
    attention: Literal["none", "additive", "dot", "general"] = "additive"
    dim: int = 128
    depth: int = 1  # of the encoder, and of the decoder
    bidirectional: bool = True  # the encoder
    tied: bool = True  # the output layer is the target's embedding, transposed
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "target_vocab", "context", "dim", "depth")
        if self.bidirectional and self.dim % 2:
            raise ValueError(f"dim={self.dim} must be even: half of it reads forwards, half backwards")


@dataclass(frozen=True, kw_only=True)
class RNNConfig(Seq2SeqConfig):
    cell = "rnn"


@dataclass(frozen=True, kw_only=True)
class GRUConfig(Seq2SeqConfig):
    cell = "gru"


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(Seq2SeqConfig):
    cell = "lstm"


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"context": 128, "dim": 128, "depth": 1},
    "small": {"context": 256, "dim": 256, "depth": 2},
    "base": {"context": 512, "dim": 512, "depth": 2, "dropout": 0.2},
}


class Seq2Seq(nn.Module):
    """logits[:, t] scores the token that follows target[:, : t + 1], given the whole source."""

    def __init__(self, c: Seq2SeqConfig):
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.target_embed = None if c.target_vocab is None else nn.Embedding(c.target_vocab, c.dim)
        self.drop = nn.Dropout(c.dropout)
        self.encoder = Encoder(c.cell, c.dim, c.depth, bidirectional=c.bidirectional, dropout=c.dropout)
        self.decoder = Decoder(c.cell, c.attention, c.dim, c.depth, dropout=c.dropout)
        self.head = None if c.tied else nn.Linear(c.dim, c.target_vocab or c.vocab, bias=False)
        init_xavier(self)
        init_recurrent(self)

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts, in the order of computing."""
        return [self.encoder, self.decoder]

    @property
    def output(self) -> Tensor:
        """The weights (vocab, D) that turn a hidden vector into logits."""
        return (self.target_embed or self.embed).weight if self.head is None else self.head.weight

    def encode(self, source: Tensor, real: Tensor | None = None) -> Tensor:
        """Read sources (B, S), padded on the right where not `real`: the encoder's states."""
        return self._encode(source, real)[0]

    def read(self, source: Tensor, real: Tensor | None = None) -> RecurrentState:
        """The state from which the decoder sets out."""
        return self.decoder.start(*self._encode(source, real), real)

    def decode(self, target: Tensor, state: RecurrentState) -> Tensor:
        """The decoder's vectors after reading more of the target; the state moves on."""
        self._fits(state.length + target.shape[1])
        y = self.drop((self.target_embed or self.embed)(target))  # (B, T, D)
        x = self.drop(self.decoder(y, state))  # (B, T, D)
        return x

    def hidden(
        self, source: Tensor, target: Tensor, real: Tensor | None = None, forcing: float = 1.0
    ) -> Tensor:
        """The last vectors, from which the logits are one product away.

        In training, a word after the first is the target's with probability `forcing` (teacher forcing,
        Williams & Zipser 1989), else the likeliest by the model itself, Bengio et al. 2015.
        """
        state = self.read(source, real)
        if forcing >= 1 or not self.training:
            return self.decode(target, state)
        steps: list[Tensor] = []
        for ids in target.split(1, dim=1):
            if steps:
                own = F.linear(steps[-1].detach(), self.output).argmax(-1)
                taught = torch.rand(own.shape, device=own.device) < forcing
                ids = torch.where(taught, ids, own)
            steps.append(self.decode(ids, state))
        return torch.cat(steps, dim=1)

    def forward(
        self, source: Tensor, target: Tensor, real: Tensor | None = None, forcing: float = 1.0
    ) -> Tensor:
        """(B, S), (B, T) -> (B, T, vocab)"""
        return F.linear(self.hidden(source, target, real, forcing), self.output)

    def start(
        self, source: Tensor, prompt: Tensor, real: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Read sources (B, S) once and how targets begin (B, T); the next token's logits (B, vocab)."""
        state = self.read(source, real)
        return F.linear(self.decode(prompt, state)[:, -1], self.output), state

    def step(self, ids: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Read one more token (B, 1) of each row; the next one's logits (B, vocab)."""
        return F.linear(self.decode(ids, state)[:, -1], self.output), state

    def _encode(self, source: Tensor, real: Tensor | None) -> tuple[Tensor, Hidden]:
        self._fits(source.shape[1])
        x = self.drop(self.embed(source))  # (B, S, D)
        return self.encoder(x, real)

    def _fits(self, length: int) -> None:
        if length > self.config.context:
            raise ValueError(f"{length} tokens do not fit context={self.config.context}")
