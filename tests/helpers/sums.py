"""The operations of `regard/describe/values.py`, for whole tensors, in float64, apart from the page's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.runs.model import Model
from regard.tracing import Trace
from regard.viewer.sums import describe_trace, weights

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
}


def per_head(x: Tensor, share: int, shape: torch.Size) -> Tensor:
    """One value for all heads (T, H d), or one per head (H, T, d), as (H, T, d)."""
    if len(shape) == 3:
        x = x if x.ndim == 3 else x.unflatten(-1, (-1, shape[-1])).transpose(0, 1)
        return x.repeat_interleave(share, 0) if len(x) < shape[0] else x
    return x


def positions(op: dict[str, Any], trace: Trace, rows: int) -> Tensor:
    """The positions of a value's rows, which are those of the last tokens of its side."""
    return torch.arange(rows) + len(trace.tokens[op["side"]]) - rows


def side_by_side(op: dict[str, Any], get: Callable[[str], Tensor]) -> Tensor:
    """The inputs of a linear layer, all rows of them or only the one that it reads."""
    names = op["x"] if isinstance(op["x"], list) else [op["x"]]
    rows = op.get("row")
    if rows is None:
        return torch.cat([get(name) for name in names], -1)
    rows = rows if isinstance(rows, list) else [rows] * len(names)
    return torch.cat([torch.atleast_2d(get(name))[row] for name, row in zip(names, rows, strict=True)], -1)


def shift(op: dict[str, Any], get: Callable[[str], Tensor]) -> Tensor:
    """The row before or after each row, and at the end the first state."""
    x = get(op["x"])
    first = get(op["first"])[op["row"]] if "first" in op else torch.zeros_like(x[0])
    return torch.cat([x[1:], first[None]]) if op.get("back") else torch.cat([first[None], x[:-1]])


def convolve(op: dict[str, Any], x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """A convolution with zeros around, of which an odd one is at the right and below."""
    k, s, groups = op["size"], op["stride"], op["groups"]
    down, across = (max((-(-n // s) - 1) * s + k - n, 0) for n in x.shape[-2:])
    x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
    return F.conv2d(x[None], W.reshape(len(W), -1, k, k), b, s, groups=groups)[0]


def by_distance(op: dict[str, Any], W: Tensor, T: int, S: int) -> Tensor:
    """What the distances of the last T of S queries from S keys add to scores."""
    distance = torch.arange(S) - torch.arange(S - T, S)[:, None]
    if "far" in op:
        return W[distance.clamp(-op["far"], op["far"]) + op["far"]].permute(2, 0, 1)
    return -W[:, None, None] * distance.abs()


def by_query(
    op: dict[str, Any], get: Callable[[str], Tensor], f: Callable[[Any, str], Tensor], q: str | None, kv: str
) -> Tensor:
    """A value for each query, the first of which may be global and then have other operands."""
    y = f(q, kv)
    if "global" not in op:
        return y
    count = get(op["global"][0]).shape[1]
    return torch.cat([f(*op["global"])[:, :count], y[:, count:]], dim=1)


def function_of(op: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    return FUNCTIONS[op["f"]] if isinstance(op.get("f"), str) else lambda x: x


def evaluate_input(
    op: dict[str, Any], get: Callable[[str], Tensor], trace: Trace, shape: torch.Size
) -> Tensor | None:
    """What is read: words, positions, pixels; None for another operation."""
    f = function_of(op)
    match op["does"]:
        case "look up":
            match op.get("by"):
                case None:
                    rows = torch.tensor(trace.ids[op["side"]][-shape[0] :])
                case "position":
                    rows = positions(op, trace, shape[0])
                case name:
                    rows = get(name)[:, 0].long()
            return get(op["W"])[rows]
        case "wave":
            angles = positions(op, trace, shape[0])[:, None] * get(op["W"])
            return torch.stack([FUNCTIONS[name](angles) for name in op["f"]], -1).flatten(1)[:, : shape[1]]
        case "distance":
            return by_distance(op, get(op["W"]), *shape[1:])
        case "pixel":
            mean, std = (torch.tensor(op[key]).double()[:, None, None] for key in ("mean", "std"))
            return (get(op["x"]) / 255 - mean) / std
        case "patch":
            size = op.get("height", op["side"]), op["side"]
            return F.unfold(get(op["x"])[None], size, stride=size)[0].T
        case "conv":
            return convolve(op, f(get(op["x"])), get(op["W"]), get(op["b"]) if "b" in op else None)
        case "regions":
            return f(get(op["x"])).flatten(1).T
    return None


def evaluate_attention(
    op: dict[str, Any], get: Callable[[str], Tensor], trace: Trace, shape: torch.Size
) -> Tensor | None:
    """The operations of an attention; None for another."""
    match op["does"]:
        case "dot":
            return by_query(op, get, lambda q, k: get(q) @ get(k).mT, op["q"], op["k"])
        case "additive":
            q, k = get(op["q"]), get(op["k"])[0]
            return (torch.tanh(q[:, None] + k[None]) @ get(op["w"])[0])[None]
        case "scale":
            return get(op["x"]) * op["by"]
        case "softmax":
            x = get(op["x"])
            x = x + get(op["bias"]) if "bias" in op else x
            if "mask" in op:
                mask = get(op["mask"]).bool()
                x = x.masked_fill(~mask, -torch.inf)
                return x.softmax(-1).nan_to_num(0.0)
            return x.softmax(-1)
        case "average":
            w = get(op["w"])
            return by_query(op, get, lambda _, v: w @ get(v), None, op["v"])
        case "join":
            return get(op["x"]).transpose(0, 1).flatten(1)
        case "turn":
            x, cos, sin = per_head(get(op["x"]), op.get("share", 1), shape), get(op["cos"]), get(op["sin"])
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return None


def evaluate_layer(
    op: dict[str, Any], get: Callable[[str], Tensor], trace: Trace, shape: torch.Size
) -> Tensor | None:
    """All other operations; None for an unknown one."""
    f = function_of(op)
    match op["does"]:
        case "add":
            total = torch.zeros(shape, dtype=torch.float64)
            for name, times, first in op["terms"]:
                t = get(name)
                total[first : first + len(t)] += times * t
            return total
        case "same":
            x = get(op["x"])
            if "column" in op:  # of every row
                return x[:, op["column"]]
            return x[op["row"]].expand(shape) if "row" in op else per_head(x, op.get("share", 1), shape)
        case "concat":
            return side_by_side(op, get)
        case "linear":
            x = side_by_side(op, get)
            y = f(F.linear(x, get(op["W"]), get(op["b"]) if "b" in op else None))
            return per_head(y, op["share"], shape)[..., : shape[-2], :] if "share" in op else y
        case "norm":
            x = f(get(op["x"]))
            x, W = (per_head(x, 1, shape) if "share" in op else x), get(op["W"])
            if op.get("channels"):
                return F.group_norm(x[None], 1, W, get(op["b"]), op["eps"])[0]
            if op.get("rms"):
                return F.rms_norm(x, W.shape, W, op["eps"] if op["eps"] is not None else 1.1920929e-7)
            return F.layer_norm(x, W.shape, W, get(op["b"]) if "b" in op else None, op["eps"])
        case "mean":
            return get(op["x"]).mean(0)
        case "activate":
            x = torch.atleast_2d(get(op["x"]))[op["row"]] if "row" in op else get(op["x"])
            return f(x) * (get(op["times"]) if "times" in op else 1)
        case "multiply":
            return get(op["x"]) * get(op["by"])
        case "combine":
            return f(sum((get(a) * (1 if b is None else get(b)) for a, b in op["terms"]), torch.zeros(())))
        case "blend":
            by = get(op["by"])
            return by * get(op["y"]) + (1 - by) * get(op["x"])
        case "gate":
            return get(op["by"]).sigmoid() * get(op["x"]).reshape(shape)
        case "largest":
            return get(op["x"]).unflatten(-1, (-1, 2)).amax(-1)
        case "before":
            return shift(op, get)
        case "rows":
            return torch.stack([evaluate(row, get, trace, shape[1:]) for row in op["of"]])
    return None


def evaluate(op: dict[str, Any], get: Callable[[str], Tensor], trace: Trace, shape: torch.Size) -> Tensor:
    """The tensor that an operation makes of its operands."""
    for part in evaluate_input, evaluate_attention, evaluate_layer:
        if (y := part(op, get, trace, shape)) is not None:
            return y
    raise AssertionError(f"no such operation: {op['does']}")


def check_sums(model: Model, trace: Trace, tolerance: float = 1e-5) -> dict[str, float]:
    """Recompute every tensor that has an operation: {name: error}, none of them above the tolerance."""
    known = weights(model)
    ops, _ = describe_trace(model, trace)

    def get(name: str) -> Tensor:
        t = known[name] if name.startswith("@") else trace[name]
        return t.detach().double()

    errors = {}
    for name, op in ops.items():
        want = trace[name].double()
        have = evaluate(op, get, trace, want.shape)
        have = have.reshape(want.shape) if have.numel() == want.numel() else have
        assert have.shape == want.shape, (name, op, have.shape, want.shape)
        scale = 1 + float(want.abs().max())
        errors[name] = float((have - want).abs().max()) / scale
    assert {name: e for name, e in errors.items() if not e <= tolerance} == {}
    return errors
