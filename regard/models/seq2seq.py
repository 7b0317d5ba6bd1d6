"""Recurrent sequence to sequence: Cho et al. 2014, Bahdanau et al. 2015 (attention), Luong et al. 2015.

Shapes: B batch, S source tokens, T target tokens, D width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.core.cache import Mask
from regard.core.recurrent import Decoder, Encoder, Hidden, RecurrentState, init_recurrent
from regard.describe import export, parts
from regard.models.base import EncoderDecoder
from regard.models.rnn import RecurrentConfig


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(RecurrentConfig):
    """Settings of all three kinds; each has its own cell."""

    cell: ClassVar[str]  # a key of CELLS in recurrent.py
    target_vocab: int | None = None  # default: the source's, and both share one embedding
    attention: Literal["none", "additive", "dot", "general"] = "additive"
    bidirectional: bool = True  # the encoder


class RNNConfig(Seq2SeqConfig):
    cell = "rnn"


class GRUConfig(Seq2SeqConfig):
    cell = "gru"


class LSTMConfig(Seq2SeqConfig):
    cell = "lstm"


class Seq2Seq(EncoderDecoder):
    """logits[:, t] scores the token that follows target[:, : t + 1], given the whole source."""

    output_bias = None

    def __init__(self, c: Seq2SeqConfig):
        super().__init__(c)
        self.encoder = Encoder(c.cell, c.dim, c.depth, bidirectional=c.bidirectional, dropout=c.dropout)
        self.decoder = Decoder(c.cell, c.attention, c.dim, c.depth, dropout=c.dropout)
        self.head = None if c.tied else nn.Linear(c.dim, c.target_vocab or c.vocab, bias=False)
        self.blocks: list[nn.Module] = [self.encoder, self.decoder]
        init_recurrent(self)

    def encode(self, source: Tensor, attention_mask: Mask = None) -> Tensor:
        """The encoder's states of sources (B, S), padded on the right where not `attention_mask`."""
        return self._encode(source, attention_mask)[0]

    def begin(self, source: Tensor, attention_mask: Mask = None) -> RecurrentState:
        return self.decoder.start(*self._encode(source, attention_mask), attention_mask)

    def _encode(self, source: Tensor, attention_mask: Mask) -> tuple[Tensor, Hidden]:
        self.check_length(source)
        x = self.drop(self.embed(source))  # (B, S, D)
        return self.encoder(x, attention_mask)

    def hidden(
        self, source: Tensor, target: Tensor, attention_mask: Mask = None, teacher_forcing: float = 1.0
    ) -> Tensor:
        """The final hidden states (B, T, D), before the output layer.

        In training, a token after the first is the target's with probability `teacher_forcing`, Williams &
        Zipser 1989, else the model's own prediction, Bengio et al. 2015 (scheduled sampling).
        """
        state = self.begin(source, attention_mask)
        if teacher_forcing >= 1 or not self.training:
            return self.decode(target, state)
        steps = [self.decode(target[:, :1], state)]
        for ids in target[:, 1:].split(1, dim=1):
            predicted = self.logits(steps[-1].detach()).argmax(-1)
            forced = torch.rand(predicted.shape, device=predicted.device) < teacher_forcing
            steps.append(self.decode(torch.where(forced, ids, predicted), state))
        return torch.cat(steps, dim=1)

    describe, graphs = parts.encoder_decoder, export.seq2seq_graphs
