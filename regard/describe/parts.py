"""How the parts of a model describe themselves; a class declares `describe = parts.feed_forward`.

Each function mirrors the `forward` of its module `m`, with names of values for tensors (see values.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from regard.describe.cells import describe_cells, unpacked
from regard.describe.values import Description, Op, Term, activation

Described = tuple[str, tuple[str, str] | None, str | None]  # names of the sum; of cos and sin; of the bias


# Transformers


def positions(m: Any, d: Description, x: str, times: float = 1.0, more: Sequence[str] = ()) -> Described:
    """The sum of embeddings and positions; and what attention needs, by the module's `effect`."""
    terms: list[Term] = [(x, times), *more]
    if (table := m.vectors()) is not None:
        terms.append(d.see("positions", None, m, "add", lambda a, _, y: table[a[1]].expand_as(y)))
    d.inner.update(m.children())
    rotary = (d.name("cos"), d.name("sin")) if m.effect == "rotate" else None
    bias = d.name("bias") if m.effect == "bias" else None
    return d.add("sum", *terms, module=m, at="add"), rotary, bias


def attention(
    m: Any,
    d: Description,
    x: str,
    source: str | None = None,
    rotary: tuple[str, str] | None = None,
    bias: str | None = None,
) -> str:
    """Multi-head attention: queries, keys and values of the heads, `attend`, and the output layer."""
    share, read, at = m.heads // m.kv_heads, source or x, (m.out, "input")
    q, k = d.heads("q", m, x, rotary=rotary), d.heads("k", m, read, share, rotary)
    v, scale = d.heads("v", m, read, share), (m.q.out_features // m.heads) ** -0.5
    y = d.attend(m, q, k, v, at, scale=scale, bias=bias)
    return d.linear("out", m.out, d.see("joined", {"does": "join", "x": y}, *at))


def feed_forward(m: Any, d: Description, x: str) -> str:
    """W₂ f(W₁ x), or with a gate W₂(f(W₁ x) ⊙ W₃ x)."""
    gate = d.linear("gate", m.gate, x) if hasattr(m, "gate") else None
    up = d.linear("up", m.up, x)
    return d.linear("down", m.down, d.activate("hidden", m.f, gate or up, gate and up, m.down, "input"))


def residual(m: Any, d: Description, x: str, *args: Any, **kwargs: Any) -> str:
    y = m.f.describe(d, d.norm("norm", m.norm, x) if m.pre else x, *args, **kwargs)
    if m.pre:
        return d.add("residual", x, y, module=m)
    return d.norm("norm", m.norm, d.add("residual", x, y, module=m.norm, at="input"))


def block(m: Any, d: Description, x: str, source: str | None = None, **self_attn: Any) -> str:
    x = m.attn.describe(d.at("attn"), x, **self_attn)
    if m.cross is not None:
        x = m.cross.describe(d.at("cross"), x, source)
    return d.same("output", m.ffn.describe(d.at("ffn"), x), m)


def stack(
    m: Any, d: Description, x: str, source: str | None = None, name: str = "blocks", **more: Any
) -> str:
    x = d.same("input", x, m[0], "input")
    for i, one in enumerate(m):
        x = one.describe(d.at(name, i), x, source, **more)
    return x


# Recurrent networks


def encoder(m: Any, d: Description, x: str) -> str:
    d.see("hidden", None, m, pick=lambda _, __, y: torch.cat(y[1]).transpose(0, 1))
    return d.same("states", describe_cells(d, m.rnn, x), m.rnn, pick=lambda _, __, y: unpacked(y[0]))


def recurrent_attention(m: Any, d: Description, q: str, source: str) -> str:
    """Attention with one head, whose score is additive if it has a U; its context may be gated."""
    at, same, query, score = (m, "output"), {"does": "same", "x": source}, d.name("q"), None
    key: Op = same
    if m.score is not None:
        U = getattr(m.score, "U", m.score.W)
        key = {"does": "linear", "x": source, "W": d.weight("score.U", U.weight), "share": 1}
    for name, op in (("q", {"does": "same", "x": q}), ("k", key), ("v", same)):
        d.record(name, op, m, name, at)
    if hasattr(m.score, "U"):
        op = {"does": "linear", "x": query, "W": d.weight("score.W", m.score.W.weight)}
        Wq = d.see("Wq", op, m.score.W, pick=lambda _, __, y: y[:, 0])
        score = {"does": "additive", "q": Wq, "k": d.name("k"), "w": d.weight("score.w", m.score.w.weight)}
    y = d.attend(m, query, d.name("k"), d.name("v"), at, score=score)
    if hasattr(m, "gate"):
        return d.see("output", {"does": "gate", "x": y, "by": d.linear("gate", m.gate, query)}, m)
    return d.same("output", y, m)


def decoder(m: Any, d: Description, y: str, source: str) -> str:
    after, x = m.attends_after_cell, y
    q = d.name("states") if after else d.at("cells", m.rnn.num_layers - 1).name("previous")
    if m.look is None:
        c = d.see("context", None, m, pick=lambda a, _, y: a[1].source.expand(-1, y.shape[1], -1))
    else:
        c = m.look.describe(d.at("look"), q, source)
    if not after:
        x = d.see("cell_input", {"does": "concat", "x": [y, c]}, m.rnn, "input", lambda a, *_: a[0])
    s = d.same("states", describe_cells(d, m.rnn, x), m.rnn, pick=lambda _, __, y: y[0])
    if after:
        return d.activate("output", torch.tanh, d.linear("readout", m.readout, [c, s]), None, m)
    return d.see("output", {"does": "largest", "x": d.linear("readout", m.readout, [s, y, c])}, m)


def encoder_decoder(m: Any, d: Description, head: bool = True) -> str:
    """An encoder that has an embedding, or reads pixels; a decoder; and the output layer."""
    e, t = d.at("encoder"), d.at("decoder")
    embed = getattr(m, "target_embed", None) or m.embed
    read = () if hasattr(m.encoder, "net") else (e.lookup("embed", m.embed, "source"),)
    x = m.encoder.describe(e, *read)
    y = m.decoder.describe(t, t.lookup("embed", embed, "target"), x)
    return d.logits(y, m.output)


# Images


def vit(m: Any, d: Description, head: bool = True) -> str:
    x = d.linear("embed", m.embed, d.see("patches", None, m.embed, "input"))
    terms: list[Term] = [] if m.first is None else [(d.weight("first.weight", m.first.weight), 1.0)]
    terms.append((x, 1.0, len(terms)))
    if m.config.positions != "none":
        terms.append(d.see("positions", None, m, "grid_positions", lambda _, __, y: y[None]))
    x = d.add("sum", *terms, module=m.drop, at="input")
    return d.norm("norm", m.norm, m.blocks.describe(d, x))


def image_encoder(m: Any, d: Description) -> str:
    """A network, of which only a ViT opens as sums, a linear layer and positions."""
    if hasattr(m.net, "describe"):
        x = d.linear("project", m.project, m.net.describe(d.at("net")))
    else:
        x = d.see("project", None, m.project)
    return d.same("output", d.norm("norm", m.norm, m.positions.describe(d, x)[0]), m)


def caption_decoder(m: Any, d: Description, y: str, source: str) -> str:
    x = m.blocks.describe(d, m.positions.describe(d, y, m.scale)[0], source)
    return d.same("output", d.norm("norm", m.norm, x), m)


# Models and heads


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
    x = d.linear("transform", m.transform, x)
    x = d.norm("transform_norm", m.transform_norm, x, f=activation(m.activation))
    return d.logits(x, m.output, m.output_bias)


def pooled_by_layer(m: Any, d: Description, x: str, at: nn.Module) -> str:
    """A BERT's vector of a text: f(W x₀), from that of its first token."""
    f = torch.tanh if m.config.pooler == "tanh" else F.relu
    return d.activate("pooled", f, d.linear("pooler", m.pooler, x, row=0), None, at, "input")


def head(m: Any, d: Description) -> str:
    """A linear layer over each token's vector, or the pooled one."""
    x = m.model.describe(d, head=False)
    if m.each:
        x = d.same("output", x, m.head, "input")
    elif m.mean or not hasattr(m.model, "describe_pooled"):
        x = d.see("pooled", None, m.head, "input")
    else:
        x = m.model.describe_pooled(d, x, m.head)
    return d.linear("logits", m.head, x)


def electra(m: Any, d: Description) -> str:
    m.model.describe(d, generator=m.generator)
    y = d.linear("transform", m.transform, m.model.describe(d, head=False))
    x = d.activate("activated", m.model.activation, y, None, m.found, "input")
    return d.linear("found", m.found, x)


def pooled_first(m: Any, d: Description, x: str, at: nn.Module) -> str:
    """A ViT's vector of an image: that of its first token; a mean does not open as a sum."""
    op = None if m.first is None else {"does": "same", "x": x, "row": 0}
    return d.see("pooled", op, at, "input")
