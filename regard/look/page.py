"""The page: what it needs to know of a model's run, and the page in one file.

Shapes: L layers, H heads, T queries, S keys.
"""

import base64
import json
import math
import secrets
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checkpoint import replacing
from regard.errors import Mistake
from regard.log import Log
from regard.run import LOG, Model, steps_of
from regard.tasks import Fill, Write
from regard.trace import Trace, trace
from regard.trace.collecting import layer, named
from regard.trace.kept import sides

from .lens import layers, lens, tail
from .onefile import framed, whole
from .space import Space
from .sums import sums, weights
from .tree import Tree, path, search, searches
from .whatif import WhatIf

HERE = Path(__file__).parent / "page"
FILES = (  # in the order in which each needs those before it
    *("dom.js", "colour.js", "source.js", "grid.js", "formula.js", "cell.js", "attention.js", "walk.js"),
    *("map.js", "lens.js", "next.js", "tree.js", "alignment.js", "picture.js", "space.js", "whatif.js"),
    *("compare.js", "talk.js", "training.js", "take.js", "app.js"),
)
VIEWS = (
    *("attention", "alignment", "picture", "walk", "map", "next"),
    *("space", "whatif", "compare", "talk", "training", "take"),
)
PRODUCTS = ("scores", "scaled", "mask", "reason", "weights")  # of an attention: queries by keys
IN_FILE = 5_500_000  # bytes of numbers in a page of one file, before they are written in base64
LONGEST_FILE = 7_900_000  # bytes of such a page
POOLED = 256  # each way, weights of long inputs in a page of one file
LIKELIEST = 64  # words for each place in a page of one file
MOST_WORDS = 20_000  # of them together
MOST_ROWS = 4000  # of a log
MOST_NUMBERS = 2**26  # of all attention weights of a run; scores take as many, twice


class Shown:
    """A model's run on an input, as the page asks for it."""

    def __init__(
        self,
        model: Model,
        given: Any,
        answer: str | None = None,
        layers: list[int] | None = None,
        traced: Trace | None = None,  # what it has computed, if that is known
        state: dict[str, str] | None = None,  # what a notebook, and the page in one file, opens on
    ):
        self.id = secrets.token_hex(8)
        self.state, self.trees, self.lenses = state, dict[int, Tree](), dict[int, dict[str, Any]]()
        self.model, self.given = model, given
        self.whole = given if answer is None else (given, answer)
        self.depth = 1 + max((layer(name) or 0 for name, _ in named(model.model)), default=0)
        self.layers = [self.depth - 1] if layers is None and traced is None and self.long else layers
        self.trace: Trace = trace(model, self.whole, self.layers) if traced is None else traced
        self.weights = weights(model)

    @property
    def long(self) -> bool:
        """Are there more numbers than fit: queries by keys, of every head of every layer?"""
        if not isinstance(self.given, str) or self.model.task.tokenizer is None:
            return False
        config: Any = self.model.model.config
        tokens = min(len(self.model.task.tokenizer.encode(self.given)), config.context)
        return tokens**2 * getattr(config, "heads", 1) * self.depth > MOST_NUMBERS

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in self.trace.tensors.values())

    # numbers

    def tensor(self, name: str) -> Tensor:
        """One of the trace, or a weight of the model's if its name begins with @; at least two dimensions."""
        if name == "rollout" and self.rollout is not None:
            return self.rollout
        if name.startswith("beams."):  # "beams.4.decoder.look": where each beam looked, step by step
            beams, _, look = name.removeprefix("beams.").partition(".")
            known = self.tree(int(beams)).rows if beams.isdecimal() and int(beams) in self.trees else {}
            known = {name: known[look]} if look in known else {}
        elif name.startswith("~"):
            known = self.space.tensors
        else:
            known = self.weights if name.startswith("@") else self.trace.tensors
        if name not in known:
            raise Mistake(f"{name[:100]}: there is no such tensor")
        found = known[name]
        return found[None] if found.ndim == 1 else found

    def numbers(
        self,
        name: str,
        head: int | None = None,
        rows: slice = slice(None),
        columns: slice = slice(None),
        most: int | None = None,
        shares: bool = False,
    ) -> np.ndarray:
        """A tensor, or a part of it, as float32; bytes stay bytes, and `shares` of the largest are bytes."""
        found = self.tensor(name)
        if head is not None and found.ndim > 2:
            if not 0 <= head < len(found):
                raise Mistake(f"head={head}: {name} has 0 to {len(found) - 1}")
            found = found[head]
        found = found[..., rows, columns]
        if found.dtype in (torch.bool, torch.uint8):
            return pooled(found.to(torch.uint8).cpu().numpy(), most)
        some = pooled(found.float().cpu().numpy(), most)
        if not shares:
            return some
        peak = np.maximum(some.max(axis=(-2, -1), keepdims=True, initial=0), 1e-30)
        return (255 * np.nan_to_num(some) / peak).clip(0, 255).round().astype(np.uint8)

    @cached_property
    def rollout(self) -> Tensor | None:
        """What reached each token through all layers and past them (T, T), Abnar & Zuidema 2020."""
        names = [name for name in self.trace if name.endswith("attn.weights")]
        if "grid" not in self.trace.about or not names or "text" not in self.trace.tokens:
            return None
        flow = torch.eye(self.trace[names[0]].shape[-1])
        for name in names:
            mean = self.trace[name].float().cpu().mean(0)
            flow = (mean + torch.eye(len(mean))) / 2 @ flow
        return flow

    def tree(self, beams: int) -> Tree:
        """How the answer was found, with so many beams; with one, the path that is traced."""
        if beams not in self.trees:
            if beams == 1 and "written" not in self.trace.tokens:
                raise Mistake("this model does not write answers to sources")
            found = path(self.trace, self.writer) if beams == 1 else search(self.model, self.given, beams)
            self.trees[beams] = found
        return self.trees[beams]

    @property
    def lensed(self) -> bool:
        """Can each layer be asked what it would have said?"""
        known = tail(self.model.model) is not None and layers(self.trace)
        return bool(known) and "label" not in self.trace.tokens and self.trace["logits"].ndim == 2

    def lens(self, row: int) -> dict[str, Any]:
        """What each layer would have said at a place; `final` is what the model finds likeliest."""
        if not self.lensed:
            raise Mistake("this model's layers can't be asked for words")
        if not 0 <= row < len(self.trace["logits"]):
            raise Mistake(f"row={row}: there are 0 to {len(self.trace['logits']) - 1}")
        if row not in self.lenses:
            final, each = lens(self.model.model, self.trace, row)
            told = [{"words": self.words(one.pop("ids")), **one} for one in each]
            self.lenses[row] = {"final": self.words([final])[0], "layers": told}
        return self.lenses[row]

    @property
    def usual(self) -> int:
        """The place whose words are looked at first: the last, a blank, or an answer's first."""
        sides = self.trace.tokens
        if self.manifest["outputs"]["kind"] == "next" and "written" not in sides:
            return len(self.trace["logits"]) - 1
        words = sides[self.manifest["outputs"]["rows"]]
        return words.index("[MASK]") if "[MASK]" in words else 0

    @cached_property
    def space(self) -> Space:
        return Space(self.model, self.trace)

    @cached_property
    def whatif(self) -> WhatIf:
        return WhatIf(self)

    # words

    @property
    def writer(self) -> Any:
        """The tokenizer of what comes out."""
        return getattr(self.model.task, "writer", self.model.task.tokenizer)

    def words(self, ids: list[int]) -> list[str]:
        if self.writer is None:
            raise Mistake("this model has no words")
        return self.writer.tokens(ids)

    @property
    def answer(self) -> str | None:
        if "written" in self.trace.tokens:
            return self.said(self.trace.ids["written"])
        if "label" in self.trace.tokens and "probabilities" in self.trace and self.trace["logits"].ndim == 1:
            best = int(self.trace["probabilities"].argmax())
            return f"{self.trace.tokens['label'][best]} {float(self.trace['probabilities'][best]):.0%}"
        return None

    def said(self, ids: list[int]) -> str:
        return self.writer.decode(ids[:-1] if ids and ids[-1] == self.writer.end else ids)

    # what the page starts from

    @cached_property
    def manifest(self) -> dict[str, Any]:
        t, model = self.trace, self.model
        module = model.model
        names = [*t.tensors, *(["rollout"] if self.rollout is not None else [])]
        return {
            "id": self.id,
            "model": {
                "name": None if model.folder is None else str(model.folder),
                "class": type(getattr(module, "model", module)).__name__,
                "task": model.task.config.name,
                "talks": model.task.talks,
                "parameters": sum(p.numel() for p in module.parameters()),
                "dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
                "sees": "pixels" in t,
            },
            "input": self.given if isinstance(self.given, str) and "pixels" not in t else None,
            "answer": self.answer,
            "tokens": t.tokens,
            "ids": t.ids,
            "grid": t.about.get("grid"),
            "difference": t.difference if math.isfinite(t.difference) else None,
            "tensors": {name: self.described(name) for name in names},
            "sums": sums(model, t),
            "attentions": self.attentions(),
            "layers": self.layers,
            "depth": self.depth,
            "graph": self.graph(),
            "outputs": self.outputs(),
            "logged": model.folder is not None and (model.folder / LOG).is_file(),
            "step": model.step,
            "steps": steps_of(model),
            "maps": self.space.names,
            "positions": self.space.positions,
            "searches": searches(model) and "written" in t.tokens,
        }

    def described(self, name: str) -> dict[str, Any]:
        """A tensor's shape, and which words stand at its sides, if any do."""
        if name == "rollout":
            return {"shape": list(self.tensor(name).shape), "rows": "text", "columns": "text"}
        shape, rows, columns = list(self.trace[name].shape), self.side(name), None
        before, _, what = name.rpartition(".")
        looks, looked_at = sides(name)
        if what in PRODUCTS and f"{before}.weights" in self.trace:
            rows, columns = looks, looked_at
        elif what in ("k", "v", "Wk") and f"{before}.weights" in self.trace:
            rows = looked_at
        elif name in ("logits", "probabilities"):
            columns = "label" if "label" in self.trace.tokens else "vocabulary" if len(shape) == 2 else None
        tall = shape[-2] if len(shape) > 1 else 1
        fits = rows is not None and len(shape) > 1 and len(self.trace.tokens.get(rows, [])) >= tall
        fits = fits and "pixels" != name and "layers" not in name
        return {"shape": shape, "rows": rows if fits else None, "columns": columns}

    def side(self, name: str) -> str | None:
        if "text" in self.trace.tokens:
            return "text"
        return "source" if name.startswith("encoder.") and name != "encoder.hidden" else "target"

    def attentions(self) -> dict[str, list[dict[str, Any]]]:
        """Every attention by its part, layer by layer, with what each head does."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name in self.trace.attentions:
            w = self.trace[f"{name}.weights"].float()
            rows, columns = sides(name)
            blocked = self.trace[f"{name}.reason"]
            future = bool((blocked == 2).any())
            begins = name.split(".")[0]
            part = begins if begins in ("encoder", "decoder") else "masked" if future else "self"
            part = "cross" if name.endswith((".cross", ".look")) else part
            found.setdefault(part, []).append(
                {
                    "name": name,
                    "layer": layer(name) or 0,
                    "heads": len(w),
                    "rows": rows,
                    "columns": columns,
                    "masked": bool(blocked.any()),
                    "kinds": kinds(w),
                }
            )
        order = "cross", "self", "masked", "encoder", "decoder"
        return {part: found[part] for part in order if part in found}

    def outputs(self) -> dict[str, Any] | None:
        """What the logits are of: the next token, the token that stands here, or classes."""
        if "probabilities" not in self.trace or self.model.task.config.name == "span":
            return None
        logits = self.trace["logits"]
        if "label" in self.trace.tokens:
            return {"kind": "classes", "rows": self.side("logits") if logits.ndim == 2 else None}
        if logits.ndim != 2 or self.writer is None:
            return None
        kind = "fill" if isinstance(self.model.task, Fill) else "next"
        goes_on = isinstance(self.model.task, Write)
        return {"kind": kind, "rows": self.side("logits"), "goes_on": goes_on, "lens": self.lensed}

    def graph(self) -> list[dict[str, Any]]:
        """The model's parts in columns, in the order of computing: what reads, and what writes."""
        columns: dict[str, list[dict[str, Any]]] = {}
        seen: set[str] = set()
        cross = None
        for name in self.trace:
            box = self.box(name)
            if box is None or box["name"] in seen:
                continue
            seen.add(box["name"])
            writes = name.startswith("decoder") or "target" in self.trace.tokens
            reads = name.startswith("encoder") or (name == "pixels" and writes)
            column = "encoder" if reads else "decoder" if writes else "model"
            if box.pop("crosses"):
                box["from"] = cross
            if column == "encoder":
                cross = box["name"]
            columns.setdefault(column, []).append(box)
        titles = {"encoder": "reads", "decoder": "writes", "model": ""}
        return [{"title": titles[name], "boxes": boxes} for name, boxes in columns.items()]

    def box(self, name: str) -> dict[str, Any] | None:
        """The part of the diagram that a tensor opens; none, if it is inside one."""
        before, _, what = name.rpartition(".")
        n, t = layer(name), self.trace
        plain = {
            "pixels": "Picture",
            "patches": "Patches",
            "embed": "Embedding",
            "states": "Recurrent cells",
            "readout": "Readout",
            "norm": "Norm",
            "project": "Projection",
            "transform": "Transform",
            "pooled": "Pooled",
            "logits": "Linear",
            "probabilities": "Softmax",
            "vector": "Vector",
        }
        crosses, note, shape = False, None, list(t[name].shape)
        if n is None and what in plain and not name.endswith("look.norm"):
            title = plain[what]
            if what == "embed" and f"{before}.positions".strip(".") in t:
                title = "Embedding + positions"
        elif f"{before}.weights" in t and name == self.first(before):
            kind = before.rsplit(".", 1)[-1]
            future = bool((t[f"{before}.reason"] == 2).any())
            plainly = "Masked self-attention" if future else "Self-attention"
            title = {"cross": "Cross-attention", "look": "Attention"}.get(kind, plainly)
            crosses, note = kind in ("cross", "look"), f"{len(t[f'{before}.weights'])} heads"
            note = None if kind == "look" else note
            out = f"{before}.residual" if f"{before}.residual" in t else f"{before}.heads"
            shape = list(t[out].shape)[-2:]
        elif f"{before}.hidden" in t and name == self.first(before):
            title, note = "Feed-forward", f"{t[f'{before}.hidden'].shape[-1]} wide"
            shape = list(t[f"{before}.residual"].shape)
        elif "layers.0" in name and what == "0" and t[name].ndim == 3:
            title = "Convolutions"
        else:
            return None
        group = None if n is None or title == "Convolutions" else f"block {n}"
        return {
            "name": name,
            "title": title,
            "note": note,
            "shape": shape,
            "group": group,
            "crosses": crosses,
        }

    def first(self, part: str) -> str:
        """The tensor that a part begins with."""
        return next(name for name in self.trace if name.startswith(f"{part}."))

    def log(self) -> list[dict[str, Any]]:
        if self.model.folder is None:
            return []
        kept = ("step", "loss", "valid_loss")
        rows = [{k: row[k] for k in kept if k in row} for row in Log.read(self.model.folder / LOG)]
        rows = [
            row for row in rows if all(isinstance(v, int | float) and math.isfinite(v) for v in row.values())
        ]
        every = max(1, len(rows) // MOST_ROWS)
        return [row for i, row in enumerate(rows) if i % every == 0 or "valid_loss" in row]

    # the page in one file

    def kept(self, state: dict[str, str] | None = None) -> dict[str, Any]:
        """What a page of one file holds: weights of attention first, then all else, until it is full."""
        t = self.trace
        products = [name for name in t if name.endswith((".weights", ".reason"))]
        ends = ["pixels", "logits", *(["rollout"] if self.rollout is not None else [])]
        first = [*products, *(name for name in ends if name in t or name == "rollout")]
        words: dict[int, str] = {}
        outputs, only = self.manifest["outputs"], None  # a large vocabulary: of one place only
        if outputs and outputs["kind"] != "classes":
            only = self.usual if t["logits"].numel() * 4 > IN_FILE // 2 else None
            logits = t["logits"] if only is None else t["logits"][only : only + 1]
            many = min(LIKELIEST, logits.shape[-1], max(5, MOST_WORDS // len(logits)))
            best = logits.topk(many).indices.unique().tolist()
            words = dict(zip(best, self.words(best), strict=True))
            if outputs.get("lens"):
                self.lens(self.usual)
        if "written" in t.tokens:
            self.tree(1)
        first = first if only is None else ["logits", *(name for name in first if name != "logits")]
        first[:0] = [f"beams.{beams}.{look}" for beams, one in self.trees.items() for look in one.rows]
        told = {
            "manifest": self.manifest,
            "words": words,
            "log": self.log(),
            "state": state or self.state or {},
            "trees": {beams: one.told() for beams, one in self.trees.items()},
            "lenses": self.lenses,
            "space": self.space.kept(),
        }
        names = [*first, *(name for name in t if name not in first), *self.space.tensors, *self.weights]
        left, tensors = min(IN_FILE, (LONGEST_FILE - 200_000 - len(json.dumps(told))) * 3 // 4), {}
        for name in names:
            size = self.tensor(name).shape
            most = POOLED if name in products and max(size[-2:]) > 2 * POOLED else None
            alone = name == "logits" and only is not None
            if not most and not alone and self.tensor(name).numel() > left:
                continue
            found = self.numbers(name, rows=slice(only, only + 1) if alone else slice(None), most=most)  # type: ignore[operator]
            if found.nbytes <= left:
                left -= found.nbytes
                kind = "uint8" if found.dtype == np.uint8 else "float32"
                data = base64.b64encode(found.tobytes()).decode()
                row = {"row": only} if alone else {}
                tensors[name] = {"shape": list(found.shape), "type": kind, "data": data, **row}
        return told | {"tensors": tensors}

    def html(self, state: dict[str, str] | None = None) -> str:
        """The page and its numbers in one file, which needs nothing else and asks for nothing."""
        return whole(HERE, FILES, self.kept(state))

    def _repr_html_(self) -> str:
        """In a notebook: the page in one file, in a frame that shares nothing with what is around it."""
        return framed(self.html())

    def save(self, path: str | Path, state: dict[str, str] | None = None) -> None:
        with replacing(Path(path)) as beside:
            beside.write_text(self.html(state), encoding="utf-8")


def page(model: Model, input: Any, answer: str | None = None, **state: Any) -> Shown:
    """A model's run as the page, which shows itself in a notebook and saves itself as one file.

    `state` is what its address holds: view="next", layer=2, head=1.
    """
    return Shown(model, input, answer, state={name: str(value) for name, value in state.items()})


def shown(traced: Trace) -> Shown | None:
    """The page of a trace that has its model; one that was read from a file has none."""
    if traced.model is None:
        return None
    several = isinstance(traced.given, tuple | list)
    given, answer = (*traced.given, None)[:2] if several else (traced.given, None)
    return Shown(traced.model, given, answer, traced=traced)


def kinds(weights: Tensor) -> list[dict[str, float]]:
    """What each head (H, T, S) does: how many tokens it looks at, in bits; how much goes to itself, to the
    one before, and to the first."""
    entropy = -torch.xlogy(weights, weights).sum(-1).mean(-1) / math.log(2)  # (H,)
    diagonal = weights.diagonal(dim1=-2, dim2=-1).mean(-1)  # (H,)
    before = weights[:, 1:].diagonal(dim1=-2, dim2=-1)
    previous = before.mean(-1) if before.shape[-1] else torch.zeros_like(diagonal)  # (H,)
    first = weights[..., 0].mean(-1)  # (H,)
    columns = {"entropy": entropy, "diagonal": diagonal, "previous": previous, "first": first}
    rows = zip(*(column.nan_to_num().tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def pooled(x: np.ndarray, most: int | None) -> np.ndarray:
    """At most so many in both last dimensions: of neighbours, the largest."""
    for axis in (-2, -1):
        n = x.shape[axis]
        if most is not None and n > most:
            ends = np.arange(most + 1) * n // most
            best = x.take(ends[:-1], axis)
            for i in range(1, -(-n // most)):
                best = np.maximum(best, x.take(np.minimum(ends[:-1] + i, ends[1:] - 1), axis))
            x = best
    return x
