"""What if: repeat a run with changes, and measure how much the answer changes.

Shapes: H heads, T queries, S keys, V vocabulary or classes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.describe.watch import evaluating
from regard.errors import UserError
from regard.runs.model import Model
from regard.tasks.reading import Reading
from regard.tasks.request import Prompt
from regard.tracing import Trace, limits, trace_input
from regard.tracing.intervene import answer_rows, change, changeable, measure_heads, rank_heads
from regard.tracing.names import layer_index
from regard.tracing.reading import (
    is_ids,
    name_outputs,
    read_input,
    read_source,
    source_and_target,
    source_prompt,
    write_target,
)
from regard.tracing.record import record

TOP = 12  # most probable tokens before, and after
MAX_CHANGES = 32
MAX_WEIGHT = 1e6  # of an attention weight before the weights are scaled to add up to 1
PATCHABLE = ".output", ".attn.residual", ".cross.residual", ".embed", ".input"  # ends of names
NO_ANSWER = "this model's answer is not a distribution over words or classes, so changes can't be measured"


class Run(Protocol):
    """The interface of a run: the page's `Session`."""

    model: Model
    input: Any
    full_input: Any  # the input, with the answer if one was given
    trace: Trace

    @property
    def writer(self) -> Any: ...
    def outputs(self) -> Mapping[str, object] | None: ...
    def side(self, name: str) -> str | None: ...
    def words(self, ids: list[int]) -> list[str]: ...
    def decode(self, ids: list[int]) -> str: ...


class RowEdits:
    """Edits rows of a tensor (..., T, S). While a decoder generates, calls continue with the next rows."""

    def __init__(self) -> None:
        self.edits: list[tuple[int | None, Callable[[Tensor], None]]] = []
        self.next_row = 0

    def __call__(self, x: Tensor) -> Tensor:
        x, first = x.clone(), self.next_row
        self.next_row += x.shape[-2]
        for row, edit in self.edits:
            if row is None:
                edit(x)
            elif first <= row < self.next_row:
                edit(x[..., row - first, :])
        return x


class WhatIf:
    """A run that can be repeated with changes."""

    def __init__(self, shown: Run):
        if shown.outputs() is None:
            raise UserError(NO_ANSWER)
        self.shown, self.model = shown, shown.model
        with evaluating(self.model.model), torch.no_grad():
            self.reading = read_input(self.model, shown.full_input)
            self.before = self._logits()
            self.text = self._generate()
        self.rows = answer_rows(self.model, self.reading.ids.get("text", []), shown.trace["logits"])

    def _logits(self) -> Tensor:
        """The logits (T, V) of the answer."""
        assert self.reading.run is not None
        logits = name_outputs(self.model, self.reading, self.reading.run())["logits"]
        return (logits if logits.ndim == 2 else logits[None]).float().cpu()

    def _generate(self, changes: "Plan | None" = None) -> str | None:
        """The answer that an encoder-decoder generates."""
        if "written" not in self.reading.ids:
            return None
        prompt = self._prompt(self.shown.input)
        with nullcontext() if changes is None else changes.applied():
            return self.shown.decode(write_target(self.model, prompt))

    @property
    def patchable(self) -> list[str]:
        """The parts whose output, a vector for each token, can come from another input."""
        known = changeable(self.model.model)
        sides, parts = self.shown.trace.tokens, []
        for name, t in self.shown.trace.tensors.items():
            per_token = t.ndim == 2 and len(t) == len(sides.get(self.shown.side(name) or "", []))
            if per_token and name in known and f".{name}".endswith(PATCHABLE):
                parts.append(name)
        return parts

    def trace_other(self, input: Any, part: str) -> Tensor:
        """A tensor of the run on another input, with the same answer."""
        module, n = self.model.model, layer_index(part)
        layers = None if n is None else [n]
        with evaluating(module), torch.no_grad():
            other = self._pair(input) if "target" in self.reading.ids else read_input(self.model, input)
            lengths = {side: len(tokens) for side, tokens in other.tokens.items()}
            limits.check_size(module, lengths, layers, 0, limits.MAX_NUMBERS)
            with record(module, layers) as recording:
                assert other.run is not None
                other.run()
        return recording.tensors()[part]

    def _pair(self, input: Any) -> Reading:
        """Another source, with the same target."""
        prompt, target = self._prompt(input), self.reading.ids["target"]
        inputs, other = source_and_target(self.model.model, prompt, target), read_source(self.model, prompt)
        other.tokens["target"], other.run = self.reading.tokens["target"], lambda: self.model.model(*inputs)
        return other

    def _prompt(self, input: Any) -> Prompt:
        source = input if is_ids(input) else self.model.task.split_target(input)[0]
        return source_prompt(self.model, source)

    def changed(self, changes: Sequence[dict[str, Any]], row: int | None = None) -> dict[str, Any]:
        """The answer before and after: the KL divergence at every row of the logits, and the most probable
        tokens at one row, by default the one that changes most."""
        plan = Plan(self, changes)
        with evaluating(self.model.model), torch.no_grad():
            with plan.applied():
                after = self._logits()
            text = self._generate(plan) if plan.writes else None
        before = self.before.log_softmax(-1)
        kl = (before.exp() * (before - after.log_softmax(-1))).sum(-1)  # (T,)
        largest = self.rows[int(kl[self.rows].nan_to_num(torch.inf).argmax())]
        at = largest if row is None else min(max(0, row), len(after) - 1)
        return {
            "row": at,
            "top": top_tokens(self.shown, self.before[at], after[at]),
            "kl": finite_or_none(kl),
            "answer": self.rows,
            "mean": float(kl[self.rows].mean()) if bool(kl.isfinite().all()) else None,
            "text": {"before": self.text, "after": text},
            "patchable": self.patchable,
        }

    def _problem(self, changes: Sequence[dict[str, Any]]) -> str | None:
        """The problem with these changes, if there is one."""
        try:
            with evaluating(self.model.model), torch.no_grad(), Plan(self, changes).applied():
                self._logits()
        except UserError as error:
            return str(error)
        return None

    def check(self, changes: Sequence[dict[str, Any] | str]) -> tuple[list[dict[str, Any]], list[str | None]]:
        """Return the possible changes, and the problem of each one; a text is a known problem."""
        parsed = [one for one in changes if not isinstance(one, str)]
        if len(parsed) == len(changes) and self._problem(parsed) is None:
            return parsed, [None] * len(parsed)
        problems = [one if isinstance(one, str) else self._problem([one]) for one in changes]
        pairs = zip(changes, problems, strict=True)
        return [one for one, problem in pairs if problem is None and not isinstance(one, str)], problems

    def changed_if_valid(
        self, changes: Sequence[dict[str, Any] | str], row: int | None = None
    ) -> dict[str, Any]:
        """`changed` with the possible changes; `problems` has the errors of the others."""
        valid, problems = self.check(changes)
        return self.changed(valid, row) | {"problems": problems}

    def trace_changed(self, changes: Sequence[dict[str, Any] | str], layers: list[int] | None) -> Trace:
        """The whole trace of the run with the possible changes."""
        plan = Plan(self, self.check(changes)[0])
        with plan.applied():
            return trace_input(self.model, self.shown.full_input, layers)

    def each_effect(self) -> Iterator[dict[str, Any]]:
        """Yield for each head how much the answer changes without it."""
        return (asdict(effect) for effect in measure_heads(self.model, self.shown.full_input))

    def ranked(self) -> list[dict[str, Any]]:
        """All heads, ordered by how much the answer changes without them."""
        return [asdict(effect) for effect in rank_heads(self.model, self.shown.full_input)]


class Plan:
    """Changes as the page describes them, checked, as arguments of `change`."""

    def __init__(self, of: WhatIf, changes: Sequence[dict[str, Any]]):
        if len(changes) > MAX_CHANGES:
            raise UserError(f"{len(changes)} changes at once; give at most {MAX_CHANGES}")
        self.of, self.changes = of, changes
        self.taken: dict[int, Tensor] = {}
        for i, one in enumerate(changes):
            if one.get("kind") == "take":
                self.taken[i] = self._taken(one)

    @property
    def writes(self) -> bool:
        """Return whether the model can generate its own answer: not with a part of another one's decoder."""
        taken = (self.changes[i]["part"] for i in self.taken)
        return not any(self.of.shown.side(part) == "target" for part in taken)

    def _taken(self, one: dict[str, Any]) -> Tensor:
        """The output of a part on another input."""
        part, other, shown = one.get("part"), one.get("input"), self.of.shown
        if part not in self.of.patchable:
            raise UserError(f"{str(part)[:100]}: not a part whose output can come from another input")
        if other is None:
            raise UserError("input: give the other input")
        tensor = self.of.trace_other(other, str(part))
        here, there = shown.trace[str(part)].shape, tensor.shape
        if one.get("at") is None and here != there:
            lengths = f"the other input has {there[0]} tokens, this one {here[0]}"
            raise UserError(f"{lengths}; take one token's vector, or give as many tokens")
        if one.get("at") is not None and not 0 <= number(one, "at") < min(len(tensor), here[0]):
            raise UserError(f"at={one['at']}: both inputs have tokens 0 to {min(len(tensor), here[0]) - 1}")
        return tensor

    def applied(self) -> AbstractContextManager[None]:
        """The context manager in which one run has these changes."""
        rows: dict[str, RowEdits] = {}
        silence: dict[str, list[int]] = {}
        hide: list[int] = []
        known = set(self.of.shown.trace.attentions)
        for i, one in enumerate(self.changes):
            kind, part = one.get("kind"), str(one.get("part"))
            if kind in ("silence", "weights") and part not in known:
                raise UserError(f"{part[:100]}: not an attention of this model")
            if kind == "silence":
                silence.setdefault(part, []).append(number(one, "head"))
            elif kind == "weights":
                edit = self._weights(part, one)
                rows.setdefault(f"{part}.weights", RowEdits()).edits.append((number(one, "query"), edit))
            elif kind == "hide":
                hide.append(number(one, "token"))
            elif kind == "take":
                at = None if one.get("at") is None else number(one, "at")
                new = self.taken[i] if at is None else self.taken[i][at]
                rows.setdefault(part, RowEdits()).edits.append((at, partial(copy_into, new)))
            else:
                raise UserError(
                    f"{str(kind)[:100]}: no such change; there are silence, weights, hide and take"
                )
        return change(self.of.model, dict(rows), silence=silence, hide=hide)

    def _weights(self, part: str, one: dict[str, Any]) -> Callable[[Tensor], None]:
        """The function that replaces one head's row of weights (H, S) at a query."""
        H, T, S = self.of.shown.trace[f"{part}.weights"].shape
        head, query, to = number(one, "head"), number(one, "query"), one.get("to")
        if head >= H or query >= T:
            raise UserError(f"{part}: there are heads 0 to {H - 1} and queries 0 to {T - 1}")
        if isinstance(to, list):
            weights = [float(x) for x in to if type(x) in (int, float) and 0 <= x <= MAX_WEIGHT]
            if len(weights) != len(to) or len(weights) != S or not sum(weights):
                raise UserError(f"{part}: give {S} weights, none below 0 or above {MAX_WEIGHT:g}, not all 0")
            replacement: Tensor | None = torch.tensor(weights) / sum(weights)  # (S,)
        elif to == "even":
            replacement = None
        else:
            if (key := number(one, "to")) >= S:
                raise UserError(f"{part}: there are keys 0 to {S - 1}, not {key}")
            replacement = torch.eye(S)[key]  # (S,)
            if (share := one.get("weight")) is not None:
                if type(share) not in (int, float) or not 0 <= share <= 1:
                    raise UserError(f"{part}: weight={str(share)[:20]}; give a weight from 0 to 1")
                return partial(set_weight, head=head, key=key, weight=share)

        def put(x: Tensor) -> None:
            row = x[head]
            if replacement is None:
                row.copy_((row > 0) / (row > 0).sum().clamp(min=1))
            else:
                new = replacement[: len(row)].to(row)  # later tokens are not generated yet
                row.copy_(F.pad(new, (0, len(row) - len(new))))

        return put


def copy_into(new: Tensor, x: Tensor) -> None:
    x.copy_(new.to(x))


def set_weight(x: Tensor, head: int, key: int, weight: float) -> None:
    """Set the weight of one key; the others of the row (H, S) share the rest as before."""
    row = x[head]
    if key < len(row):  # later tokens are not generated yet
        row[key] = 0
        row.mul_((1 - weight) / row.sum().clamp(min=1e-30))
        row[key] = weight


def number(one: dict[str, Any], name: str) -> int:
    """A field of a change that must be a number from 0 up."""
    if type(value := one.get(name)) is not int or not 0 <= value < 2**31:
        raise UserError(f"{name}={str(value)[:20]}: give a whole number from 0 up")
    return value


def finite_or_none(x: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in x.tolist()]


def top_tokens(shown: Run, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
    """The most probable tokens of two rows of logits (V,), with their logits and probabilities in both."""
    p, q = before.softmax(-1), after.softmax(-1)
    best = torch.cat([x.topk(min(TOP, len(x))).indices for x in (p, q)]).unique()
    best = best[torch.maximum(p, q)[best].argsort(descending=True, stable=True)]
    labels = shown.trace.tokens.get("label")
    ids = best.tolist()
    words = [labels[id] for id in ids] if labels else shown.words(ids)
    columns = {"before": p, "after": q, "logit_before": before, "logit_after": after}
    return [
        {"id": id, "word": word} | {name: float(x[id]) for name, x in columns.items()}
        for id, word in zip(ids, words, strict=True)
    ]


def compare_runs(one: Run, other: Run, row: int | None, other_row: int | None) -> dict[str, Any]:
    """The predictions of two runs at a row of each: by default at the answer, or at its beginning."""
    if one.outputs() is None or other.outputs() is None:
        raise UserError(NO_ANSWER)
    known = [s.trace.tokens.get("label") or s.writer.digest for s in (one, other)]
    if known[0] != known[1]:
        raise UserError(
            "these two models have other words or classes, so their predictions can't be compared"
        )
    chosen, rows = [], []
    for shown, at in ((one, row), (other, other_row)):
        logits = shown.trace["logits"].float().cpu()
        logits = logits if logits.ndim == 2 else logits[None]
        first = answer_rows(shown.model, shown.trace.ids.get("text", []), shown.trace["logits"])[0]
        rows.append(first if at is None else min(max(0, at), len(logits) - 1))
        chosen.append(logits[rows[-1]])
    p, q = (x.log_softmax(-1) for x in chosen)
    kl = finite_or_none((p.exp() * (p - q)).sum()[None])[0]
    return {"rows": rows, "top": top_tokens(one, *chosen), "kl": kl}
