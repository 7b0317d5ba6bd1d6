"""What if: a run again with some things changed, and how much of the answer that changes.

Shapes: H heads, T tokens that look, S that are looked at, V vocabulary or classes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.change import change, changeable, effects, places
from regard.errors import Mistake
from regard.run import Model
from regard.tasks import Classify
from regard.trace import Trace, layer, named
from regard.trace.collecting import collected, evaluating
from regard.trace.reading import ended, on_device, pair, read, sourced

SHOWN = 12  # tokens that were likeliest before, and those that are so now
MOST = 32  # changes at once
WHOLE = "output", "attn.residual", "cross.residual", "embed", "input"  # what can be taken from another input
NO_ANSWER = "this model's answer is no choice of words or classes; what changes in it can't be told"


class Run(Protocol):
    """What has to be known of a run: the page's `Shown`."""

    model: Model
    given: Any
    whole: Any  # with its answer, if that was given
    trace: Trace

    @property
    def writer(self) -> Any: ...
    def outputs(self) -> dict[str, Any] | None: ...
    def side(self, name: str) -> str | None: ...
    def words(self, ids: list[int]) -> list[str]: ...
    def said(self, ids: list[int]) -> str: ...


class Rows:
    """Some rows of a tensor (..., T, S) put anew; of a decoder that goes on writing, each has its turn."""

    def __init__(self) -> None:
        self.edits: list[tuple[int | None, Callable[[Tensor], None]]] = []
        self.seen = 0

    def __call__(self, x: Tensor) -> Tensor:
        x, first = x.clone(), self.seen
        self.seen += x.shape[-2]
        for row, put in self.edits:
            if row is None:
                put(x)
            elif first <= row < self.seen:
                put(x[..., row - first, :])
        return x


class WhatIf:
    """A run that can be had again, changed."""

    def __init__(self, shown: Run):
        if shown.outputs() is None:
            raise Mistake(NO_ANSWER)
        self.shown, self.model = shown, shown.model
        with evaluating(self.model.model), torch.no_grad():
            self.reading = read(self.model, shown.whole)
            self.before = self._logits()
            self.text = self._said()
        self.rows = places(self.model, self.reading.ids.get("text", []), shown.trace["logits"])

    def _logits(self) -> Tensor:
        """(T, V) of the answer as it stands."""
        assert self.reading.run is not None
        logits = ended(self.model, self.reading, self.reading.run())["logits"]
        return (logits if logits.ndim == 2 else logits[None]).float().cpu()

    def _said(self, changes: "Plan | None" = None) -> str | None:
        """What an encoder-decoder writes now of its own accord."""
        if "written" not in self.reading.ids:
            return None
        task, given = self.model.task, self.shown.given
        _, _, written = sourced(self.model, given if isinstance(task, Classify) else pair(given)[0])
        if changes is None:
            return self.shown.said(written())
        with changes.made():
            return self.shown.said(written())

    @property
    def patchable(self) -> list[str]:
        """Parts whose output can be another input's, a vector for each token."""
        known = changeable(named(self.model.model))
        sides, found = self.shown.trace.tokens, []
        for name, t in self.shown.trace.tensors.items():
            whole = t.ndim == 2 and len(t) == len(sides.get(self.shown.side(name) or "", []))
            if whole and name in known and name.endswith(WHOLE):
                found.append(name)
        return found

    def other(self, given: Any, part: str) -> Tensor:
        """A tensor of the run on another input, with the same answer."""
        module, ids = self.model.model, self.reading.ids
        n = layer(part)
        with evaluating(module), torch.no_grad():
            run = self._pair(given, ids["target"]) if "target" in ids else read(self.model, given).run
            with collected(module, None if n is None else [n]) as found:
                assert run is not None
                run()
        return found.tensors()[part]

    def _pair(self, given: Any, target: list[int]) -> Callable[[], Tensor]:
        source, _, _ = sourced(self.model, given)
        first, second = on_device(self.model.model, [] if isinstance(source, Tensor) else source, target)
        first = source[None].to(second.device) if isinstance(source, Tensor) else first
        return lambda: self.model.model(first, second)

    def changed(self, changes: Sequence[dict[str, Any]], row: int | None = None) -> dict[str, Any]:
        """The answer before and after: how far apart both are at every row of the logits, and both at one; at
        that which changes most, if none is given."""
        plan = Plan(self, changes)
        with evaluating(self.model.model), torch.no_grad():
            with plan.made():
                after = self._logits()
            text = self._said(plan) if plan.writes else None
        before = self.before.log_softmax(-1)
        kl = (before.exp() * (before - after.log_softmax(-1))).sum(-1)  # (T,)
        most = self.rows[int(kl[self.rows].nan_to_num(torch.inf).argmax())]
        at = most if row is None else min(max(0, row), len(after) - 1)
        return {
            "row": at,
            "top": versus(self.shown, self.before[at], after[at]),
            "kl": finite(kl),
            "answer": self.rows,
            "mean": float(kl[self.rows].mean()) if bool(kl.isfinite().all()) else None,
            "text": {"before": self.text, "after": text},
            "patchable": self.patchable,
        }

    def ranked(self) -> list[dict[str, Any]]:
        """All heads, those first whose silence changes the answer most."""
        return [asdict(effect) for effect in effects(self.model, self.shown.whole)]


class Plan:
    """Changes as a page tells them, in the words of `change`."""

    def __init__(self, of: WhatIf, changes: Sequence[dict[str, Any]]):
        if len(changes) > MOST:
            raise Mistake(f"{len(changes)} changes at once; up to {MOST} are made")
        self.of, self.changes = of, changes
        self.taken: dict[int, Tensor] = {}
        for i, one in enumerate(changes):
            if one.get("kind") == "take":
                self.taken[i] = self._taken(one)

    @property
    def writes(self) -> bool:
        """Can the model still write its own answer? Not with a part that is made for another one's words."""
        taken = (self.changes[i]["part"] for i in self.taken)
        return not any(self.of.shown.side(part) == "target" for part in taken)

    def _taken(self, one: dict[str, Any]) -> Tensor:
        """A part's output from another input."""
        part, other, shown = one.get("part"), one.get("input"), self.of.shown
        if part not in self.of.patchable:
            raise Mistake(f"{str(part)[:100]}: no part whose output can be taken from another input")
        if other is None:
            raise Mistake("input: give the other input to take it from")
        found = self.of.other(other, str(part))
        here, there = shown.trace[str(part)].shape, found.shape
        if one.get("at") is None and here != there:
            many = f"the other input has {there[0]} tokens, this one {here[0]}"
            raise Mistake(f"{many}; take one token's vector, or give as many")
        if one.get("at") is not None and not 0 <= number(one, "at") < min(len(found), here[0]):
            raise Mistake(f"at={one['at']}: both inputs have tokens 0 to {min(len(found), here[0]) - 1}")
        return found

    def made(self) -> Any:
        """For one run: `change` as it is told."""
        rows: dict[str, Rows] = {}
        silence: dict[str, list[int]] = {}
        hide: list[int] = []
        known = set(self.of.shown.trace.attentions)
        for i, one in enumerate(self.changes):
            kind, part = one.get("kind"), str(one.get("part"))
            if kind in ("silence", "weights") and part not in known:
                raise Mistake(f"{part[:100]}: no attention of this model")
            if kind == "silence":
                silence.setdefault(part, []).append(number(one, "head"))
            elif kind == "weights":
                edit = self._weights(part, one)
                rows.setdefault(f"{part}.weights", Rows()).edits.append((number(one, "query"), edit))
            elif kind == "hide":
                hide.append(number(one, "token"))
            elif kind == "take":
                at = None if one.get("at") is None else number(one, "at")
                new = self.taken[i] if at is None else self.taken[i][at]
                rows.setdefault(part, Rows()).edits.append((at, partial(copied, new)))
            else:
                raise Mistake(f"{str(kind)[:100]}: no such change; there are silence, weights, hide and take")
        return change(self.of.model, dict(rows), silence=silence, hide=hide)

    def _weights(self, part: str, one: dict[str, Any]) -> Callable[[Tensor], None]:
        """What puts new weights (H, S) in the place of one head's at a query."""
        H, T, S = self.of.shown.trace[f"{part}.weights"].shape
        head, query, to = number(one, "head"), number(one, "query"), one.get("to")
        if head >= H or query >= T:
            raise Mistake(f"{part}: there are heads 0 to {H - 1} and queries 0 to {T - 1}")
        if isinstance(to, list):
            given = [float(x) for x in to if type(x) in (int, float) and math.isfinite(x) and x >= 0]
            if len(given) != len(to) or len(given) != S or not sum(given):
                raise Mistake(f"{part}: give {S} weights, none below 0 and not all 0")
            fresh: Tensor | None = torch.tensor(given) / sum(given)  # (S,)
        elif to == "even":
            fresh = None
        else:
            if (key := number(one, "to")) >= S:
                raise Mistake(f"{part}: there are keys 0 to {S - 1}, not {key}")
            fresh = torch.eye(S)[key]  # (S,)

        def put(x: Tensor) -> None:
            row = x[head]
            if fresh is None:
                row.copy_((row > 0) / (row > 0).sum().clamp(min=1))
            else:
                new = fresh[: len(row)].to(row)  # what is written later can't be looked at yet
                row.copy_(F.pad(new, (0, len(row) - len(new))))

        return put


def copied(new: Tensor, x: Tensor) -> None:
    x.copy_(new.to(x))


def number(one: dict[str, Any], name: str) -> int:
    if type(found := one.get(name)) is not int or found < 0:
        raise Mistake(f"{name}={str(found)[:20]}: give a whole number from 0 up")
    return found


def finite(x: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in x.tolist()]


def versus(shown: Run, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
    """The likeliest of two rows of logits (V,), with both their logits and probabilities."""
    p, q = before.softmax(-1), after.softmax(-1)
    best = torch.cat([x.topk(min(SHOWN, len(x))).indices for x in (p, q)]).unique()
    best = best[torch.maximum(p, q)[best].argsort(descending=True, stable=True)]
    labels = shown.trace.tokens.get("label")
    ids = best.tolist()
    words = [labels[id] for id in ids] if labels else shown.words(ids)
    columns = {"before": p, "after": q, "logit_before": before, "logit_after": after}
    return [
        {"id": id, "word": word} | {name: float(x[id]) for name, x in columns.items()}
        for id, word in zip(ids, words, strict=True)
    ]


def compared(one: Run, other: Run, row: int | None, other_row: int | None) -> dict[str, Any]:
    """What two runs expect, at a row of each: by default where the answer is, or begins."""
    if one.outputs() is None or other.outputs() is None:
        raise Mistake(NO_ANSWER)
    known = [s.trace.tokens.get("label") or s.writer.digest for s in (one, other)]
    if known[0] != known[1]:
        raise Mistake("these two have other words or classes; what they expect can't be set side by side")
    found, rows = [], []
    for shown, at in ((one, row), (other, other_row)):
        logits = shown.trace["logits"].float().cpu()
        logits = logits if logits.ndim == 2 else logits[None]
        first = places(shown.model, shown.trace.ids.get("text", []), shown.trace["logits"])[0]
        rows.append(first if at is None else min(max(0, at), len(logits) - 1))
        found.append(logits[rows[-1]])
    p, q = (x.log_softmax(-1) for x in found)
    kl = finite((p.exp() * (p - q)).sum()[None])[0]
    return {"rows": rows, "top": versus(one, *found), "kl": kl}
