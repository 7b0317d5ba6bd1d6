"""Recurrent layers, and an encoder and a decoder of them, with and without attention.

Shapes: B batch, S source tokens, T target tokens, D width, L layers, N = L, or 2 L for an LSTM.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.core.attention import Additive, Bilinear, Records, attend, dot
from regard.core.cache import Mask, over_keys
from regard.core.layers import init_xavier
from regard.describe import parts

CELLS: dict[str, Callable[..., nn.RNNBase]] = {
    "rnn": nn.RNN,  # tanh(W x + U h), Elman 1990
    "gru": nn.GRU,  # Cho et al. 2014, eq. 5-8, but r ⊙ (U h) for their U (r ⊙ h)
    "lstm": nn.LSTM,  # Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000
}
Hidden = tuple[Tensor, ...]  # h (L, B, D) of every layer; for an LSTM also its cells c (L, B, D)


def stack(cell: str, inputs: int, dim: int, depth: int, dropout: float, both: bool = False) -> nn.RNNBase:
    """Make layers of cells, with dropout between them; with `both` directions, each has half of the width."""
    if both and dim % 2:
        raise ValueError(f"{dim=} must be even: half of it reads forwards, half backwards")
    dropout, width = dropout if depth > 1 else 0.0, dim // (1 + both)  # torch warns if there is one layer
    return CELLS[cell](inputs, width, depth, batch_first=True, dropout=dropout, bidirectional=both)


@dataclass
class RecurrentState:
    """The hidden states of the cells, and the encoder's states that they attend to, which stay the same."""

    hidden: Hidden  # empty: 0
    source: Tensor  # a state for each source token; without attention, a single context vector, or none
    keys: Tensor | None = None  # computed at the decoder's first step
    attention_mask: Mask = None  # False where a source is padded
    length: int = 0

    def read(self, rnn: nn.RNNBase, x: Tensor, attention_mask: Mask = None) -> Tensor:
        """Return the states (B, T, D) of more tokens, padded on the right where not `attention_mask`.

        `hidden` are then the last states of each layer, (h, c) of an LSTM, else h alone.
        """
        first = self.hidden if len(self.hidden) > 1 else self.hidden[0] if self.hidden else None
        if attention_mask is None:
            states, last = rnn(x, first)
        else:
            packed = pack_padded_sequence(x, lengths(attention_mask), True, enforce_sorted=False)
            packed, last = rnn(packed, first)
            states = pad_packed_sequence(packed, True, total_length=x.shape[1])[0]  # (B, T, D)
        self.hidden = last if isinstance(last, tuple) else (last,)
        self.length += x.shape[1]
        return states

    def reorder(self, rows: Tensor) -> None:
        """Let row i continue from the former row rows[i]: to choose beams, or to drop finished rows."""
        self.hidden = tuple(h[:, rows] for h in self.hidden)
        self.source = self.source[rows]
        self.keys = None if self.keys is None else self.keys[rows]
        self.attention_mask = None if self.attention_mask is None else self.attention_mask[rows]


class Encoder(nn.Module):
    """A state for each token, [→h; ←h] if bidirectional (half of the width each), and the decoder's first.

    Forwards, the decoder continues from the last states, Sutskever et al. 2014. Bidirectional, every layer
    starts from tanh(W [→h_S; ←h_1]); in Bahdanau et al. 2015, A.2.2, from tanh(W ←h_1).
    """

    def __init__(self, cell: str, dim: int, depth: int, *, bidirectional: bool = True, dropout: float = 0.0):
        super().__init__()
        self.rnn = stack(cell, dim, dim, depth, dropout, bidirectional)
        N = depth * (2 if cell == "lstm" else 1)
        self.bridge = nn.ModuleList(nn.Linear(dim, dim) for _ in range(N)) if bidirectional else None

    def forward(self, x: Tensor, attention_mask: Mask = None) -> tuple[Tensor, Hidden]:
        state = RecurrentState((), x)
        states, hidden = state.read(self.rnn, x, attention_mask), state.hidden
        if self.bridge is not None:
            ends = torch.cat(hidden).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)  # (N, B, D)
            first = [torch.tanh(W(h)) for W, h in zip(self.bridge, ends, strict=True)]
            hidden = torch.stack(first).chunk(len(hidden))
        return states, hidden  # (B, S, D), and N of (B, D)

    describe = parts.encoder


def lengths(attention_mask: Tensor) -> Tensor:
    """The number of real tokens (B,) of each row, on the CPU, as packing needs it."""
    attention_mask = attention_mask.cpu()
    if not attention_mask[:, 0].all() or (attention_mask[:, 1:] & ~attention_mask[:, :-1]).any():
        raise ValueError("texts are padded on the right, and each has at least one real token")
    return attention_mask.sum(1)


SCORES: dict[str, Callable[[int], Additive | Bilinear | None]] = {
    "additive": lambda dim: Additive(dim, dim, dim),
    "dot": lambda dim: None,  # needs no weights
    "general": lambda dim: Bilinear(dim, dim),
}


class RecurrentAttention(nn.Module):
    """Attention of the decoder's states over the encoder's: c = Σ α h, α = softmax(score(s, h))."""

    def __init__(self, kind: str, dim: int):
        super().__init__()
        self.score = SCORES[kind](dim)
        self.records: Records = None

    def project_keys(self, source: Tensor) -> Tensor:
        """The source's part of the score, which is the same at every step: U h, W h or h itself."""
        if isinstance(self.score, Additive):
            return self.score.U(source)
        return source if self.score is None else self.score.W(source)

    def forward(self, q: Tensor, state: RecurrentState) -> Tensor:
        if state.keys is None:
            state.keys = self.project_keys(state.source)
        q, k, v = (x[:, None] for x in (q, state.keys, state.source))  # one head
        mask = over_keys(state.attention_mask)
        score = self.score.compare if isinstance(self.score, Additive) else dot
        heads, _ = attend(q, k, v, mask, score=score, records=self.records)
        return self.output(q[:, 0], heads[:, 0])  # (B, T, D)

    def output(self, q: Tensor, y: Tensor) -> Tensor:
        """The context, from the average y of the values."""
        return y

    describe = parts.recurrent_attention


class Decoder(nn.Module):
    """From the target's embeddings y and the context c to the hidden states before the output layer.

    none: c is the source's last state, the same at every step, Cho et al. 2014.
    additive: c_t is what s_{t-1} attends to, Bahdanau et al. 2015. In both, s_t = f(s_{t-1}, [y; c_t]), and
    the result is maxout(W [s_t; y; c_t]): the larger of every two numbers.
    dot, general: s_t = f(s_{t-1}, y), c_t is what s_t attends to, and the result is tanh(W [c_t; s_t]),
    Luong et al. 2015, eq. 5, without input feeding, so that all steps attend at once.
    """

    def __init__(self, cell: str, attention: str, dim: int, depth: int, *, dropout: float = 0.0):
        super().__init__()
        self.look = None if attention == "none" else RecurrentAttention(attention, dim)
        self.attends_after_cell = after = attention in ("dot", "general")
        self.rnn = stack(cell, dim if after else 2 * dim, dim, depth, dropout)
        self.readout = nn.Linear(2 * dim, dim, bias=False) if after else nn.Linear(3 * dim, 2 * dim)

    def start(self, source: Tensor, hidden: Hidden = (), attention_mask: Mask = None) -> RecurrentState:
        if self.look is None:
            return RecurrentState(hidden, hidden[0][-1][:, None])
        # The keys are computed in `forward`: with FSDP, weights are complete only there.
        return RecurrentState(hidden, source, attention_mask=attention_mask)

    def forward(self, y: Tensor, state: RecurrentState) -> Tensor:
        """Read embeddings y (B, T, D) of one token or many, and update the state."""
        if self.attends_after_cell and self.look is not None:
            s = state.read(self.rnn, y)  # (B, T, D)
            c = self.look(s, state)  # (B, T, D)
            return torch.tanh(self.readout(torch.cat([c, s], dim=-1)))  # (B, T, D)
        if self.look is None:
            c = state.source.expand_as(y)  # (B, T, D)
            s = state.read(self.rnn, torch.cat([y, c], dim=-1))  # (B, T, D)
        else:  # each step's context is an input of the cell: step by step
            states, contexts = [], []
            for y_t in y.split(1, dim=1):
                contexts.append(self.look(state.hidden[0][-1][:, None], state))
                states.append(state.read(self.rnn, torch.cat([y_t, contexts[-1]], dim=-1)))
            s, c = torch.cat(states, dim=1), torch.cat(contexts, dim=1)  # (B, T, D)
        pairs = self.readout(torch.cat([s, y, c], dim=-1)).unflatten(-1, (-1, 2))  # (B, T, D, 2)
        return pairs.amax(-1)  # (B, T, D)

    describe = parts.decoder


def init_recurrent(model: nn.Module) -> None:
    """Recurrent weights orthogonal, gate by gate, Bahdanau et al. 2015, B.1; the others by Glorot & Bengio
    2010; biases 0, but the LSTM's forget gate's 1, so that it remembers, Jozefowicz et al. 2015."""
    init_xavier(model)
    for m in model.modules():
        if isinstance(m, nn.RNNBase):
            for name, p in m.named_parameters():
                for i, gate in enumerate(p.split(m.hidden_size)):
                    if name.startswith("weight"):
                        (init.orthogonal_ if "_hh_" in name else init.xavier_uniform_)(gate)
                    else:
                        forget = isinstance(m, nn.LSTM) and i == 1 and "_ih_" in name
                        init.constant_(gate, float(forget))
