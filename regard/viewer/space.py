"""Maps of a model's vectors, their exact nearest neighbours, and its position encodings.

Shapes: N vectors, D width, T positions, H heads, d width of a head.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.core.positions import POSITIONS, Positions
from regard.errors import UserError
from regard.runs.model import Model
from regard.text.projection import PCA
from regard.text.vectors import Vectors, embeddings, whole_words
from regard.tracing import Trace
from regard.tracing.names import attention_sides, trace_names

TOKENS = "tokens"  # the map of all tokens; the other maps have the names of a trace's tensors
POINTS = 1000  # on a map
NEAREST = 12
DISTANCES = "cosine", "euclidean"
MAX_VECTORS = 256  # positions whose vectors are shown
MAX_BIASES = 64  # positions whose biases are shown
IN_FILE = 400_000  # bytes of maps in a page saved as one file
NEAR_IN_FILE = 64  # tokens whose neighbours it holds
HIDDEN = "embed", "input", "states", "mixed", "output", "norm"  # tensors of a run that are mapped


class Tokens(Vectors):
    """The embeddings of all tokens of a model, found by word or by token."""

    def __init__(self, model: Model):
        table, self.tokenizer = embeddings(model.model).cpu(), model.tokenizer
        size = min(len(table), self.tokenizer.vocab)
        super().__init__(self.tokenizer.tokens(range(size)), table[:size])

    @cached_property
    def whole_words(self) -> dict[str, int]:
        try:
            return whole_words(self.tokenizer)
        except UserError:  # tokens are characters or bytes
            return {}

    def find(self, word: str) -> int:
        for text in (word, word.lower()):
            if (id := self.whole_words.get(text)) is not None:
                return id
        ids = self.tokenizer.encode(word)
        is_token = len(ids) == 1 and ids[0] < len(self) and self.words[ids[0]].strip() == word
        return ids[0] if is_token else super().find(word)


TOKENS_OF: WeakKeyDictionary[Model, Tokens] = WeakKeyDictionary()  # decoding all tokens takes a moment


class Space:
    """The vectors of a model and of one run that can be drawn as points."""

    def __init__(self, model: Model, trace: Trace):
        self.model, self.trace = model, trace

    @cached_property
    def has_tokens(self) -> bool:
        """Whether the model has embeddings of tokens."""
        try:
            return self.model.tokenizer is not None and len(embeddings(self.model.model)) > 0
        except UserError:
            return False

    @property
    def all(self) -> Tokens:
        """All tokens of the model."""
        if self.model not in TOKENS_OF:
            TOKENS_OF[self.model] = Tokens(self.model)
        return TOKENS_OF[self.model]

    @cached_property
    def own(self) -> list[int]:
        """The distinct tokens of the run that belong to the embeddings."""
        ids = self.trace.ids
        both = [] if self.model.task.target_tokenizer is not None else ids.get("written", [])
        return list(dict.fromkeys([*ids.get("text", ids.get("source", [])), *both]))

    @cached_property
    def ids(self) -> list[int]:
        """The tokens on the map: those of the run, then whole words, the most frequent first."""
        word_ids = self.all.whole_words
        words = [id for word, id in word_ids.items() if len(word) > 1 and word.isalpha()]
        return list(dict.fromkeys([*self.own, *words, *word_ids.values(), *range(len(self.all))]))[:POINTS]

    @cached_property
    def hidden(self) -> dict[str, str]:
        """The tensors of the run with a vector for each token, and the side of the tokens."""
        tensors = {}
        for name, t in self.trace.tensors.items():
            before, _, what = name.rpartition(".")
            side = "text" if "text" in self.trace.tokens else attention_sides(name)[0]
            inside = before.endswith(("attn", "cross", "ffn", "look"))
            fits = t.ndim == 2 and 1 < len(t) == len(self.trace.tokens.get(side, []))
            if what in HIDDEN and not inside and fits:
                tensors[name] = side
        return tensors

    @property
    def names(self) -> list[str]:
        """The names of all maps."""
        return [*([TOKENS] if self.has_tokens else []), *self.hidden]

    @cached_property
    def projections(self) -> dict[str, PCA]:
        return {}

    def vectors(self, name: str) -> Vectors:
        """The vectors of a map with their words."""
        if name == TOKENS and self.has_tokens:
            return self.all
        if name not in self.hidden:
            raise UserError(f"{name[:100]}: there is no such map")
        return Vectors(self.trace.tokens[self.hidden[name]], self.trace[name].cpu())

    def projection(self, name: str) -> PCA:
        if name not in self.projections:
            vectors = self.vectors(name)
            self.projections[name] = PCA(vectors.matrix[self.ids if name == TOKENS else slice(POINTS)])
        return self.projections[name]

    def points(self, name: str, x: Tensor) -> list[list[float]]:
        """Vectors (N, D) as points of a map, rounded to six digits."""
        return [[float(f"{at:.6g}") for at in point] for point in self.projection(name)(x).tolist()]

    def mapped(self, name: str) -> dict[str, Any]:
        """The points of a map with their words; those of the run come first."""
        vectors = self.vectors(name)
        rows = self.ids if name == TOKENS else list(range(min(POINTS, len(vectors))))
        return {
            "rows": rows,
            "words": [vectors.words[row] for row in rows],
            "points": self.points(name, vectors.matrix[rows]),
            "shares": self.projection(name).shares,
            "own": min(len(self.own), POINTS) if name == TOKENS else len(rows),
            "of": len(vectors),
        }

    def near(self, name: str, asked: str | int, distance: str = "cosine", k: int = NEAREST) -> dict[str, Any]:
        """The nearest neighbours of a row, or of a word or a sum of words."""
        vectors = self.vectors(name)
        if isinstance(asked, int):
            if not 0 <= asked < len(vectors):
                raise UserError(f"row={asked}: there are 0 to {len(vectors) - 1}")
            rows, signs = [asked], [1.0]
        else:
            rows, signs = vectors.terms(asked)

        def describe(pairs: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
            points = self.points(name, vectors.matrix[[row for row, _ in pairs]])
            both = zip(pairs, points, strict=True)
            return [{"row": r, "word": vectors.words[r], "value": v, "point": p} for (r, v), p in both]

        terms = list(zip(rows, signs, strict=True))
        return {"of": describe(terms), "found": describe(vectors.near(rows, signs, k, distance))}

    def pack_for_file(self, limit: int = IN_FILE) -> dict[str, Any]:
        """The content of a page saved as one file, in at most `limit` bytes: the map of all tokens, the
        neighbours of the run's own, and the maps of the run."""
        maps: dict[str, Any] = {}
        near: dict[str, Any] = {}
        for name in self.names:
            rows = self.own[:NEAR_IN_FILE] if name == TOKENS else []
            around = {row: {way: self.near(name, row, way) for way in DISTANCES} for row in rows}
            mapped = self.mapped(name)
            if (size := len(json.dumps([mapped, around]))) <= limit:
                maps[name], near[name], limit = mapped, around, limit - size
        return {"maps": maps, "near": near}

    # Positions

    @cached_property
    def positions(self) -> list[dict[str, Any]]:
        """Each position encoding of the model, whose numbers are among `tensors`."""
        return [about for about, _ in self._encodings]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """~PART.table (T, D), ~PART.dot and ~PART.cosine (T, T), or ~PART.bias (H, T, T)."""
        return {
            f"~{about['part']}.{name}": t for about, tensors in self._encodings for name, t in tensors.items()
        }

    @cached_property
    def _encodings(self) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
        encodings = []
        for name, m in trace_names(self.model.model):
            part = name.removesuffix("positions").strip(".") or "model"
            if isinstance(m, Positions) and type(m) is not Positions:
                kind = next(kind for kind, cls in POSITIONS.items() if cls is type(m))
                vectors = m.vectors()
                context = int(self.model.model.config.context) if vectors is None else len(vectors)  # type: ignore[union-attr, arg-type]
                encodings.append(({"part": part, "kind": kind, "of": context}, encoding_tensors(m, context)))
            elif (places := grid_table(m)) is not None:
                kind = f"{cast('Any', m).config.positions} in two dimensions"
                about: dict[str, Any] = {"part": name or "model", "kind": kind}
                table = places.detach().float()[:MAX_VECTORS]
                encodings.append((about | {"of": len(places)}, {"table": table} | similarities(table)))
        return encodings


def grid_table(m: Any) -> Tensor | None:
    """The position vectors (T, D) of a model that reads a grid of patches, or None."""
    return m.grid_positions(*m.sides) if hasattr(m, "grid_positions") else None


@torch.no_grad()
def encoding_tensors(m: Positions, context: int) -> dict[str, Tensor]:
    """The vectors, the cosines of the angles, or the biases of the first positions."""
    T = min(context, MAX_BIASES)
    if (bias := m.bias(T, T)) is not None:
        return {"bias": bias.float()}
    T = min(context, MAX_VECTORS)
    if (vectors := m.vectors()) is not None:
        table = vectors.detach()[:T].float()  # (T, D)
        return {"table": table} | similarities(table)
    rotary = m.rotary(torch.arange(T, device=next(m.buffers()).device))
    assert rotary is not None
    cos, sin = (t.float().reshape(T, -1) for t in rotary)  # (T, d/2)
    return {"table": cos} | similarities(torch.cat([cos, sin], dim=1))


def similarities(x: Tensor) -> dict[str, Tensor]:
    """Dot products and cosines of all pairs of vectors (T, D): (T, T)."""
    unit = F.normalize(x, dim=1)
    return {"dot": x @ x.mT, "cosine": unit @ unit.mT}
