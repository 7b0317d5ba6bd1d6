"""A model's vectors in two dimensions, their exact neighbours, and what tells positions apart.

Shapes: N vectors, D width, T positions, H heads, d width of a head.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import Mistake
from regard.models import ViT
from regard.positions import ALiBi, Learned, Positions, Relative, Rotary, Sinusoidal
from regard.run import Model
from regard.trace import Trace, named, sides
from regard.vectors import Vectors, embeddings, whole_words

TOKENS = "tokens"  # the name of the map of all tokens; others are names of a trace
POINTS = 1000  # on a map
NEAREST = 12
DISTANCES = "cosine", "euclidean"
PLACES = 256  # positions whose vectors are shown
BIASED = 64  # positions whose biases are
IN_FILE = 400_000  # bytes of maps in a page of one file
NEAR_IN_FILE = 64  # tokens whose neighbours it knows
HIDDEN = "embed", "input", "states", "output", "norm"  # of a run's tensors, those that are mapped
KINDS = {
    Sinusoidal: "sinusoidal",
    Learned: "learned",
    Rotary: "rotary",
    ALiBi: "alibi",
    Relative: "relative",
}


class Tokens(Vectors):
    """Every token of a model's, found by its text: a word, or a token that is less."""

    def __init__(self, model: Model):
        table, self.tokenizer = embeddings(model.model).cpu(), model.tokenizer
        many = min(len(table), self.tokenizer.vocab)
        super().__init__(self.tokenizer.tokens(range(many)), table[:many])

    @cached_property
    def whole(self) -> dict[str, int]:
        try:
            return whole_words(self.tokenizer)
        except Mistake:  # letters or bytes
            return {}

    def find(self, word: str) -> int:
        for text in (word, word.lower()):
            if (found := self.whole.get(text)) is not None:
                return found
        ids = self.tokenizer.encode(word)
        alone = len(ids) == 1 and ids[0] < len(self) and self.words[ids[0]].strip() == word
        return ids[0] if alone else super().find(word)


KNOWN: WeakKeyDictionary[Model, Tokens] = WeakKeyDictionary()


class Plane:
    """The two directions in which vectors (N, D) differ most: their principal components, Pearson 1901."""

    def __init__(self, x: Tensor):
        x = x.double()
        self.mean = x.mean(0)
        _, s, axes = torch.linalg.svd(x - self.mean, full_matrices=False)
        axes = F.pad(axes[:2].mT, (0, max(0, 2 - len(axes))))  # (D, 2)
        largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
        self.axes = axes * torch.where(largest < 0, -1.0, 1.0)  # so that the same vectors give the same map
        shares = s.square() / s.square().sum().clamp(min=1e-30)
        self.shares: list[float] = F.pad(shares, (0, 2))[:2].tolist()  # of all that differs, what is seen

    def __call__(self, x: Tensor) -> list[list[float]]:
        points = ((x.double() - self.mean) @ self.axes).tolist()
        return [[float(f"{at:.6g}") for at in point] for point in points]


class Space:
    """What of a model, and of a run of it, can be drawn as points."""

    def __init__(self, model: Model, trace: Trace):
        self.model, self.trace = model, trace

    @cached_property
    def has_tokens(self) -> bool:
        """Does the model read or write any?"""
        try:
            return self.model.tokenizer is not None and len(embeddings(self.model.model)) > 0
        except Mistake:
            return False

    @property
    def all(self) -> Tokens:
        """Every token; to spell them takes a moment, once for each model."""
        if self.model not in KNOWN:
            KNOWN[self.model] = Tokens(self.model)
        return KNOWN[self.model]

    @cached_property
    def own(self) -> list[int]:
        """The tokens of the run, each once: of the side that the embeddings are of."""
        ids = self.trace.ids
        both = [] if self.model.task.target_tokenizer is not None else ids.get("written", [])
        return list(dict.fromkeys([*ids.get("text", ids.get("source", [])), *both]))

    @cached_property
    def ids(self) -> list[int]:
        """The tokens on the map: those of the run, then the first whole words: the most frequent."""
        words = [id for word, id in self.all.whole.items() if len(word) > 1 and word.isalpha()]
        every = [*self.own, *words, *self.all.whole.values(), *range(len(self.all))]
        return list(dict.fromkeys(every))[:POINTS]

    @cached_property
    def hidden(self) -> dict[str, str]:
        """The tensors of the run that have a vector for each token, with the side that these are of."""
        found = {}
        for name, t in self.trace.tensors.items():
            before, _, what = name.rpartition(".")
            side = "text" if "text" in self.trace.tokens else sides(name)[0]
            inside = before.endswith(("attn", "cross", "ffn", "look"))
            fits = t.ndim == 2 and 1 < len(t) == len(self.trace.tokens.get(side, []))
            if what in HIDDEN and not inside and fits:
                found[name] = side
        return found

    @property
    def names(self) -> list[str]:
        """Of all maps."""
        return [*([TOKENS] if self.has_tokens else []), *self.hidden]

    @cached_property
    def planes(self) -> dict[str, Plane]:
        return {}

    def vectors(self, name: str) -> Vectors:
        """What is on a map: words and their vectors."""
        if name == TOKENS and self.has_tokens:
            return self.all
        if name not in self.hidden:
            raise Mistake(f"{name[:100]}: there is no such map")
        return Vectors(self.trace.tokens[self.hidden[name]], self.trace[name].cpu())

    def plane(self, name: str) -> Plane:
        if name not in self.planes:
            vectors = self.vectors(name)
            self.planes[name] = Plane(vectors.matrix[self.ids if name == TOKENS else slice(POINTS)])
        return self.planes[name]

    def mapped(self, name: str) -> dict[str, Any]:
        """Points with their words; those of the run come first."""
        vectors, plane = self.vectors(name), self.plane(name)
        rows = self.ids if name == TOKENS else list(range(min(POINTS, len(vectors))))
        return {
            "rows": rows,
            "words": [vectors.words[row] for row in rows],
            "points": plane(vectors.matrix[rows]),
            "shares": plane.shares,
            "own": min(len(self.own), POINTS) if name == TOKENS else len(rows),
            "of": len(vectors),
        }

    def near(self, name: str, asked: str | int, distance: str = "cosine", k: int = NEAREST) -> dict[str, Any]:
        """The nearest to a row, or to a word or a sum of words that is typed."""
        vectors = self.vectors(name)
        if isinstance(asked, int):
            if not 0 <= asked < len(vectors):
                raise Mistake(f"row={asked}: there are 0 to {len(vectors) - 1}")
            rows, signs = [asked], [1.0]
        else:
            rows, signs = vectors.terms(asked)
        found = vectors.near(rows, signs, k, distance)

        def told(pairs: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
            points = self.plane(name)(vectors.matrix[[row for row, _ in pairs]])
            both = zip(pairs, points, strict=True)
            return [{"row": r, "word": vectors.words[r], "value": v, "point": p} for (r, v), p in both]

        return {"of": told(list(zip(rows, signs, strict=True))), "found": told(found)}

    def kept(self, most: int = IN_FILE) -> dict[str, Any]:
        """What a page of one file knows, in so many bytes: all tokens' map, those near the run's own, and
        the maps of the run."""
        maps: dict[str, Any] = {}
        near: dict[str, Any] = {}
        for name in self.names:
            rows = self.own[:NEAR_IN_FILE] if name == TOKENS else []
            around = {row: {way: self.near(name, row, way) for way in DISTANCES} for row in rows}
            mapped = self.mapped(name)
            if (size := len(json.dumps([mapped, around]))) <= most:
                maps[name], near[name], most = mapped, around, most - size
        return {"maps": maps, "near": near}

    # positions

    @cached_property
    def positions(self) -> list[dict[str, Any]]:
        """Each part that knows positions, and how; its numbers are among `tensors`."""
        return [about for about, _ in self._placed]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """~PART.table (T, D), ~PART.dot and ~PART.cosine (T, T), or ~PART.bias (H, T, T)."""
        return {f"~{about['part']}.{what}": t for about, found in self._placed for what, t in found.items()}

    @cached_property
    def _placed(self) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
        found = []
        for name, m in named(self.model.model):
            part = name.removesuffix("positions").strip(".") or "model"
            if isinstance(m, Positions) and (kind := KINDS.get(type(m))) is not None:
                context = placed_in(self.model, m)
                tensors = placed(m, min(context, BIASED if kind in ("alibi", "relative") else PLACES))
                found.append(({"part": part, "kind": kind, "of": context}, tensors))
            elif isinstance(m, ViT) and (places := m.places(m.side, m.side)) is not None:
                about = {"part": name or "model", "kind": f"{m.config.positions} in two dimensions"}
                table = places.detach().float()[:PLACES]
                found.append((about | {"of": len(places)}, {"table": table} | similar(table)))
        return found


def placed_in(model: Model, m: Positions) -> int:
    """How many positions there are."""
    if isinstance(m, Learned):
        return m.table.num_embeddings
    return len(m.table) if isinstance(m, Sinusoidal) else int(model.model.config.context)  # type: ignore[union-attr, arg-type]


@torch.no_grad()
def placed(m: Positions, T: int) -> dict[str, Tensor]:
    """What the first T positions add: vectors, angles, or biases of the scores."""
    pos = torch.arange(T, device=next(iter([*m.parameters(), *m.buffers()])).device)
    if (bias := m.bias(T, T)) is not None:
        return {"bias": bias.float()}
    if (turn := m.turn(pos)) is not None:
        cos, sin = (t.float().reshape(T, -1) for t in turn)  # (T, d/2)
        return {"table": cos} | similar(torch.cat([cos, sin], dim=1))
    assert isinstance(m, Learned | Sinusoidal)
    table = (m.table(pos) if isinstance(m, Learned) else m.table[pos]).float()  # (T, D)
    return {"table": table} | similar(table)


def similar(x: Tensor) -> dict[str, Tensor]:
    """Each position with each: (T, T)."""
    unit = F.normalize(x, dim=1)
    return {"dot": x @ x.mT, "cosine": unit @ unit.mT}
