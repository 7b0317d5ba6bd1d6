"""Direct logit attribution: how much each part of a model adds to the logit of a token.

Every block adds to the residual stream, and the logits are a linear function of it once the scale of the
final norm is known: a logit is the sum of what the embedding, each head and each feed-forward layer add to it
(Elhage et al. 2021). The effect of a part through later parts counts as theirs.

Shapes: D width, H heads, G heads that keys and values have, T queries, S keys, d width of a head.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from regard.describe.texts import Op
from regard.errors import UserError
from regard.runs.model import Model
from regard.tracing import Trace, trace_input
from regard.tracing.names import attention_sides, layer_index
from regard.viewer.sums import describe_trace, weights

POST_NORM = "its norms come after its layers (post-norm), so that no part is added to the logits as it is"


class Contribution(TypedDict):
    """The contribution of a part to a logit; biases have the name `bias`."""

    name: str  # of an attention, or of another tensor
    head: int | None
    value: float


class Attribution(TypedDict):
    token: int
    row: int
    logit: float  # as the model computed it
    total: float  # the sum of the parts
    parts: list[Contribution]
    words: dict[str, list[float]]  # of the heads: by the token that they read, for each side


class Part(NamedTuple):
    """A value that is added to the residual stream, and the steps from there to the logits."""

    name: str
    steps: tuple[Op, ...]  # the one nearest to the logits first
    heads: str | None = None  # the heads that the value is computed from


def attribute(model: Model, input: Any, token: int | None = None, row: int | None = None) -> Attribution:
    """The contribution of each part of a pre-norm model to the logit of a token at a row of the logits; by
    default, of the most likely token at the last row."""
    trace = trace_input(model, model.open_input(input))
    ops, _ = describe_trace(model, trace)
    shape = torch.atleast_2d(trace["logits"]).shape if "logits" in trace else (0, 0)
    for name, value, count in (("row", row, shape[0]), ("token", token, shape[1])):
        if value is not None and not 0 <= value < count:
            raise UserError(f"{name}={value}: there are 0 to {count - 1}")
    return attribute_logit(trace, ops, weights(model), row, token)


def list_parts(ops: Mapping[str, Op]) -> list[Part]:
    """The parts whose sum is the logits; raises an error if the logits are not such a sum."""
    last = ops.get("logits", {})
    if last.get("does") != "linear" or not isinstance(last.get("x"), str):
        raise refuse("they are not a linear function of its last layer")
    row = {"does": "same", "x": last["x"], "row": last.get("row")}
    parts = list(walk_back(ops, last["x"], (row,) if isinstance(row["row"], int) else ()))
    if all(part.heads is None for part in parts):
        raise refuse("no residual stream that heads add to leads to them")
    return parts


def refuse(why: str) -> UserError:
    return UserError(f"the logits of this model can't be split into its parts: {why}")


def walk_back(ops: Mapping[str, Op], name: str, steps: tuple[Op, ...]) -> Iterator[Part]:
    """The parts that a value is the sum of; `steps` lead from it to the logits."""
    op = ops.get(name, {})
    match op.get("does"):
        case "same" if "column" not in op and "share" not in op:
            yield from walk_back(ops, op["x"], (*steps, op) if "row" in op else steps)
        case "scale":
            yield from walk_back(ops, op["x"], (*steps, op))
        case "add":
            for term, factor, first in op["terms"]:
                yield from walk_back(ops, term, (*steps, {"does": "term", "by": factor, "first": first}))
        case "norm":
            yield from walk_norm(ops, name, steps)
        case "linear" if ops.get(str(op["x"]), {}).get("does") == "join" and "f" not in op:
            yield Part(name, steps, heads=ops[op["x"]]["x"])
            if "b" in op:
                yield Part(op["b"], steps)
        case _:
            yield Part(name, steps)


def walk_norm(ops: Mapping[str, Op], name: str, steps: tuple[Op, ...]) -> Iterator[Part]:
    """A norm is linear once its scale is known: the final one, or one of what a layer adds."""
    op, layer = ops[name], layer_index(name)
    if op.get("f") or op.get("whole"):
        raise refuse(f"{name} stands before them")
    normed = any(step["does"] == "norm" for step in steps)
    if layer is not None and ops.get(op["x"], {}).get("does") != "linear":
        raise refuse(POST_NORM)
    if layer is None and normed:  # of the embedding
        yield Part(name, steps)
        return
    yield from walk_back(ops, op["x"], (*steps, op))
    if "b" in op:
        yield Part(op["b"], steps)


@torch.no_grad()
def attribute_logit(
    trace: Trace, ops: Mapping[str, Op], weights: Mapping[str, Tensor], row: int | None, token: int | None
) -> Attribution:
    """The contribution of each part to the logit of a token at a row."""
    parts, last = list_parts(ops), ops["logits"]
    logits = torch.atleast_2d(trace["logits"])
    row = len(logits) - 1 if row is None else row
    token = int(logits[row].argmax()) if token is None else token
    values, words = dict[tuple[str, int | None], float](), dict[str, Tensor]()
    if "b" in last:
        values["bias", None] = float(weights[last["b"]][token])
    for part in parts:
        g = weights[last["W"]][token].double()  # (D,) the derivative of the logit by each number
        g, at = follow(trace, weights, part, g, row)
        for head, value in enumerate(head_values(trace, ops, weights, part, g, at, words)):
            values[part.name.rpartition(".")[0], head] = value
        x = weights[part.name] if part.name.startswith("@") else trace[part.name]
        if part.heads is None and (x.ndim == 1 or 0 <= at < len(x)):  # it may have no such row
            name = "bias" if part.name.endswith("bias") else part.name
            vector = x if x.ndim == 1 else x[at]
            values[name, None] = values.get((name, None), 0.0) + float(vector.double() @ g)
    listed: list[Contribution] = [{"name": n, "head": h, "value": v} for (n, h), v in values.items()]
    return {
        "token": token,
        "row": row,
        "logit": float(logits[row, token]),
        "total": sum(values.values()),
        "parts": listed,
        "words": {side: each.tolist() for side, each in words.items()},
    }


def follow(
    trace: Trace, weights: Mapping[str, Tensor], part: Part, g: Tensor, row: int
) -> tuple[Tensor, int]:
    """The derivative of the logit by each number of a part (D,), and the part's row."""
    for step in part.steps:
        match step["does"]:
            case "same":
                row = step["row"] % len(trace[step["x"]])
            case "scale":
                g = g * step["by"]
            case "term":
                g, row = g * step["by"], row - step["first"]
            case "norm":
                x = torch.atleast_2d(trace[step["x"]])[row].double()  # (D,)
                centred = x if step.get("rms") else x - x.mean()
                eps = torch.finfo(trace[step["x"]].dtype).eps if step.get("eps") is None else step["eps"]
                g = g * weights[step["W"]].double() / (centred.square().mean() + eps).sqrt()
                g = g if step.get("rms") else g - g.mean()
    return g, row


def head_values(
    trace: Trace,
    ops: Mapping[str, Op],
    weights: Mapping[str, Tensor],
    part: Part,
    g: Tensor,
    row: int,
    words: dict[str, Tensor],
) -> list[float]:
    """The contribution of each head; its parts by the keys that it was read from are added to `words`."""
    if part.heads is None:
        return []
    heads = trace[part.heads][:, row].double()  # (H, d)
    u = (g @ weights[ops[part.name]["W"]].double()).view_as(heads)  # (H, d) through the output projection
    average = ops.get(part.heads, {})
    if average.get("does") == "average" and "global" not in average:
        w, v = trace[average["w"]][:, row].double(), trace[average["v"]].double()  # (H, S), (G, S, d)
        v = v.repeat_interleave(len(w) // len(v), dim=0)  # (H, S, d)
        by_key = (w * torch.einsum("hsd,hd->hs", v, u)).sum(0)  # (S,)
        side = attention_sides(part.heads)[1]
        words[side] = words.get(side, 0) + by_key.cpu()
    return (heads * u).sum(-1).tolist()
