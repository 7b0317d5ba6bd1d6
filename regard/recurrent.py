"""Recurrent encoder and decoder, with and without attention: what came before the Transformer.

Shapes: B batch, S source tokens, T target tokens, D width, L layers, N = L or 2 L (an LSTM's).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .attention import Additive, Bilinear, dot, pool

CELLS: dict[str, Callable[..., nn.RNNBase]] = {
    "rnn": nn.RNN,  # tanh(W x + U h), Elman 1990
    "gru": nn.GRU,  # Cho et al. 2014, eq. 5-8, but r ⊙ (U h) for their U (r ⊙ h)
    "lstm": nn.LSTM,  # Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000
}
Hidden = tuple[Tensor, ...]  # h (L, B, D) of every layer; an LSTM's cells c (L, B, D) beside it


def stack(
    cell: str, inputs: int, dim: int, depth: int, dropout: float, bidirectional: bool = False
) -> nn.RNNBase:
    """Layers of cells, with dropout between them: torch warns of one that has nothing to stand between."""
    dropout = dropout if depth > 1 else 0.0
    return CELLS[cell](inputs, dim, depth, batch_first=True, dropout=dropout, bidirectional=bidirectional)


@dataclass
class RecurrentState:
    """Where the decoder stands, and what it looks at: the source's states, the same at every step."""

    hidden: Hidden
    source: Tensor  # of every source token; or the one context vector of a decoder without attention
    keys: Tensor | None = None  # what queries are compared with, from the decoder's first step on
    real: Tensor | None = None  # False where a source is padded
    length: int = 0

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row rows[i] was: beams are chosen, or finished rows dropped."""
        self.hidden = tuple(h[:, rows] for h in self.hidden)
        self.source = self.source[rows]
        self.keys = None if self.keys is None else self.keys[rows]
        self.real = None if self.real is None else self.real[rows]


class Encoder(nn.Module):
    """A state for every token, [→h; ←h] if bidirectional (half of the width each), and the decoder's first.

    Forwards, the decoder goes on from the last states, Sutskever et al. 2014. Both ways, every layer starts
    from tanh(W [→h_S; ←h_1]); in Bahdanau et al. 2015, A.2.2, from tanh(W ←h_1).
    """

    def __init__(self, cell: str, dim: int, depth: int, *, bidirectional: bool = True, dropout: float = 0.0):
        super().__init__()
        if bidirectional and dim % 2:
            raise ValueError(f"{dim=} must be even: half of it reads forwards, half backwards")
        self.rnn = stack(cell, dim, dim // (1 + bidirectional), depth, dropout, bidirectional)
        N = depth * (2 if cell == "lstm" else 1)
        self.bridge = nn.ModuleList(nn.Linear(dim, dim) for _ in range(N)) if bidirectional else None

    def forward(self, x: Tensor, real: Tensor | None = None) -> tuple[Tensor, Hidden]:
        S = x.shape[1]
        if real is None:
            states, last = self.rnn(x)
        else:
            packed, last = self.rnn(pack_padded_sequence(x, lengths(real), True, enforce_sorted=False))
            states = pad_packed_sequence(packed, True, total_length=S)[0]  # (B, S, D)
        hidden = last if isinstance(last, tuple) else (last,)
        if self.bridge is not None:
            ends = torch.cat(hidden).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)  # (N, B, D)
            joined = [torch.tanh(W(h)) for W, h in zip(self.bridge, ends, strict=True)]
            hidden = torch.stack(joined).chunk(len(hidden))
        return states, hidden  # (B, S, D), and N of (B, D)


def lengths(real: Tensor) -> Tensor:
    """How many tokens (B,) of each row are real; on the CPU, where packing wants them."""
    real = real.cpu()
    if not real[:, 0].all() or (real[:, 1:] & ~real[:, :-1]).any():
        raise ValueError("sources are padded on the right, and each has at least one real token")
    return real.sum(1)


SCORES: dict[str, Callable[[int], Additive | Bilinear | None]] = {
    "additive": lambda dim: Additive(dim, dim, dim),
    "dot": lambda dim: None,  # needs no weights
    "general": lambda dim: Bilinear(dim, dim),
}


class Look(nn.Module):
    """Attention of the decoder's states over the encoder's: c = Σ α h, α = softmax(score(s, h))."""

    def __init__(self, kind: str, dim: int):
        super().__init__()
        self.score = SCORES[kind](dim)
        self.seen: list[dict[str, Tensor]] | None = None  # watch.py puts a list here

    def keys(self, source: Tensor) -> Tensor:
        """The source's side of the score, which no step changes: U h, W h or h itself."""
        if isinstance(self.score, Additive):
            return self.score.U(source)
        return source if self.score is None else self.score.W(source)

    def forward(self, q: Tensor, state: RecurrentState) -> Tensor:
        if state.keys is None:
            state.keys = self.keys(state.source)
        q, k, v = (x[:, None] for x in (q, state.keys, state.source))  # one head
        mask = None if state.real is None else state.real[:, None, None, :]
        score = self.score.compare if isinstance(self.score, Additive) else dot
        heads, _ = pool(q, k, v, mask, score=score, seen=self.seen)
        return heads[:, 0]  # (B, T, D)


class Decoder(nn.Module):
    """From the target's words y and the context c to vectors that are one product away from the next words.

    none: c is the source's last state, the same at every step, Cho et al. 2014.
    additive: c_t is what s_{t-1} looks at, Bahdanau et al. 2015. In both, s_t = f(s_{t-1}, [y; c_t]), and
    maxout(W [s_t; y; c_t]) comes out: of every two numbers the larger.
    dot, general: s_t = f(s_{t-1}, y), c_t is what s_t looks at, and tanh(W [c_t; s_t]) comes out,
    Luong et al. 2015, eq. 5, without input feeding: attention to all steps at once.
    """

    def __init__(self, cell: str, attention: str, dim: int, depth: int, *, dropout: float = 0.0):
        super().__init__()
        self.look = None if attention == "none" else Look(attention, dim)
        self.late = attention in ("dot", "general")  # look after the cell has moved
        self.rnn = stack(cell, dim if self.late else 2 * dim, dim, depth, dropout)
        self.readout = nn.Linear(2 * dim, dim, bias=False) if self.late else nn.Linear(3 * dim, 2 * dim)

    def start(self, source: Tensor, hidden: Hidden, real: Tensor | None = None) -> RecurrentState:
        if self.look is None:
            context = hidden[0][-1][:, None]  # (B, 1, D)
            return RecurrentState(hidden, context)
        # The keys are made in `forward`: where weights are shared out (FSDP), they are whole only there.
        return RecurrentState(hidden, source, real=real)

    def forward(self, y: Tensor, state: RecurrentState) -> Tensor:
        """Read words y (B, T, D), many or one, and move the state on."""
        if self.late and self.look is not None:
            s = self._move(y, state)  # (B, T, D)
            c = self.look(s, state)  # (B, T, D)
            return torch.tanh(self.readout(torch.cat([c, s], dim=-1)))  # (B, T, D)
        if self.look is None:
            c = state.source.expand_as(y)  # (B, T, D)
            s = self._move(torch.cat([y, c], dim=-1), state)  # (B, T, D)
        else:  # each step's context enters the cell: step by step
            moves, looks = [], []
            for now in y.split(1, dim=1):
                looks.append(self.look(state.hidden[0][-1][:, None], state))
                moves.append(self._move(torch.cat([now, looks[-1]], dim=-1), state))
            s, c = torch.cat(moves, dim=1), torch.cat(looks, dim=1)  # (B, T, D)
        pairs = self.readout(torch.cat([s, y, c], dim=-1)).unflatten(-1, (-1, 2))  # (B, T, D, 2)
        return pairs.amax(-1)  # (B, T, D)

    def _move(self, x: Tensor, state: RecurrentState) -> Tensor:
        s, last = self.rnn(x, state.hidden if len(state.hidden) > 1 else state.hidden[0])
        state.hidden = last if isinstance(last, tuple) else (last,)
        state.length += x.shape[1]
        return s


def init_recurrent(model: nn.Module) -> None:
    """Recurrent weights orthogonal, gate by gate, as in Bahdanau et al. 2015, B.1; the others by Glorot &
    Bengio 2010; biases 0, but the LSTM's forget gate's 1, so that it remembers, Jozefowicz et al. 2015."""
    for m in model.modules():
        if isinstance(m, nn.RNNBase):
            for name, p in m.named_parameters():
                for i, gate in enumerate(p.split(m.hidden_size)):
                    if name.startswith("weight"):
                        (init.orthogonal_ if "_hh_" in name else init.xavier_uniform_)(gate)
                    else:
                        forget = isinstance(m, nn.LSTM) and i == 1 and "_ih_" in name
                        init.constant_(gate, float(forget))
