"""How each number of a trace was made: an operation, and the names of what goes into it.

The page opens any number as the sum that made it, with operands fetched by name. Names that begin with @ are
the model's weights; all others are a trace's. What has no entry here (recurrent states, convolutions) is not
opened. `share`: so many neighbouring heads have the same.

| does | of | a number is |
|---|---|---|
| look up | W, side | W[id of the token] |
| add | terms: (name, times, first) | Σ times · name[row - first]; of @ names, only row 0 has them |
| same | x; row: always this one | x |
| linear | x: a name, or some side by side; W, b, share | x · W[column] + b |
| turn | x, cos, sin, share | each pair of x turned by its angle |
| norm | x, W, b, eps, f; rms | (f(x) - mean) / deviation · W + b; rms: f(x) / root mean square · W |
| dot | q, k | q[row] · k[column] |
| additive | q, k, w | Σ w tanh(q[row] + k[column]) |
| scale | x, by | x · by |
| softmax | x, bias, mask | exp(x + bias) / Σ exp, along a row |
| average | w, v | Σ w[row] v[:, column] |
| join | x | heads side by side |
| activate | x, f, times | f(x) · times |
| gate | x, by | σ(by) · x |
| largest | x | of each two the larger |
"""

import math
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention import Additive, Attention, Bilinear
from regard.layers import FeedForward, Residual, SwiGLU
from regard.models import GPT, Bert, Captioner, Electra, Labelled, Seq2Seq, Transformer, ViT
from regard.models.captioner import Gated
from regard.recurrent import Decoder, Look
from regard.run import Model
from regard.trace import Trace
from regard.trace.collecting import layer, named, stack

Made = dict[str, Any]


def weights(model: Model) -> dict[str, Tensor]:
    """The model's weights by their names in a trace, with an @ before."""
    found: dict[str, Tensor] = {}
    for name, m in named(model.model):
        for own, p in m.named_parameters(recurse=False):
            found[f"@{name}.{own}" if name else f"@{own}"] = p.detach()
    if isinstance(model.model, GPT | Transformer | Seq2Seq | Captioner):
        found["@output"] = model.model.output.detach()
    return found


def sums(model: Model, trace: Trace) -> dict[str, Made]:
    """How each tensor of a trace was made, by name."""
    parts: dict[str, list[nn.Module]] = {}
    for name, m in named(model.model):
        parts.setdefault(name, []).append(m)
    every = [(name, m) for name, some in parts.items() for m in some]
    found: dict[str, Made] = {}
    for name, m in every:
        if isinstance(m, Residual) and name.endswith((".attn", ".cross", ".ffn")):
            found |= block_part(trace, name, m)
        elif isinstance(m, Look):
            found |= looking(trace, name, m)
        elif isinstance(m, Decoder) and f"{name}.readout" in trace:
            found |= reading_out(trace, name, m)
    found |= beginnings(model, trace) | endings(model, trace)
    known = weights(model).keys() | set(trace)
    return {name: made for name, made in found.items() if name in trace and operands(made) <= known}


def operands(made: Made) -> set[str]:
    """The names that go into a number."""
    some = [
        made.get(key)
        for key in ("x", "W", "b", "cos", "sin", "q", "k", "w", "v", "bias", "mask", "times", "by")
    ]
    flat = [one for each in some for one in (each if isinstance(each, list) else [each])]
    return {one for one in flat if isinstance(one, str)} | {name for name, *_ in made.get("terms", [])}


def linear(name: str, m: nn.Linear, x: str | list[str], **more: Any) -> Made:
    return {"does": "linear", "x": x, "W": f"@{name}.weight"} | bias(name, m) | more


def bias(name: str, m: Any) -> Made:
    return {} if getattr(m, "bias", None) is None else {"b": f"@{name}.bias"}


def normed(name: str, m: nn.Module, x: str, **more: Any) -> Made:
    if isinstance(m, nn.RMSNorm):
        return {"does": "norm", "x": x, "W": f"@{name}.weight", "rms": True, "eps": m.eps} | more
    if isinstance(m, nn.LayerNorm):
        return {"does": "norm", "x": x, "W": f"@{name}.weight", "eps": m.eps} | bias(name, m) | more
    return {"does": "same", "x": x}


def add(*terms: str | tuple[str, float] | tuple[str, float, int]) -> Made:
    return {"does": "add", "terms": [[t, 1, 0] if isinstance(t, str) else [*t, 0][:3] for t in terms]}


def activation(f: Any) -> str | None:
    if isinstance(f, partial):
        return "gelu_tanh" if f.func is F.gelu and f.keywords.get("approximate") == "tanh" else None
    return {F.relu: "relu", F.gelu: "gelu", F.silu: "silu"}.get(f)


# Blocks


def came_in(trace: Trace, name: str) -> str:
    """What enters a block's part: what left the part or the block before, or how the stack begins."""
    block, part = name.rsplit(".", 1)
    for other in {"attn": (), "cross": ("attn",), "ffn": ("cross", "attn")}[part]:
        if f"{block}.{other}.residual" in trace:
            return f"{block}.{other}.residual" if pre(trace, f"{block}.{other}") else f"{block}.{other}.norm"
    above, number = block.rsplit(".", 1)
    return f"{stack(name)}input" if number == "0" else f"{above}.{int(number) - 1}.output"


def pre(trace: Trace, name: str) -> bool:
    order = trace.names
    return order.index(f"{name}.norm") < order.index(f"{name}.residual")


def encoded(trace: Trace) -> str:
    """What a decoder looks at."""
    if "encoder.output" in trace:
        return "encoder.output"
    if "encoder.norm" in trace:
        return "encoder.norm"
    blocks = [name for name in trace if name.startswith("encoder.") and name.endswith(".output")]
    return blocks[-1] if blocks else "encoder.states"


def block_part(trace: Trace, name: str, m: Residual) -> dict[str, Made]:
    if f"{name}.residual" not in trace:  # not among the layers that were asked for
        return {}
    entered, before = came_in(trace, name), pre(trace, name)
    x = f"{name}.norm" if before else entered
    found = {f"{name}.norm": normed(f"{name}.norm", m.norm, entered if before else f"{name}.residual")}
    if isinstance(m.f, Attention):
        found |= attending(trace, name, m.f, x)
        end = f"{name}.out"
    else:
        found |= thinking(name, m.f, x)
        end = f"{name}.down"
    found[f"{name}.residual"] = add(entered, end)
    block, part = name.rsplit(".", 1)
    if part == "ffn":
        found[f"{block}.output"] = {"does": "same", "x": f"{name}.residual" if before else f"{name}.norm"}
    return found


def attending(trace: Trace, name: str, m: Attention, x: str) -> dict[str, Made]:
    source = encoded(trace) if name.endswith("cross") else x
    share, turned = m.heads // m.kv_heads, f"{name}.Wq" in trace
    angles = {"cos": f"{stack(name)}cos", "sin": f"{stack(name)}sin"}
    found: dict[str, Made] = {"v": linear(f"{name}.v", m.v, source, share=share)}
    for part, W, read, shared in (("q", m.q, x, 1), ("k", m.k, source, share)):
        if turned:
            found[f"W{part}"] = linear(f"{name}.{part}", W, read)
            found[part] = {"does": "turn", "x": f"{name}.W{part}", "share": shared} | angles
        else:
            found[part] = linear(f"{name}.{part}", W, read, share=shared)
    found["scores"] = {"does": "dot", "q": f"{name}.q", "k": f"{name}.k"}
    d = trace[f"{name}.q"].shape[-1]
    found["scaled"] = {"does": "scale", "x": f"{name}.scores", "by": 1 / math.sqrt(d)}
    biased = (
        {"bias": f"{stack(name)}bias"} if f"{stack(name)}bias" in trace and not name.endswith("cross") else {}
    )
    found["weights"] = {"does": "softmax", "x": f"{name}.scaled", "mask": f"{name}.mask"} | biased
    found["heads"] = {"does": "average", "w": f"{name}.weights", "v": f"{name}.v"}
    found["joined"] = {"does": "join", "x": f"{name}.heads"}
    found["out"] = linear(f"{name}.out", m.out, f"{name}.joined")
    return {f"{name}.{part}": made for part, made in found.items()}


def thinking(name: str, m: nn.Module, x: str) -> dict[str, Made]:
    found: dict[str, Made] = {}
    if isinstance(m, SwiGLU):
        found["gate"] = linear(f"{name}.gate", m.gate, x)
        found["hidden"] = {"does": "activate", "x": f"{name}.gate", "f": "silu", "times": f"{name}.up"}
    elif isinstance(m, FeedForward) and (f := activation(m.f)):
        found["hidden"] = {"does": "activate", "x": f"{name}.up", "f": f}
    if isinstance(m, FeedForward | SwiGLU):
        found["up"] = linear(f"{name}.up", m.up, x)
        found["down"] = linear(f"{name}.down", m.down, f"{name}.hidden")
    return {f"{name}.{part}": made for part, made in found.items()}


# Recurrent


def looking(trace: Trace, name: str, m: Look) -> dict[str, Made]:
    source = encoded(trace)
    found: dict[str, Made] = {"v": {"does": "same", "x": source}, "k": {"does": "same", "x": source}}
    if isinstance(m.score, Additive):
        found["k"] = linear(f"{name}.score.U", m.score.U, source, share=1)
        w = f"@{name}.score.w.weight"
        found["scores"] = {"does": "additive", "q": f"{name}.Wq", "k": f"{name}.k", "w": w}
        found["Wq"] = linear(f"{name}.score.W", m.score.W, f"{name}.q")
    else:
        if isinstance(m.score, Bilinear):
            found["k"] = linear(f"{name}.score.W", m.score.W, source, share=1)
        found["q"] = {"does": "same", "x": f"{name.rsplit('.', 1)[0]}.states"}
        found["scores"] = {"does": "dot", "q": f"{name}.q", "k": f"{name}.k"}
    found["weights"] = {"does": "softmax", "x": f"{name}.scores", "mask": f"{name}.mask"}
    found["heads"] = {"does": "average", "w": f"{name}.weights", "v": f"{name}.v"}
    found["output"] = {"does": "same", "x": f"{name}.heads"}
    if isinstance(m, Gated):
        found["gate"] = linear(f"{name}.gate", m.gate, f"{name}.q")
        found["output"] = {"does": "gate", "x": f"{name}.heads", "by": f"{name}.gate"}
    return {f"{name}.{part}": made for part, made in found.items()}


def reading_out(trace: Trace, name: str, m: Decoder) -> dict[str, Made]:
    """[c; s] or [s; y; c] of a decoder, and what comes out of it."""
    s, y, c = f"{name}.states", f"{name}.embed", f"{name}.look.output"
    read, out = f"{name}.readout", f"{name}.output"
    last: Made = {"does": "activate", "x": read, "f": "tanh"} if m.late else {"does": "largest", "x": read}
    return {read: linear(read, m.readout, [c, s] if m.late else [s, y, c]), out: last}


# Both ends


def beginnings(model: Model, trace: Trace) -> dict[str, Made]:
    found: dict[str, Made] = {}
    module: Any = getattr(model.model, "model", model.model)
    scaled = isinstance(module, Transformer) or "decoder.blocks.0.output" in trace
    table = "@embed.weight"
    prefixes = sorted({name.removesuffix("embed") for name in trace if name.split(".")[-1] == "embed"})
    for prefix in prefixes:
        embed, end = f"{prefix}embed", f"{prefix}sum"
        if f"{prefix}patches" in trace:
            vit: Any = module if isinstance(module, ViT) else module.encoder.net
            found[embed] = linear(embed, vit.embed, f"{prefix}patches")
            first = vit.first is not None
            begin = [(f"@{prefix}first.weight", 1.0, 0)] if first else []
            placed = [f"{prefix}positions"] if f"{prefix}positions" in trace else []
            found[f"{prefix}input"] = add(*begin, (embed, 1.0, int(first)), *placed)
            continue
        side = "source" if prefix == "encoder." else "target" if prefix == "decoder." else "text"
        own = getattr(module, "target_embed", None) is not None and prefix == "decoder."
        found[embed] = {"does": "look up", "W": "@decoder.embed.weight" if own else table, "side": side}
        times = math.sqrt(module.config.dim) if scaled else 1.0
        more = [f"{prefix}{what}" for what in ("segments", "positions") if f"{prefix}{what}" in trace]
        found[end] = add((embed, times), *more)
        found[f"{prefix}embed_norm"] = normed("embed_norm", getattr(module, "embed_norm", nn.Identity()), end)
        normal = f"{prefix}embed_norm"
        found[f"{prefix}input"] = {"does": "same", "x": normal if normal in trace else end}
    if "encoder.project" in trace:
        if "encoder.net.norm" in trace:
            found["encoder.project"] = linear("encoder.project", module.encoder.project, "encoder.net.norm")
        found["encoder.sum"] = add("encoder.project", "encoder.positions")
        found["encoder.norm"] = normed("encoder.norm", module.encoder.norm, "encoder.sum")
        found["encoder.output"] = {"does": "same", "x": "encoder.norm"}
    return found


def endings(model: Model, trace: Trace) -> dict[str, Made]:
    module: Any = model.model
    inner: Any = getattr(module, "model", module)
    found: dict[str, Made] = {}
    for prefix in ("", "encoder.", "decoder.", "encoder.net."):
        blocks = [n for n in trace if n.endswith(".output") and layer(n) is not None and stack(n) == prefix]
        last = next((m for name, m in named(module) if name == f"{prefix}norm"), None)
        if blocks and last is not None and f"{prefix}norm" in trace:
            found[f"{prefix}norm"] = normed(f"{prefix}norm", last, blocks[-1])
    order = [name for name in trace if name not in ("logits", "probabilities", "vector")]
    if isinstance(module, Labelled):
        x = "output" if module.each else "pooled"
        if isinstance(inner, ViT) and not module.each and inner.first is not None:
            found["pooled"] = {"does": "same", "x": "norm", "row": 0}
        elif "pooler" in trace:
            found["pooler"] = linear("pooler", inner.pooler, last_vectors(trace)) | {"row": 0}
            found["pooled"] = {"does": "activate", "x": "pooler", "f": "tanh"}
        found["logits"] = linear("head", module.head, x)
    elif isinstance(module, Bert):
        found["transform"] = linear("transform", module.transform, last_vectors(trace))
        if f := activation(module.f):
            found["transform_norm"] = normed("transform_norm", module.transform_norm, "transform", f=f)
        found["logits"] = {"does": "linear", "x": "transform_norm", "W": "@embed.weight", "b": "@bias"}
    elif not isinstance(module, Electra) and "logits" in trace and order:
        found["logits"] = {"does": "linear", "x": order[-1], "W": "@output"}
    softened = model.task.config.name != "span" and not isinstance(module, Electra)
    if softened and "probabilities" in trace:
        found["probabilities"] = {"does": "softmax", "x": "logits"}
    return found


def last_vectors(trace: Trace) -> str:
    """What a stack of blocks ends with."""
    if "norm" in trace:
        return "norm"
    return [name for name in trace if name.endswith(".output")][-1]
