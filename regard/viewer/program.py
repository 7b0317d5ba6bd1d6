"""A model as a program of its own operations, which the engine of a saved page runs on any input.

A trace of one input shows the operation of each value. The order of operations, and the rows of each value on
other inputs, follow from the operations alone: this module knows no model classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.core.attention import causal_mask, window_mask
from regard.describe.texts import Op
from regard.describe.values import SIDES, operands
from regard.errors import UserError
from regard.runs.model import Model
from regard.tracing import Trace
from regard.tracing.names import attention_sides
from regard.viewer.sums import describe_run, describe_trace

Rows = str | int  # the side whose tokens have a row each, or a number of rows; "image" is one whole
IMAGE = "image"
COLUMNS = "columns"  # a side of recordings: patches, of which each recording has another number
GLOBALS = "globals"  # the side of a Longformer's queries of global tokens
ON_IMAGES = "pixel", "conv"
Step = dict[str, Any]  # an operation with the name, rows, dims, heads and width of the value that it makes


class Program:
    """The steps from an input to the outputs of a model, and the weights that they name."""

    def __init__(self, model: Model, trace: Trace):
        self.model, self.trace, self.description = model, trace, describe_run(model, trace)
        self.weights: dict[str, Tensor] = {}
        self.counts = {side: len(tokens) for side, tokens in trace.tokens.items()}
        for name in trace:
            if name.endswith(".q_global"):
                self.counts[GLOBALS] = trace[name].shape[1]
        self.ops = self._ops(describe_trace(model, trace)[0])
        if model.task.predicts == "place":
            self.ops["probabilities"] = {"does": "places", "x": "logits"}
        self.sides: dict[str, Rows] = {}
        self.hears = model.task.reads == "audio"
        if self.hears and len(trace["patches"]) != self.counts["text"]:  # a class token comes before them
            self.counts[COLUMNS] = len(trace["patches"])
        self.names = self._computable()
        if not {"logits", "vector"} & {*self.names}:
            self._refuse(next((name for name in trace if name not in self.names), "logits"))

    def _ops(self, sums: dict[str, Op]) -> dict[str, Op]:
        """The operation of each value, with those of masks and tables, which are not opened as sums."""
        ops: dict[str, Op] = {}
        modules = {value.name: value.module for value in self.description.values if value.module is not None}
        for name in self.trace:
            part, _, kind = name.rpartition(".")
            if kind in ("mask", "reason") and part in self.description.attentions:
                ops[name] = {"does": kind} | self._mask(self.description.attentions[part])
            elif name == "segment":
                ops[name] = {"does": "segment"}
            elif name == "pixels":
                ops[name] = {"does": "pixels"}
            elif name in sums:
                ops[name] = self._with_table(name, sums[name], modules.get(name))
        for op in ops.values():
            self.weights |= {
                w: self.description.weights[w] for w in operands(op) if w in self.description.weights
            }
        return ops

    def _with_table(self, name: str, op: Op, module: Any) -> Op:
        """Waves as the model's own table, which is rounded as torch does."""
        if op["does"] != "wave" or len(op["f"]) < 2:
            return op
        table = f"@{name}.table"
        self.description.weights[table] = module.vectors()
        return {"does": "look up", "W": table, "side": op["side"], "by": "position"}

    def _computable(self) -> list[str]:
        """The names of all values that can be computed from the known ones."""
        names = {name: operands(op) for name, op in self.ops.items()}
        known = names.keys() | self.weights.keys()
        while missing := [name for name, needs in names.items() if not needs <= known]:
            for name in missing:
                del names[name]
            known = names.keys() | self.weights.keys()
        return [name for name in self.trace if name in names]

    def _refuse(self, name: str) -> None:
        raise UserError(
            f"{name}: this model computes it in a way that no page can; save the page of an INPUT instead"
        )

    def rows(self, name: str) -> Rows:
        """The rows of a value: the side of its tokens, or their number."""
        if name not in self.sides:
            self.sides[name] = own_side(self.trace, name)  # in a loop, while it is requested again
            self.sides[name] = self._rows(name, self.ops[name])
        return self.sides[name]

    def _rows(self, name: str, op: Op) -> Rows:
        does, shape = op["does"], self.trace[name].shape
        if does in ("pixels", *ON_IMAGES) or op.get("whole"):
            return IMAGE
        if does in ("mask", "reason", "distance", "segment", "before"):
            return own_side(self.trace, name)
        if does == "rows":
            return len(op["of"])
        if name.endswith(".q_global"):
            return GLOBALS
        if self.hears and does == "patch":
            return COLUMNS if COLUMNS in self.counts else own_side(self.trace, name)
        if self.hears and name == "sum":
            return own_side(self.trace, name)
        if does in ("patch", "regions") or any(len(term) == 3 and term[2] for term in op.get("terms", [])):
            return len(self.trace[name])
        if "column" in op and len(shape) == 1:
            return 1
        if does == "mean" or "row" in op:
            return 1 if len(shape) == 1 or does != "same" else own_side(self.trace, name)
        if does in ("look up", "wave") and op.get("by") in (None, "position"):
            return op.get("rows") or op["side"]
        first = next(x for x in ordered_operands(op) if not x.startswith("@"))
        return self.rows(first)

    def steps(self) -> list[Step | list[Step]]:
        """The steps in an order in which they can be computed; a list of steps is a loop over the rows."""
        result: list[Step | list[Step]] = []
        for group in strong_components(self.names, self._needs):
            if len(group) > 1:
                in_row = strong_components(group, lambda name: self._needs_in_row(name, group))  # noqa: B023
                result.append([self._step(name) for (name,) in in_row])
            else:
                result.append(self._step(group[0]))
        return result

    def _needs(self, name: str) -> list[str]:
        return [x for x in ordered_operands(self.ops[name]) if not x.startswith("@")]

    def _needs_in_row(self, name: str, group: list[str]) -> list[str]:
        """The values of the same row that a value of a loop needs."""
        return [] if self.ops[name]["does"] == "before" else [x for x in self._needs(name) if x in group]

    def _step(self, name: str) -> Step:
        shape, rows = self.trace[name].shape, self.rows(name)
        about: Step = {"name": name, "rows": rows, "dims": len(shape), "width": shape[-1]}
        if rows != IMAGE:
            about["heads"] = shape[0] if len(shape) == 3 else 1
            count = self.counts[rows] if isinstance(rows, str) else rows
            if count != (shape[-2] if len(shape) > 1 else 1) or not self._has_plain_mask(name):
                self._refuse(name)
        return self.ops[name] | about

    def _has_plain_mask(self, name: str) -> bool:
        """Return whether a mask follows from the places of queries and keys alone, as usual."""
        op, mask = self.ops[name], self.trace[name]
        if op["does"] != "mask":
            return True
        T, S = mask.shape[-2:]
        expected = causal_mask(T, S) if op["causal"] else torch.ones(T, S, dtype=torch.bool)
        if "window" in op:
            expected &= window_mask(T, S, op["window"], op["globals"])
        return bool((mask.cpu().bool() == expected).all())

    def _mask(self, attention: Any) -> Op:
        """Describe the mask of an attention, besides padding."""
        op: Op = {"causal": bool(getattr(attention, "causal", False))}
        if getattr(attention, "window", None) is not None:
            op |= {"window": attention.window, "globals": self.counts.get(GLOBALS, attention.globals)}
        return op

    def globals(self) -> int | dict[str, int] | None:
        """How many first tokens of an input are global, with queries of their own; or the id before which
        all are, which ends a question."""
        if GLOBALS not in self.counts:
            return None
        task = self.model.task
        if task.predicts == "place" and task.end is not None:
            return {"before": task.end}
        return self.counts[GLOBALS]


def own_side(trace: Trace, name: str) -> str:
    """The side whose tokens are the rows of a value, by its name."""
    part, _, kind = name.rpartition(".")
    queries, keys = attention_sides(name)
    side = keys if kind in ("k", "v") and f"{part}.weights" in trace else queries
    if "text" in trace.tokens:
        return "text"
    return side if side != "text" else SIDES.get(name.split(".", maxsplit=1)[0], "target")


def ordered_operands(op: Op) -> list[str]:
    """The operands of a value; the ones that define its number of rows come first."""
    names: Any = next((op[key] for key in ("x", "q", "w", "terms", "of") if key in op), [])
    flat = [names] if isinstance(names, str) else [n[0] if isinstance(n, list) else n for n in names]
    first = [name for name in flat if isinstance(name, str)]
    return [*first, *sorted(operands(op) - set(first))]


def strong_components(names: list[str], needs: Callable[[str], list[str]]) -> list[list[str]]:
    """Groups of names that depend on each other, each after its dependencies: Tarjan 1972."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in needs(name):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            groups.append(stack[stack.index(name) :])
            del stack[stack.index(name) :]

    for name in names:
        if name not in index:
            visit(name)
    return groups
