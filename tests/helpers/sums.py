"""The operations of `regard/describe.py`, for whole tensors, in float64, apart from the page's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.runs.model import Model
from regard.tracing import Trace
from regard.viewer.sums import sums, weights

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def per_head(x: Tensor, share: int, shape: torch.Size) -> Tensor:
    """One value for all heads (T, H d), or one per head (H, T, d), as (H, T, d)."""
    if len(shape) == 3:
        x = x if x.ndim == 3 else x.unflatten(-1, (-1, shape[-1])).transpose(0, 1)
        return x.repeat_interleave(share, 0) if len(x) < shape[0] else x
    return x


def evaluate(op: dict[str, Any], get: Callable[[str], Tensor], trace: Trace, shape: torch.Size) -> Tensor:
    """Compute an operation from its operands."""
    f = FUNCTIONS.get(op.get("f", ""), lambda x: x)

    def side_by_side(x: str | list[str]) -> Tensor:
        return torch.cat([get(name) for name in x], -1) if isinstance(x, list) else get(x)

    match op["does"]:
        case "look up":
            return get(op["W"])[torch.tensor(trace.ids[op["side"]][-shape[0] :])]
        case "add":
            total = torch.zeros(shape, dtype=torch.float64)
            for name, times, first in op["terms"]:
                t = get(name)
                total[first : first + len(t)] += times * t
            return total
        case "same":
            x = get(op["x"])
            return x[op["row"]] if "row" in op else per_head(x, op.get("share", 1), shape)
        case "concat":
            return side_by_side(op["x"])
        case "linear":
            x = side_by_side(op["x"])
            x = x[op["row"]] if "row" in op else x
            y = f(F.linear(x, get(op["W"]), get(op["b"]) if "b" in op else None))
            return per_head(y, op["share"], shape) if "share" in op else y
        case "turn":
            x, cos, sin = per_head(get(op["x"]), op.get("share", 1), shape), get(op["cos"]), get(op["sin"])
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        case "norm":
            x = f(get(op["x"]))
            x, W = (per_head(x, 1, shape) if "share" in op else x), get(op["W"])
            if op.get("rms"):
                return F.rms_norm(x, W.shape, W, op["eps"] if op["eps"] is not None else 1.1920929e-7)
            return F.layer_norm(x, W.shape, W, get(op["b"]) if "b" in op else None, op["eps"])
        case "dot":
            return get(op["q"]) @ get(op["k"]).mT
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
            return get(op["w"]) @ get(op["v"])
        case "join":
            return get(op["x"]).transpose(0, 1).flatten(1)
        case "activate":
            return f(get(op["x"])) * (get(op["times"]) if "times" in op else 1)
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
    raise AssertionError(f"no such operation: {op['does']}")


def check_sums(model: Model, trace: Trace, tolerance: float = 1e-5) -> dict[str, float]:
    """Recompute every tensor that has an operation: {name: error}, none of them above the tolerance."""
    known = weights(model)
    ops = sums(model, trace)

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
