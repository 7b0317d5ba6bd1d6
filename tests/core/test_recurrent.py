"""Encoder and decoder against the equations written out as loops, and against torch's own modules.

Sizes: 3 rows, 5 source and 7 target tokens, 22 wide (11 each way), 2 layers.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.core.attention import Additive
from regard.core.recurrent import CELLS, Decoder, Encoder, RecurrentState, init_recurrent, lengths
from regard.describe.cells import unroll
from regard.describe.watch import watch

B, S, T, D, L = 3, 5, 7, 22, 2
ATTENTIONS = ("none", "additive", "dot", "general")
MASK = torch.arange(S) < torch.tensor([[2], [S], [1]])
every_cell = pytest.mark.parametrize("cell", CELLS)
both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["forwards", "both_ways"])
every_attention = pytest.mark.parametrize("attention", ATTENTIONS)


def shaken(model: Any) -> Any:
    """In double precision, with weights and biases large enough that all of them matter."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.double().eval()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# The cells by their equations. W reads the input, U the state; gates in torch's order.


def rnn(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.tanh(W @ x + b + U @ h + d)


def gru(x: Tensor, h: Tensor, W: Tensor, U: Tensor, b: Tensor, d: Tensor) -> Tensor:
    (Wr, Wz, Wn), (Ur, Uz, Un) = W.chunk(3), U.chunk(3)
    (br, bz, bn), (dr, dz, dn) = b.chunk(3), d.chunk(3)
    r = torch.sigmoid(Wr @ x + br + Ur @ h + dr)
    z = torch.sigmoid(Wz @ x + bz + Uz @ h + dz)
    return z * h + (1 - z) * torch.tanh(Wn @ x + bn + r * (Un @ h + dn))


def lstm(
    x: Tensor, hc: tuple[Tensor, Tensor], W: Tensor, U: Tensor, b: Tensor, d: Tensor
) -> tuple[Tensor, Tensor]:
    h, c = hc
    i, f, g, o = (W @ x + b + U @ h + d).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


EQUATIONS: dict[str, Callable[..., object]] = {"rnn": rnn, "gru": gru, "lstm": lstm}


def by_hand(cell: str, m: nn.RNNBase, x: Tensor, start: list[tuple[Tensor, ...]]) -> tuple[Tensor, list]:
    """One row x (S, D) through every layer and direction, step by step."""
    ends = []
    for layer in range(m.num_layers):
        ways = []
        for way in range(1 + m.bidirectional):
            name = f"_l{layer}" + ("_reverse" if way else "")
            weights = [getattr(m, kind + name) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            state, out = start[len(ends)], []
            for t in reversed(range(len(x))) if way else range(len(x)):
                moved = EQUATIONS[cell](x[t], state if cell == "lstm" else state[0], *weights)
                state = moved if cell == "lstm" else (moved,)
                out.append(state[0])
            ends.append(state)
            ways.append(torch.stack(out[::-1] if way else out))
        x = torch.cat(ways, dim=-1)
    return x, ends


# The encoder


@every_cell
@both_ways
@torch.no_grad()
def test_encoder_is_its_equations_row_by_row(cell: str, bidirectional: bool) -> None:
    encoder, x = shaken(Encoder(cell, D, L, bidirectional=bidirectional)), normal(B, S, D)
    states, hidden = encoder(x, MASK)
    parts, width = (2 if cell == "lstm" else 1), D // (1 + bidirectional)
    assert len(hidden) == parts
    for row in range(B):
        zeros = [(torch.zeros(width).double(),) * parts] * (L * (1 + bidirectional))
        expected, ends = by_hand(cell, encoder.rnn, x[row, MASK[row]], zeros)
        assert_close(states[row, MASK[row]], expected)
        assert not states[row, ~MASK[row]].any()
        for part in range(parts):
            for layer in range(L):
                if bidirectional:
                    W = encoder.bridge[part * L + layer]
                    both = torch.cat([ends[2 * layer][part], ends[2 * layer + 1][part]])
                    end = torch.tanh(W.weight @ both + W.bias)
                else:
                    end = ends[layer][part]
                assert_close(hidden[part][layer, row], end)


@every_cell
@both_ways
@torch.no_grad()
def test_padding_has_no_influence(cell: str, bidirectional: bool) -> None:
    encoder, x = shaken(Encoder(cell, D, L, bidirectional=bidirectional)), normal(B, S, D)
    states, hidden = encoder(x, MASK)
    other_states, other_hidden = encoder(torch.where(MASK[..., None], x, 1e3), MASK)
    assert torch.equal(states, other_states)
    assert all(torch.equal(a, b) for a, b in zip(hidden, other_hidden, strict=True))
    for row in range(B):
        alone, ends = encoder(x[row : row + 1, MASK[row]])
        assert_close(states[row : row + 1, MASK[row]], alone)
        assert_close([h[:, row : row + 1] for h in hidden], list(ends))


@torch.no_grad()
def test_all_real_is_as_if_unsaid() -> None:
    encoder, x = shaken(Encoder("lstm", D, L)), normal(B, S, D)
    assert_close(encoder(x, torch.ones(B, S, dtype=torch.bool)), encoder(x))


def test_lengths_are_of_rows_padded_on_the_right() -> None:
    assert lengths(MASK).tolist() == [2, S, 1]
    for wrong in [[False, True]], [[True, False, True]], [[False, False]]:
        with pytest.raises(ValueError, match=r"padded on the right.*at least one"):
            lengths(torch.tensor(wrong))


def test_odd_width_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="dim=7 must be even"):
        Encoder("gru", 7, 1)
    Encoder("gru", 7, 1, bidirectional=False)


# The decoder


def decoder(cell: str, attention: str, depth: int = L) -> tuple[Decoder, RecurrentState, Tensor]:
    """A decoder, its state, and vectors to read."""
    module = shaken(Decoder(cell, attention, D, depth))
    hidden = tuple(normal(depth, B, D) for _ in range(2 if cell == "lstm" else 1))
    return module, module.start(normal(B, S, D), hidden, MASK), normal(B, T, D)


def context(m: Decoder, attention: str, s: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """c = Σ α_j h_j and α, computed in a loop over the source states."""
    score = m.look.score
    scores = []
    for h in source:
        if attention == "additive":
            scores.append(score.w.weight[0] @ torch.tanh(score.W.weight @ s + score.U.weight @ h))
        else:
            scores.append(s @ (h if attention == "dot" else score.W.weight @ h))
    e = torch.stack(scores).exp()
    alpha = e / e.sum()
    return sum(a * h for a, h in zip(alpha, source, strict=True)), alpha


@every_cell
@every_attention
@torch.no_grad()
def test_decoder_is_its_equations(cell: str, attention: str) -> None:
    """Cho's and Bahdanau's context goes into the cell, Luong's comes after it; each with its readout."""
    m, state, y = decoder(cell, attention)
    fixed, source, first = state.hidden[0][-1].clone(), state.source.clone(), state.hidden
    with watch(m) as records:
        x = m(y, state)
    W, b = m.readout.weight, m.readout.bias
    for row in range(B):
        hidden = [tuple(h[layer, row] for h in first) for layer in range(L)]
        for t in range(T):
            if attention == "none":
                c = fixed[row]
            elif attention == "additive":  # looked for by the state before the step
                c, alpha = context(m, attention, hidden[-1][0], source[row, MASK[row]])
            read = y[row, t] if attention in ("dot", "general") else torch.cat([y[row, t], c])
            out, hidden = by_hand(cell, m.rnn, read[None], hidden)
            s = out[0]
            if attention in ("dot", "general"):
                c, alpha = context(m, attention, s, source[row, MASK[row]])
                expected = torch.tanh(W @ torch.cat([c, s]))
            else:
                expected = (W @ torch.cat([s, y[row, t], c]) + b).view(D, 2).max(1).values
            assert_close(x[row, t], expected)
            if attention != "none":
                weights = torch.cat([r["weights"] for r in records["look"]], dim=2)  # of one head
                assert_close(weights[row, 0, t, MASK[row]], alpha)
        assert_close([h[:, row] for h in state.hidden], [torch.stack(p) for p in zip(*hidden, strict=True)])


@every_cell
@torch.no_grad()
def test_state_moves_as_torchs_own_cells(cell: str) -> None:
    """One layer, no context in the way: nn.RNNCell, nn.GRUCell, nn.LSTMCell."""
    m, state, y = decoder(cell, "dot", depth=1)
    theirs = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[cell](D, D).double()
    theirs.load_state_dict({name.removesuffix("_l0"): p for name, p in m.rnn.state_dict().items()})
    h = tuple(part[0] for part in state.hidden)
    for t in range(T):
        h = theirs(y[:, t], h if cell == "lstm" else h[0])
        h = h if cell == "lstm" else (h,)
        m(y[:, t : t + 1], state)
        assert state.length == t + 1
        assert_close([part[0] for part in state.hidden], list(h))


@every_cell
@every_attention
@torch.no_grad()
def test_stepwise_is_full(cell: str, attention: str) -> None:
    m, state, y = decoder(cell, attention)
    again = RecurrentState(state.hidden, state.source, state.keys, state.attention_mask)
    full = m(y, state)
    assert_close(torch.cat([m(piece, again) for piece in y.split([3, 1, 1, 2], dim=1)], dim=1), full)
    assert_close(again.hidden, state.hidden)
    assert again.length == state.length == T


@every_attention
@torch.no_grad()
def test_weights_are_of_real_tokens(attention: str) -> None:
    m, state, y = decoder("gru", attention)
    with watch(m) as records:
        m(y, state)
    if attention == "none":
        assert not records
        return
    records = records["look"]
    assert len(records) == (T if attention == "additive" else 1)
    weights = torch.cat([record["weights"] for record in records], dim=2)
    assert weights.shape == (B, 1, T, S)
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights.masked_select(~MASK[:, None, None]).any()
    for record in records:
        assert set(record) == {"q", "k", "v", "scores", "mask", "weights", "heads"}
        assert_close(record["heads"], record["weights"] @ record["v"])
        assert torch.equal(record["v"][:, 0], state.source)


def test_additive_keys_can_be_made_beforehand() -> None:
    score, q, k = Additive(5, 7, 11), torch.randn(B, T, 5), torch.randn(B, S, 7)
    assert torch.equal(score.compare(q, score.U(k)), score(q, k))


@every_attention
@torch.no_grad()
def test_reorder(attention: str) -> None:
    m, state, y = decoder("lstm", attention)
    m(y[:, :3], state)
    again = RecurrentState(state.hidden, state.source, state.keys, state.attention_mask, state.length)
    rows = torch.tensor([2, 0, 0, 1])
    again.reorder(rows)
    assert_close(m(y[rows, 3:], again), m(y[:, 3:], state)[rows])
    assert again.length == T


# Where training starts


@every_cell
def test_recurrent_weights_start_orthogonal(cell: str) -> None:
    encoder = Encoder(cell, D, L)
    init_recurrent(encoder)
    for name, p in encoder.rnn.named_parameters():
        gates = p.detach().split(D // 2)
        assert len(gates) == {"rnn": 1, "gru": 3, "lstm": 4}[cell]
        for i, gate in enumerate(gates):
            if name.startswith("weight_hh"):
                assert_close(gate @ gate.T, torch.eye(D // 2), atol=1e-5, rtol=0)
            elif name.startswith("weight_ih"):
                limit = (6 / (D + D // 2)) ** 0.5
                assert 0.8 * limit < gate.abs().max() <= limit
            else:
                forget = cell == "lstm" and i == 1 and name.startswith("bias_ih")
                assert (gate == (1.0 if forget else 0.0)).all()


def test_one_layer_with_dropout_brings_no_warning() -> None:
    for cell, depth in itertools.product(CELLS, (1, 2)):
        encoder, decoder = Encoder(cell, D, depth, dropout=0.5), Decoder(cell, "dot", D, depth, dropout=0.5)
        assert encoder.rnn.dropout == decoder.rnn.dropout == (0.5 if depth > 1 else 0.0)


# The readable twin of torch's modules

NAMES = {
    "rnn": {"state"},
    "gru": {"reset_gate", "update_gate", "from_input", "from_state", "candidate", "state"},
    "lstm": {"previous_cell", "input_gate", "forget_gate", "candidate", "output_gate", "cell", "state"},
}


@every_cell
@both_ways
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@torch.no_grad()
def test_unrolled_is_torchs(
    cell: str, bidirectional: bool, layers: int, padded: bool, with_state: bool
) -> None:
    rnn = CELLS[cell](7, 11, layers, batch_first=True, bidirectional=bidirectional)
    x, n = torch.randn(B, S, 7), layers * (1 + bidirectional)
    hidden = tuple(torch.randn(2 if cell == "lstm" else 1, n, B, 11)) if with_state else None
    first = None if hidden is None else hidden if cell == "lstm" else hidden[0]
    if padded:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths(MASK), True, enforce_sorted=False)
        packed, last = rnn(packed, first)
        y = nn.utils.rnn.pad_packed_sequence(packed, True, total_length=S)[0]
    else:
        y, last = rnn(x, first)
    output = unroll(rnn, x, hidden, MASK if padded else None)
    assert len(output) == n
    assert all(set(layer) == NAMES[cell] | {"previous"} for layer in output)
    assert all(t.shape == (B, S, 11) for layer in output for t in layer.values())
    assert_close(
        torch.cat([one["state"] for one in output[-(1 + bidirectional) :]], dim=-1), y, atol=1e-6, rtol=0
    )
    ends = (MASK.sum(1) if padded else torch.full((B,), S)) - 1
    for i, layer in enumerate(output):
        backward = i % (1 + bidirectional)
        at = torch.zeros_like(ends) if backward else ends
        for name, expected in zip(("state", "cell"), last if cell == "lstm" else (last,), strict=False):
            assert_close(layer[name][torch.arange(B), at], expected[i], atol=1e-6, rtol=0)
        before = torch.zeros(B, 11) if hidden is None else hidden[0][i]
        assert_close(layer["previous"][torch.arange(B), ends if backward else 0 * ends], before)
