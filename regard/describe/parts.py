"""Descriptions of the parts of a model; a class declares `describe = parts.feed_forward`.

Each function mirrors the `forward` of its module `m`, with names of values for tensors (see values.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.describe.cells import (
    carried_states,
    describe_cells,
    describe_first_states,
    describe_last_states,
    unpacked,
)
from regard.describe.texts import Op, Text, activation, add_bias, scaled_term, sign
from regard.describe.values import EMBEDDING, LINEAR, Description, Term, Value

Described = tuple[str, tuple[Value, Value] | None, Value | None]  # the sum's name; cos and sin; the bias


# Transformers


def positions(m: Any, d: Description, x: str, times: float = 1.0, more: Sequence[str] = ()) -> Described:
    """The sum of embeddings and positions, and the values that attention needs, by the module's `effect`."""
    terms: list[Term] = [(x, times), *more]
    letters, names = (
        [scaled_term(times, "x"), *("s" for _ in more)],
        ["Embedding", *("segments" for _ in more)],
    )
    if m.vectors() is not None:
        terms.append(position_vectors(m, d))
        letters, names = [*letters, "p"], [*names, "positions"]
        if d.boxes.get(x) == EMBEDDING:
            d.boxes[x] = f"{EMBEDDING} + positions"
    d.inner.update(m.children())
    text = Text(" + ".join(names), "What a token is and where it stands, in one vector.", " + ".join(letters))
    if len(terms) == 1:
        about = (
            "This model has no positions." if m.effect == "none" else "Positions come later, in attention."
        )
        text = Text("Embedding without positions", about, letters[0])
    rotary = (rotation(m, d, "cos"), rotation(m, d, "sin")) if m.effect == "rotate" else None
    bias = position_bias(m, d) if m.effect == "bias" else None
    return d.add("sum", text, *terms, module=m, at="add"), rotary, bias


def position_vectors(m: Any, d: Description) -> str:
    """A vector for each position: learned, or waves."""
    table = m.vectors()
    about = "A vector for each position, because attention by itself ignores the order."
    op: Op = {"does": "look up", "W": d.weight("positions.table", table), "by": "position", "side": d.side}
    text = Text("Positions", about, "p = P[position]")
    if not isinstance(m.table, nn.Embedding):
        D = table.shape[1]
        frequency = 10_000 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        W = d.weight("positions.frequency", frequency)
        op = {"does": "wave", "W": W, "side": d.side, "f": ["sin", "cos"]}
        angle = "(t / 10000^{2i/D})"
        text = Text("Positions", about, f"p_{{2i}} = sin{angle}, p_{{2i+1}} = cos{angle}")
    return d.see("positions", op, text, m, "add", lambda a, _, y: table[a[1]].expand_as(y))


def rotation(m: Any, d: Description, f: str) -> Value:
    """The cosine or sine of the angles of rotary positions."""
    W = d.weight("positions.frequency", m.frequency)
    low, high = float(m.frequency.min()), float(m.frequency.max())
    about = (
        f"Queries and keys are rotated by position t times θ, which goes from {high:.3g} down to {low:.3g}."
    )
    title = f"Rotary angles, {'cosine' if f == 'cos' else 'sine'}"
    op = {"does": "wave", "W": W, "side": d.side, "f": [f]}
    return Value(d.name(f), op, Text(title, about, f"{f}(t θ_i)"))


def position_bias(m: Any, d: Description) -> Value:
    """The bias of a score by the distance of two tokens: a slope, or learned for buckets of distances."""
    about = "What the distance between two tokens adds to their score"
    if hasattr(m, "slopes"):
        op: Op = {"does": "distance", "W": d.weight("positions.slopes", m.slopes)}
        text = Text(
            "Position bias", f"{about}: less the farther, steeper in some heads.", "B_{ij} = −m_h |i − j|"
        )
    else:
        by_distance = m.table.weight[m.bucket(torch.arange(-m.far, m.far + 1, device=m.table.weight.device))]
        op = {"does": "distance", "W": d.weight("positions.table", by_distance), "far": m.far}
        about += ", learned for each head; far distances share numbers."
        text = Text("Position bias", about, "B_{ij} = b[bucket(j − i)]")
    return Value(d.name("bias"), op, text)


def attention(
    m: Any,
    d: Description,
    x: str,
    source: str | None = None,
    rotary: tuple[Value, Value] | None = None,
    bias: Value | None = None,
) -> str:
    """Multi-head attention: queries, keys and values of the heads, `attend`, and the output layer."""
    share, read, at = m.heads // m.kv_heads, source or x, (m.out, "input")
    letter = "X" if source is None else "Y"
    q, k = d.heads("q", m, x, rotary=rotary), d.heads("k", m, read, share, rotary, letter)
    v, scale = d.heads("v", m, read, share, reads=letter), (m.q.out_features // m.heads) ** -0.5
    names = ("q_global", "k_global", "v_global") if m.global_qkv else ()
    own = [d.heads(name, m, x) for name in names]
    y = d.attend(m, q, k, v, at, scale=scale, bias=bias, of_globals=own)
    heads = "[head_1; …; head_H]" if m.heads > 1 else "head_1"
    text = Text("Heads joined", "The outputs of the heads side by side.", heads)
    y = d.see("joined", {"does": "join", "x": y}, text, *at)
    text = Text("Output", "The heads mixed into one vector.", f"{heads} W_O")
    return d.linear("out", m.out, y, text, b="b_O")


def feed_forward(m: Any, d: Description, x: str) -> str:
    """W₂ f(W₁ x), or with a gate W₂(f(W₁ x) ⊙ W₃ x)."""
    gated, f = hasattr(m, "gate"), sign(m.f)
    wide = "Each token by itself, projected into a wider space."
    gate, up = add_bias("W_1 x", m.gate if gated else m.up, "b_1"), add_bias("W_3 x", m.up, "b_3")
    hidden, about = f"{f}({gate})", "Numbers below zero become zero, or almost zero."
    if gated:
        hidden += f" ⊙ {up if m.up.bias is None else f'({up})'}"
        about = "The activated gate, times what is projected up."
    y = (
        d.linear("gate", m.gate, x, Text("Gate", "How much of each hidden number passes.", "W_1 x"), b="b_1")
        if gated
        else None
    )
    n = "3" if gated else "1"
    z = d.linear("up", m.up, x, Text("Feed-forward, up", wide, f"W_{n} x"), b=f"b_{n}")
    text = Text("Activation", about, hidden)
    h = d.activate("hidden", m.f, y or z, y and z, m.down, "input", text)
    down = f"W_2 ({hidden})" if gated else f"W_2 {hidden}"
    text = Text("Feed-forward, down", "Projected back to the width of the model.", down)
    return d.linear("down", m.down, h, text, b="b_2")


def residual(m: Any, d: Description, x: str, *args: Any, **kwargs: Any) -> str:
    y = m.f.describe(d, d.norm("norm", m.norm, x) if m.pre else x, *args, **kwargs)
    about = "Added to its input, so that this part only learns what to change."
    text = Text("Residual", about, "x + f(norm(x))" if m.pre else "x + f(x)")
    if m.pre:
        return d.add("residual", text, x, y, module=m)
    return d.norm("norm", m.norm, d.add("residual", text, x, y, module=m.norm, at="input"))


OUTPUT = Text("Output", "The output of this part.", "y = x")


def block(m: Any, d: Description, x: str, source: str | None = None, **self_attn: Any) -> str:
    x = m.attn.describe(d.at("attn"), x, **self_attn)
    if m.cross is not None:
        x = m.cross.describe(d.at("cross"), x, source)
    return d.same("output", m.ffn.describe(d.at("ffn"), x), OUTPUT, m)


def stack(
    m: Any, d: Description, x: str, source: str | None = None, name: str = "blocks", **more: Any
) -> str:
    text = Text("Input of the first block", "What the first block reads.", "y = x")
    x = d.same("input", x, text, m[0], "input")
    for i, one in enumerate(m):
        x = one.describe(d.at(name, i), x, source, **more)
    return x


# Recurrent networks

CELLS, STATES = "Recurrent cells", "The state of the recurrent cells after each token."


def encoder(m: Any, d: Description, x: str) -> tuple[str, str]:
    """The names of the states of all tokens, and of the decoder's first."""
    return recurrent_states(m, d, describe_cells(d, m.rnn, x)), describe_last_states(m, d)


def recurrent_states(m: Any, d: Description, x: str) -> str:
    """The states of the last layer, of both directions if it has them."""
    cell = m.rnn.mode.partition("_")[0]
    formula = "[→h_t; ←h_t]" if m.rnn.bidirectional else f"h_t = {cell}(x_t, h_{{t−1}})"
    pick = lambda _, __, y: unpacked(y[0])  # noqa: E731
    return d.same("states", x, Text("States", STATES, formula), m.rnn, pick=pick, box=CELLS)


def recurrent_lm(m: Any, d: Description, head: bool = True) -> str:
    """An embedding, the cells of all layers, and the output layer."""
    x = d.lookup("embed", m.embed, "text")
    text = Text("Carried states", "The states after the text so far, a row for each layer.", "h_0")
    first = d.see("carried", None, text, m.rnn, "input", lambda args, *_: carried_states(*args))
    x = recurrent_states(m, d, describe_cells(d, m.rnn, x, first, carried=True))
    return d.logits(x, m.output, m.output_bias) if head else x


def recurrent_attention(m: Any, d: Description, q: str, source: str) -> str:
    """Attention with one head, whose score is additive if it has a U; its context may be gated."""
    at, query, score = (m, "output"), d.name("q"), None
    additive = hasattr(m.score, "U")
    key: Op = {"does": "same", "x": source}
    letter, formula = "s_{t−1}" if q.endswith(".previous") else "s_t", "k = h"
    if m.score is not None:
        U = m.score.U if additive else m.score.W
        key = {"does": "linear", "x": source, "W": d.weight("score.U", U.weight), "share": 1}
        formula = "k = U h" if additive else "k = W h"
    about = "What the decoder looks for: its state."
    d.record("q", {"does": "same", "x": q}, Text("Queries Q", about, f"q = {letter}"), m, "q", at)
    d.record("k", key, Text("Keys K", "What each state of the source is found by.", formula), m, "k", at)
    about = "What each state of the source passes on when it is attended to."
    v = d.record("v", {"does": "same", "x": source}, Text("Values V", about, "v = h"), m, "v", at)
    if additive:
        op = {"does": "linear", "x": query, "W": d.weight("score.W", m.score.W.weight)}
        text = Text("Queries, projected", "What the decoder looks for, as it is compared.", f"W {letter}")
        Wq = d.see("Wq", op, text, m.score.W, pick=lambda _, __, y: y[:, 0])
        op = {"does": "additive", "q": Wq, "k": d.name("k"), "w": d.weight("score.w", m.score.w.weight)}
        score = op, f"wᵀ tanh(W {letter} + U h)"
    y = d.attend(m, query, d.name("k"), v, at, score=score)
    if hasattr(m, "gate"):
        text = Text("Gate", "How much the image matters for this word.", f"W {letter}")
        op = {"does": "gate", "x": y, "by": d.linear("gate", m.gate, query, text)}
        formula = f"σ({add_bias(f'W {letter}', m.gate)}) c"
        return d.see(
            "output", op, Text("Context", "What was attended to, as far as the gate is open.", formula), m
        )
    return d.same("output", y, Text("Context", "What was attended to.", "c = A V"), m)


def decoder(m: Any, d: Description, y: str, source: str | tuple[str, str]) -> str:
    source, hidden = source if isinstance(source, tuple) else (source, describe_first_states(m, d, source))
    after, x, depth = m.attends_after_cell, y, m.rnn.num_layers
    q = d.name("states") if after else d.at("cells", depth - 1).name("previous")
    if m.look is None:
        text = Text("Context", "The first state of the last layer, the same at every step.", "c = s_0")
        op = {"does": "same", "x": hidden, "row": depth - 1}
        c = d.see("context", op, text, m, pick=lambda a, _, y: a[1].source.expand(-1, y.shape[1], -1))
    else:
        c = m.look.describe(d.at("look"), q, source)
    if not after:
        text = Text("Input of the cell", "The token's embedding and the context, side by side.", "[y; c]")
        x = d.see("cell_input", {"does": "concat", "x": [y, c]}, text, m.rnn, "input", lambda a, *_: a[0])
    cell = m.rnn.mode.partition("_")[0]
    text = Text("States", STATES, f"s_t = {cell}({'y_t' if after else '[y_t; c_t]'}, s_{{t−1}})")
    x, pick = describe_cells(d, m.rnn, x, hidden), lambda _, __, y: y[0]
    s = d.same("states", x, text, m.rnn, pick=pick, box=CELLS)
    if after:
        text = Text("Readout", "Context and state, mixed.", "W [c; s]")
        readout = d.linear("readout", m.readout, [c, s], text, box="Readout")
        text = Text("Output", "What the output layer reads.", f"tanh({add_bias('W [c; s]', m.readout)})")
        return d.activate("output", torch.tanh, readout, None, m, text=text)
    text = Text("Readout", "State, token and context, mixed.", "W [s; y; c]")
    readout = d.linear("readout", m.readout, [s, y, c], text, box="Readout")
    text = Text("Output", "Of each two numbers of the readout the larger.", "o_i = max(r_{2i}, r_{2i+1})")
    return d.see("output", {"does": "largest", "x": readout}, text, m)


def encoder_decoder(m: Any, d: Description, head: bool = True) -> str:
    """An encoder that has an embedding, or reads pixels; a decoder; and the output layer."""
    e, t = d.at("encoder"), d.at("decoder")
    embed = getattr(m, "target_embed", None) or m.embed
    read = () if hasattr(m.encoder, "net") else (e.lookup("embed", m.embed, "source"),)
    x = m.encoder.describe(e, *read)
    y = m.decoder.describe(t, t.lookup("embed", embed, "target"), x)
    return d.logits(y, m.output)


def caption_decoder(m: Any, d: Description, y: str, source: str) -> str:
    x = m.blocks.describe(d, m.positions.describe(d, y, m.scale)[0], source)
    return d.same("output", d.norm("norm", m.norm, x, box="Norm"), OUTPUT, m)


# Models and heads


def word_vectors(m: Any, d: Description, head: bool = True) -> str:
    return d.logits(d.lookup("embed", m.embed, "text"), m.output)


def language_model(m: Any, d: Description, head: bool = True) -> str:
    x = d.stacks(m.stacks())
    return d.logits(x, m.output, m.output_bias) if head else x


def bert(m: Any, d: Description, head: bool = True, generator: nn.ModuleList | None = None) -> str:
    """A BERT, with the blocks of ELECTRA's generator instead of its own if they are given."""
    (stack,) = m.stacks()
    if generator is None:
        x = d.stacks([stack])
    else:
        x = d.stacks([replace(stack, blocks=generator)], "generator")
    if not head:
        return x
    if generator is None:
        next_sentence(m, d, x)
    text = Text("Transform", "One more layer before the tokens are predicted.", "W x")
    x = d.linear("transform", m.transform, x, text, box="Transform")
    x = d.norm("transform_norm", m.transform_norm, x, "Norm of the transform", f=activation(m.activation))
    return d.logits(x, m.output, m.output_bias)


def elmo(m: Any, d: Description, head: bool = True) -> str:
    """The states of both directions; the token predicted from its two sides, or the mixture of the layers."""
    x, rnn = d.lookup("embed", m.embed, "text"), m.encoder.rnn
    text = Text("States", STATES, "[→h_t; ←h_t]")
    y, pick = describe_cells(d, rnn, x), lambda _, __, y: unpacked(y[0])
    states = d.same("states", y, text, rnn, pick=pick, box=CELLS)
    shares = (m.mix.gamma * m.mix.w.softmax(0)).tolist()
    text = Text("Mixture of the layers", "The vector of each token in its context.", "γ Σ_j s_j h_j")
    mixed = d.add("mixed", text, (x, shares[0]), (states, shares[1]), module=m.mix)
    if not head:
        return mixed
    d.linear("next", m.next, mixed, NEXT._replace(formula="W x_0"), row=0)
    text = Text("Neighbours", "The states before and after each token.", "[→h_{t−1}; ←h_{t+1}]")
    ways = [d.at("cells", 0, way).name("previous") for way in ("forward", "backward")]
    x = d.see("neighbours", {"does": "concat", "x": ways}, text, m.sides, "input")
    y = d.linear("sides", m.sides, x, Text("Both sides", "What the output layer reads.", "W x"))
    return d.logits(y, m.output, m.output_bias)


POOLED, VECTOR = "Pooled", "One vector for the whole input"


def pooled_by_layer(m: Any, d: Description, x: str, at: nn.Module) -> str:
    """A BERT's vector of a text: f(W x₀), from its first token's."""
    f = m.pooler_activation
    text = Text("Pooler", "The vector of the first token, through one more layer.", "W x_0")
    y = d.linear("pooler", m.pooler, x, text, row=0)
    text = Text(POOLED, f"{VECTOR}.", f"{sign(f)}({add_bias('W x_0', m.pooler)})")
    return d.activate("pooled", f, y, None, at, "input", text, POOLED)


NEXT = Text("Next sentence?", "Whether the second text follows the first: a score of yes and of no.", "W x")


def next_sentence(m: Any, d: Description, x: str) -> str:
    """A BERT's head for the next sentence, which not every run uses."""
    return d.linear("next", m.next, pooled_by_layer(m, d, x, m.next), NEXT)


def pooled_mean(d: Description, x: str, at: nn.Module) -> str:
    text = Text(POOLED, f"{VECTOR}: the mean of all.", "mean_t(x_t)")
    return d.see("pooled", {"does": "mean", "x": x}, text, at, "input", box=POOLED)


def pooled_last(d: Description, x: str, at: nn.Module) -> str:
    """A GPT's vector of a text: the last token's, which alone depends on all of it."""
    text = Text(POOLED, f"{VECTOR}: that of the last token.", "x_T")
    return d.same("pooled", x, text, at, "input", box=POOLED, row=-1)


def pooled_ends(m: Any, d: Description, x: str, at: nn.Module) -> str:
    """A recurrent network's vector of a text: its last state, of each direction if it has two."""
    if not m.rnn.bidirectional:
        return pooled_last(d, x, at)
    ends = [d.at("cells", m.rnn.num_layers - 1, way).name("state") for way in ("forward", "backward")]
    text = Text(POOLED, f"{VECTOR}: the last state of each direction.", "[→h_T; ←h_1]")
    return d.see("pooled", {"does": "concat", "x": ends, "row": [-1, 0]}, text, at, "input", box=POOLED)


def pooled_first(m: Any, d: Description, x: str, at: nn.Module) -> str:
    """A ViT's vector of an image: its first token's, or the mean of all."""
    return pooled_mean(d, x, at) if m.first is None else pooled_token(m, d, x, at)


def pooled_token(m: Any, d: Description, x: str, at: nn.Module) -> str:
    text = Text(POOLED, f"{VECTOR}: that of the first token.", "x_0")
    return d.same("pooled", x, text, at, "input", box=POOLED, row=0)


def head(m: Any, d: Description) -> str:
    """A linear layer over each token's vector, or the pooled one."""
    x = m.model.describe(d, head=False)
    if m.each:
        x = d.same("output", x, OUTPUT, m.head, "input")
    elif m.mean:
        x = pooled_mean(d, x, m.head)
    elif hasattr(m.model, "describe_pooled"):
        x = m.model.describe_pooled(d, x, m.head)
    else:
        x = pooled_last(d, x, m.head)
    return d.linear("logits", m.head, x, Text("Logits", "A score for every class.", "z = W x"), box=LINEAR)


def electra(m: Any, d: Description) -> str:
    if len(m.generator):
        m.model.describe(d, generator=m.generator)
    x = m.model.describe(d, head=False)
    next_sentence(m.model, d, x)
    text = Text("Transform", "One more layer before replaced tokens are detected.", "W x")
    y = d.linear("transform", m.transform, x, text, box="Transform")
    text = Text("Activation", "The transform, activated.", f"{sign(m.model.activation)}(x)")
    x = d.activate("activated", m.model.activation, y, None, m.found, "input", text)
    return d.linear("found", m.found, x, Text("Replaced?", "How likely each token was replaced.", "z = wᵀ x"))
