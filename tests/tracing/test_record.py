"""Every recorded number, computed again by hand; and no hooks are left."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.looking import CONTEXT, reader, words
from helpers.traced import TEXT, close, every_kind, inner, model_and_input, module
from models.test_gpt import GPT2_STYLE
from regard import Trace, trace
from regard.core.positions import rotate
from regard.runs.model import Model
from regard.tasks import TASKS, Write
from regard.tracing import REASONS


def check_attention(t: Trace, part: str, m: Any, x: Tensor, source: Tensor, bias: Tensor | None) -> None:
    """Check the attention from its input x to its output."""
    q, k, v, W = (t[f"{part}.{name}"] for name in ("q", "k", "v", "weights"))
    H, T, d = q.shape
    rotary = None
    if f"{part}.Wq" in t:
        stack = part.split("blocks")[0] if "blocks" in part else part.split(".")[0] + "."
        if f"{stack}cos" in t:
            rotary = t[f"{stack}cos"], t[f"{stack}sin"]
        close(t[f"{part}.Wq"], m.q(x))
        close(t[f"{part}.Wk"], m.k(source))

    def heads(y: Tensor, norm: nn.Module, rotary: Any) -> Tensor:
        y = rotate(norm(y.unflatten(-1, (-1, d)).transpose(0, 1))[None], rotary)[0]
        return y.repeat_interleave(H // len(y), dim=0)

    close(q, heads(m.q(x), m.q_norm, rotary))
    close(k, heads(m.k(source), m.k_norm, rotary))
    close(v, heads(m.v(source), nn.Identity(), None))
    close(t[f"{part}.scores"], torch.einsum("htd,hsd->hts", q, k))
    close(t[f"{part}.scaled"], t[f"{part}.scores"] / math.sqrt(d))
    scores = t[f"{part}.scaled"] if bias is None else t[f"{part}.scaled"] + bias
    may, reason = t[f"{part}.mask"], t[f"{part}.reason"]
    assert torch.equal(may, reason == REASONS.index("may look"))
    if m.causal:
        ahead = torch.arange(T)[:, None] < torch.arange(T)
        assert torch.equal(reason == REASONS.index("future"), ahead)
    exps = torch.where(may, scores.exp(), 0.0)
    close(W, exps / exps.sum(-1, keepdim=True))
    close(t[f"{part}.heads"], torch.einsum("hts,hsd->htd", W, v))
    close(t[f"{part}.joined"], torch.cat(list(t[f"{part}.heads"]), dim=-1))
    close(t[f"{part}.out"], F.linear(t[f"{part}.joined"], m.out.weight, m.out.bias))


def check_feed_forward(t: Trace, part: str, m: Any, x: Tensor) -> None:
    close(t[f"{part}.up"], F.linear(x, m.up.weight, m.up.bias))
    if hasattr(m, "gate"):
        close(t[f"{part}.gate"], F.linear(x, m.gate.weight, m.gate.bias))
        close(t[f"{part}.hidden"], m.f(t[f"{part}.gate"]) * t[f"{part}.up"])
    else:
        close(t[f"{part}.hidden"], m.f(t[f"{part}.up"]))
    close(t[f"{part}.down"], F.linear(t[f"{part}.hidden"], m.down.weight, m.down.bias))


def check_blocks(t: Trace, model: Model, stack: str, source: Tensor | None = None) -> Tensor:
    """Check every layer of a stack (`blocks`, `encoder`); return the output of the last one."""
    prefix = stack.removesuffix("blocks")
    prefix = prefix if stack.endswith("blocks") else f"{stack}."
    prefix = "" if stack == "generator" else prefix
    x = t[f"{prefix}input"] if stack != "generator" else t["generator.input"]
    bias = t.tensors.get(f"{prefix}bias")
    for i, block in enumerate(module(model, stack)):
        for kind in ("attn", "cross", "ffn"):
            wired, part = getattr(block, kind), f"{stack}.{i}.{kind}"
            if wired is None:
                continue
            y = wired.norm(x) if wired.pre else x
            if kind == "ffn":
                check_feed_forward(t, part, wired.f, y)
            else:
                over = source if kind == "cross" else y
                assert over is not None
                check_attention(t, part, wired.f, y, over, bias if kind == "attn" else None)
            close(t[f"{part}.residual"], x + t[f"{part}.{'down' if kind == 'ffn' else 'out'}"])
            close(t[f"{part}.norm"], wired.norm(x if wired.pre else t[f"{part}.residual"]))
            x = t[f"{part}.residual" if wired.pre else f"{part}.norm"]
        assert torch.equal(t[f"{stack}.{i}.output"], x)
    return x


def check_embedding(t: Trace, model: Model, side: str, prefix: str, embed: Any, scale: float = 1.0) -> Tensor:
    """Check the embeddings; return the input of the first block."""
    x = embed.weight[torch.tensor(t.ids[side])]
    assert torch.equal(t[f"{prefix}embed"], x)
    total = scale * x
    for added in ("segments", "positions"):
        if f"{prefix}{added}" in t:
            total = total + t[f"{prefix}{added}"]
    close(t[f"{prefix}sum"], total)
    return total


def check_look(t: Trace, m: Any, states: Tensor) -> None:
    """Check a recurrent decoder's attention over `states`."""
    q, k = (t[f"decoder.look.{name}"][0] for name in "qk")
    if hasattr(m.score, "w"):
        close(t["decoder.look.Wq"], m.score.W(q))
        close(k, m.score.U(states))
        scores = torch.tanh(m.score.W(q)[:, None] + k[None]) @ m.score.w.weight[0]
    else:
        close(k, states if m.score is None else m.score.W(states))
        scores = q @ k.T
    close(t["decoder.look.scores"][0], scores)
    close(t["decoder.look.weights"][0], scores.softmax(-1))
    close(t["decoder.look.heads"][0], t["decoder.look.weights"][0] @ states)
    gate = t["decoder.look.gate"].sigmoid() if "decoder.look.gate" in t else 1.0
    close(t["decoder.look.output"], gate * t["decoder.look.heads"][0])


def check_recurrent(t: Trace, model: Model, states: Tensor) -> Tensor:
    m = inner(model).decoder
    y, s = t["decoder.embed"], t["decoder.states"]
    c = t["encoder.hidden"][m.rnn.num_layers - 1].expand_as(s) if m.look is None else t["decoder.look.output"]
    if m.look is not None:
        check_look(t, m.look, states)
        first = s if m.attends_after_cell else torch.cat([t["decoder.look.q"][0][:1], s[:-1]])
        close(t["decoder.look.q"][0], first)  # additive: what looks is the state before
    parts = [c, s] if m.attends_after_cell else [s, y, c]
    close(t["decoder.readout"], m.readout(torch.cat(parts, dim=-1)))
    readout = t["decoder.readout"]
    y = torch.tanh(readout) if m.attends_after_cell else readout.unflatten(-1, (-1, 2)).amax(-1)
    close(t["decoder.output"], y)
    return y


def check_end(t: Trace, y: Tensor, W: Tensor, b: Tensor | None = None) -> None:
    close(t["logits"], F.linear(y, W, b))
    if "probabilities" in t and t["probabilities"].shape == t["logits"].shape and t["logits"].ndim:
        close(t["probabilities"].sum(-1), torch.ones(t["logits"].shape[:-1]))
        close(t["probabilities"], t["logits"].exp() / t["logits"].exp().sum(-1, keepdim=True))


@every_kind
@torch.no_grad()
def test_every_number_by_hand(kind: str) -> None:
    model, input = model_and_input(kind)
    t, m = trace(model, input), inner(model)
    assert all(t[name].isfinite().all() for name in t if t[name].is_floating_point())
    match kind.split("-"):
        case ["words"]:
            assert torch.equal(t["embed"], m.embed.weight[torch.tensor(t.ids["text"])])
            check_end(t, t["embed"], m.near.weight)
        case ["vit", *_]:
            pixels = (t["pixels"] / 255 - 0.4) / 0.3
            corner = pixels[:, 2:4, 4:6]  # the patch in row 1, column 2
            close(t["patches"][1 * 3 + 2], corner.flatten())
            close(t["embed"], m.embed(t["patches"]))
            first = m.first.weight if m.first is not None else torch.empty(0, 12)
            close(t["input"], torch.cat([first, t["embed"]]) + t["positions"])
            assert torch.equal(t["positions"], m.positions.weight)
            x = m.norm(check_blocks(t, model, "blocks"))
            close(t["norm"], x)
            close(t["pooled"], x.mean(0) if m.first is None else x[0])
            check_end(t, t["pooled"], model.model.head.weight, model.model.head.bias)
        case ["captioner", "hard"]:
            scores, weights = t["decoder.look.scores"][0], t["decoder.look.weights"][0]
            assert torch.equal(weights, torch.eye(scores.shape[1])[scores.argmax(-1)])
            close(t["decoder.look.heads"][0], t["encoder.norm"][scores.argmax(-1)])
        case ["captioner", *_]:
            regions = t["encoder.norm"]
            close(regions, m.encoder.norm(t["encoder.project"] + t["encoder.positions"]))
            assert torch.equal(t["encoder.output"], regions)
            if kind == "captioner":
                assert torch.equal(t["decoder.embed"], m.embed.weight[torch.tensor(t.ids["target"])])
                y = check_recurrent(t, model, regions)
            else:
                check_blocks(t, model, "encoder.net.blocks")
                x = check_embedding(t, model, "target", "decoder.", m.embed, math.sqrt(16))
                close(t["decoder.input"], x)
                y = m.decoder.norm(check_blocks(t, model, "decoder.blocks", regions))
            check_end(t, y, m.embed.weight)
        case ["rnn" | "gru" | "lstm", *_]:
            for side, prefix in (("source", "encoder"), ("target", "decoder")):
                assert torch.equal(t[f"{prefix}.embed"], m.embed.weight[torch.tensor(t.ids[side])])
            states, last = m.encoder.rnn(t["encoder.embed"][None])
            close(t["encoder.states"], states[0])
            if m.encoder.bridge is None:
                close(t["encoder.hidden"], last[:, 0])
            check_end(t, check_recurrent(t, model, t["encoder.states"]), m.output)
        case ["recurrent", *_]:
            assert torch.equal(t["embed"], m.embed.weight[torch.tensor(t.ids["text"])])
            x = m.rnn(t["embed"][None])[0][0]
            close(t["states"], x)
            if kind == "recurrent-classify":
                x = torch.cat([x[-1, :6], x[0, 6:]])  # the last state of each direction
                close(t["pooled"], x)
            check_end(t, x, *(model.model.head.parameters() if kind == "recurrent-classify" else [m.output]))
        case ["elmo", *_]:
            check_elmo(t, model)
        case ["transformer" | "t5", *_]:
            scale = math.sqrt(12)
            close(t["encoder.input"], check_embedding(t, model, "source", "encoder.", m.embed, scale))
            x = m.encoder_norm(check_blocks(t, model, "encoder"))
            close(t["decoder.input"], check_embedding(t, model, "target", "decoder.", m.embed, scale))
            check_end(t, m.decoder_norm(check_blocks(t, model, "decoder", x)), m.embed.weight)
        case _:
            total = check_embedding(t, model, "text", "", m.embed)
            generator = kind == "bert-electra"
            entered = t["generator.input" if generator else "input"]
            close(entered, m.embed_norm(total) if hasattr(m, "embed_norm") else total)
            x = m.norm(check_blocks(t, model, "generator" if generator else "blocks"))
            check_head(t, model, kind, x)


def check_elmo(t: Trace, model: Model) -> None:
    m, top = inner(model), model.model
    assert torch.equal(t["embed"], m.embed.weight[torch.tensor(t.ids["text"])])
    x = m.encoder.rnn(t["embed"][None])[0][0]
    close(t["states"], x)
    s = m.mix.w.exp() / m.mix.w.exp().sum()
    mixed = m.mix.gamma * (s[0] * t["embed"] + s[1] * x)
    if "mixed" in t:
        close(t["mixed"], mixed)
    if "vector" in t:
        close(t["vector"], mixed.mean(0))
    elif "neighbours" in t:
        none = torch.zeros(1, 6)
        sides = torch.cat([torch.cat([none, x[:-1, :6]]), torch.cat([x[1:, 6:], none])], dim=1)
        close(t["neighbours"], sides)
        check_end(t, m.sides(sides), m.embed.weight, m.bias)
    elif top is m:
        close(t["next"], m.next(mixed[0]))
        assert torch.equal(t["logits"], t["next"])
    else:
        close(t["logits"], top.head(mixed if top.each else mixed[0]))


def check_head(t: Trace, model: Model, kind: str, x: Tensor) -> None:
    m, top = inner(model), model.model
    if kind == "bert-embed":
        close(t["vector"], x.mean(0))
    elif kind == "bert-electra-told":
        y = top.found(m.activation(top.transform(x)))[:, 0]
        close(t["logits"], y)
        close(t["probabilities"], 1 / (1 + (-y).exp()))
    elif kind == "bert-span":
        close(t["logits"], F.linear(x, top.head.weight, top.head.bias))
        close(t["probabilities"].sum(0), torch.ones(2))
        assert (t["probabilities"][1:4] == 0).all()  # the question's words
    elif kind == "bert-tag":
        assert torch.equal(t["output"], x)
        check_end(t, x, top.head.weight, top.head.bias)
    elif top is not m and hasattr(top, "head"):
        pooled = torch.tanh(m.pooler(x[0])) if hasattr(m, "pooler") else x[-1]
        close(t["pooled"], pooled)
        check_end(t, pooled, top.head.weight, top.head.bias)
        assert ("probabilities" in t) == (kind != "bert-score")
    elif hasattr(m, "transform"):
        close(t["transform"], m.transform(x))
        close(t["transform_norm"], m.transform_norm(m.activation(t["transform"])))
        check_end(t, t["transform_norm"], m.embed.weight, m.bias)
    else:
        close(t["norm"], x)
        check_end(t, x, m.output)


# Nothing is left


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@every_kind
def test_nothing_is_left_behind(kind: str) -> None:
    model, input = model_and_input(kind)
    before = [dict(m.__dict__) for m in model.model.modules()]
    trace(model, input)
    assert hooks(model.model) == 0
    assert [set(m.__dict__) for m in model.model.modules()] == [set(one) for one in before]
    assert all(m.records is None for m in model.model.modules() if hasattr(m, "records"))


def test_nothing_is_left_behind_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = reader("write", "gpt", **GPT2_STYLE).model

    def fails(*_: object) -> None:
        raise RuntimeError("on the way")

    monkeypatch.setattr(model.blocks[1].ffn.f, "f", fails)
    task = Write(TASKS["write"][1](name="write"), words(Write), CONTEXT)
    with pytest.raises(RuntimeError, match="on the way"):
        trace(Model(model.train(), task, {}), TEXT)
    assert hooks(model) == 0
    assert "add" not in model.positions.__dict__
    assert all(m.training for m in model.modules())
    assert model.blocks[0].attn.f.records is None
