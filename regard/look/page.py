"""The page: what it needs to know of a model's run, and the page in one file.

Shapes: L layers, H heads, T queries, S keys.
"""

import base64
import hashlib
import json
import math
import re
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
from regard.run import LOG, Model
from regard.tasks import Fill, Write
from regard.trace import Trace, trace
from regard.trace.collecting import layer, named
from regard.trace.kept import sides

from .sums import sums, weights

HERE = Path(__file__).parent / "page"
FILES = (  # in the order in which each needs those before it
    *("dom.js", "colour.js", "source.js", "grid.js", "formula.js", "cell.js", "attention.js", "walk.js"),
    *("map.js", "next.js", "alignment.js", "picture.js", "talk.js", "training.js", "take.js", "app.js"),
)
VIEWS = "attention", "alignment", "picture", "walk", "map", "next", "talk", "training", "take"
PRODUCTS = ("scores", "scaled", "mask", "reason", "weights")  # of an attention: queries by keys
IN_FILE = 5_500_000  # bytes of numbers in a page of one file, before they are written in base64
POOLED = 256  # each way, weights of long inputs in a page of one file
LIKELIEST = 64  # words for each place in a page of one file
MOST_ROWS = 4000  # of a log
MOST_NUMBERS = 2**26  # of all attention weights of a run; scores take as many, twice


class Shown:
    """A model's run on an input, as the page asks for it."""

    def __init__(self, model: Model, given: Any, answer: str | None = None, layers: list[int] | None = None):
        self.id = secrets.token_hex(8)
        self.model, self.given = model, given
        whole = given if answer is None else (given, answer)
        self.depth = 1 + max((layer(name) or 0 for name, _ in named(model.model)), default=0)
        self.layers = [self.depth - 1] if layers is None and self.long else layers
        self.trace: Trace = trace(model, whole, self.layers)
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
            ids = self.trace.ids["written"]
            return self.writer.decode(ids[:-1] if ids and ids[-1] == self.writer.end else ids)
        if "label" in self.trace.tokens and "probabilities" in self.trace and self.trace["logits"].ndim == 1:
            best = int(self.trace["probabilities"].argmax())
            return f"{self.trace.tokens['label'][best]} {float(self.trace['probabilities'][best]):.0%}"
        return None

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
                "parameters": sum(p.numel() for p in module.parameters()),
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
        return {"kind": kind, "rows": self.side("logits"), "goes_on": goes_on}

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
        names = [*first, *(name for name in t if name not in first), *self.weights]
        left, tensors = IN_FILE, {}
        for name in names:
            size = self.tensor(name).shape
            most = POOLED if name in products and max(size[-2:]) > 2 * POOLED else None
            found = self.numbers(name, most=most)
            if found.nbytes <= left:
                left -= found.nbytes
                kind = "uint8" if found.dtype == np.uint8 else "float32"
                data = base64.b64encode(found.tobytes()).decode()
                tensors[name] = {"shape": list(found.shape), "type": kind, "data": data}
        words: dict[int, str] = {}
        if (outputs := self.manifest["outputs"]) and outputs["kind"] != "classes":
            logits = t["logits"]
            best = logits.topk(min(LIKELIEST, logits.shape[-1])).indices.unique().tolist()
            words = dict(zip(best, self.words(best), strict=True))
        return {
            "manifest": self.manifest,
            "tensors": tensors,
            "words": words,
            "log": self.log(),
            "state": state or {},
        }

    def html(self, state: dict[str, str] | None = None) -> str:
        """The page and its numbers in one file, which needs nothing else and asks for nothing."""
        script, style = joined(), (HERE / "page.css").read_text(encoding="utf-8")
        hashes = [digest(text) for text in (script, style)]
        policy = (
            f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        # Inside a script element, only "<" could end it: there is none.
        data = json.dumps(self.kept(state), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
        page = (HERE / "index.html").read_text(encoding="utf-8")
        meta = f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
        page = re.sub('<link rel="modulepreload"[^>]*>\n', "", page)
        page = page.replace('<meta charset="utf-8">', meta)
        page = page.replace('<link rel="stylesheet" href="/page/page.css">', f"<style>{style}</style>")
        both = f'<script type="application/json" id="kept">{data}</script>'
        both += f'\n<script type="module">{script}</script>'
        return page.replace('<script type="module" src="/page/app.js"></script>', both)

    def save(self, path: str | Path, state: dict[str, str] | None = None) -> None:
        with replacing(Path(path)) as beside:
            beside.write_text(self.html(state), encoding="utf-8")


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


def joined() -> str:
    """All modules as one script: each a function that gives what it exports."""
    whole = []
    for name in FILES:
        text = (HERE / name).read_text(encoding="utf-8")
        exported = re.findall(r"^export (?:const|class|function|async function) (\w+)", text, re.MULTILINE)
        text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
        text = re.sub(r'import\("\./(\w+)\.js"\)', r"Promise.resolve(\1_js)", text)
        text = re.sub(
            r'^import (\{[^}]*\}) from "\./(\w+)\.js";', r"const \1 = \2_js;", text, flags=re.MULTILINE
        )
        whole.append(
            f"const {name.replace('.', '_')} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();"
        )
    return "\n".join(whole)


def digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
