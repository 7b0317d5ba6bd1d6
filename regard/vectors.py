"""Words as vectors: neighbours, sums and differences, a map. Any model that reads tokens has some.

Shapes: N words, D width.
"""

import difflib
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import torch
from tokenizers import models
from torch import Tensor, nn
from torch.nn import functional as F

from . import checkpoint
from .errors import Mistake
from .text import BYTES, Tokenizer

SHOWN = 300  # words on a map
WIDTH, HEIGHT, MARGIN, TOP = 1100, 860, 60, 70  # of a map
LINE = 12  # its height
STYLE = """
  text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; text-anchor: middle }
  .title { font-size: 16px; font-weight: 600; text-anchor: start }
  .ground { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8ebee }
    .ground { fill: #14181d }
  }
"""


class Vectors:
    """Words, the most frequent first, and a vector for each: (N, D)."""

    def __init__(self, words: Sequence[str], matrix: Tensor):
        assert len(words) == len(matrix)
        self.words, self.matrix = list(words), matrix.detach().float()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, word: str) -> Tensor:
        return self.matrix[self.row(word)]

    @cached_property
    def rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def unit(self) -> Tensor:
        return F.normalize(self.matrix, dim=1)

    def find(self, word: str) -> int:
        """The row of a word; in small letters, if it is not there as it is; -1 if not at all."""
        return self.rows.get(word, self.rows.get(word.lower(), -1))

    def row(self, word: str) -> int:
        if (found := self.find(word)) < 0:
            near = difflib.get_close_matches(word.lower(), self.words, 1)
            hint = f"did you mean {near[0]}?" if near else f"{len(self):,} others are"
            raise Mistake(f"{word}: not among the words of this model; {hint}")
        return found

    def terms(self, text: str) -> tuple[list[int], list[float]]:
        """The words of a sum or difference and their signs; words side by side add up."""
        sign, rows, signs = 1.0, [], []
        for part in text.split():
            if part in ("+", "-", "\N{MINUS SIGN}"):
                sign = 1.0 if part == "+" else -1.0
            else:
                rows.append(self.row(part))
                signs.append(sign)
                sign = 1.0
        if not rows:
            raise Mistake(f"{text!r}: no word in it; ask for a word, or a sum like: king - man + woman")
        return rows, signs

    def nearest(self, text: str, k: int = 10, distance: str = "cosine") -> list[tuple[str, float]]:
        """The k words nearest to "king", or to "king - man + woman", without these themselves: by cosine,
        where every word of a sum counts as much as any (3CosAdd, Levy & Goldberg 2014), or by distance."""
        found = self.near(*self.terms(text), k, distance)
        return [(self.words[row], value) for row, value in found]

    def near(
        self, rows: list[int], signs: list[float], k: int = 10, distance: str = "cosine"
    ) -> list[tuple[int, float]]:
        """The k rows nearest to a sum of rows, and how near."""
        if distance not in ("cosine", "euclidean"):
            raise Mistake(f"distance={distance} is not a choice; known are cosine, euclidean")
        far = distance == "euclidean"
        W = self.matrix if far else self.unit
        aim = W.new_tensor(signs) @ W[rows]  # (D,)
        values = (W - aim).norm(dim=1) if far else W @ F.normalize(aim, dim=0)
        values[rows] = torch.inf if far else -torch.inf
        best = values.topk(min(k, int(values.isfinite().sum())), largest=not far)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """What is to c as b is to a."""
        return self.nearest(f"{b} - {a} + {c}", k)

    def save(self, path: str | Path) -> None:
        """As everybody reads them: how many and how wide, then a line for each word."""
        lines = [f"{len(self)} {self.matrix.shape[1]}"]
        for word, row in zip(self.words, self.matrix.cpu(), strict=True):
            lines.append(" ".join([word, *(f"{number:.6g}" for number in row.tolist())]))
        checkpoint.write_text(Path(path), "\n".join(lines) + "\n")

    def map(self, path: str | Path, count: int = SHOWN) -> None:
        """The most frequent words in the plane, as an SVG: what is alike stands together."""
        rows = [row for row, word in enumerate(self.words) if any(map(str.isalpha, word))][:count]
        shown = [self.words[row] for row in rows]
        checkpoint.write_text(Path(path), map_svg(shown, plane(self.unit[rows].cpu())))


def vectors(model: Any) -> Vectors:
    """The word vectors inside a trained model (`regard.load`): its embeddings of tokens that are words."""
    table, found = embeddings(model.model), whole_words(model.tokenizer)
    return Vectors(list(found), table[list(found.values())])


def embeddings(model: nn.Module) -> Tensor:
    """(vocab, D): what a model looks its tokens up in."""
    found = getattr(getattr(model, "model", model), "embed", None)  # also below a head
    if not isinstance(found, nn.Embedding):
        raise Mistake("this model has no embeddings of words; give one that reads or writes text")
    return found.weight.detach()


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that are words, by their text, in the order of their ids.

    Of sub-word tokenizers these begin a word: BERT's have no ## before them, the others' do have a space.
    """
    found: dict[str, int] = {}
    inner = tokenizer.inner
    special = {id for id, token in inner.get_added_tokens_decoder().items() if token.special}
    for id in range(tokenizer.vocab):
        token = inner.id_to_token(id)
        if token is None or id in special:
            continue
        if isinstance(inner.model, models.WordPiece):
            word = "" if token.startswith("##") else token
        elif isinstance(inner.model, models.WordLevel):
            word = token
        else:
            text = spelt(token)
            word = text[1:] if text.startswith(" ") else ""
        if word and not any(map(str.isspace, word)):
            found.setdefault(word, id)
    if not found:
        raise Mistake("this model's tokens are no words; train one with --set data.tokenizer=bpe")
    return found


def spelt(token: str) -> str:
    """The text of a token: of bytes (GPT-2), or with a mark for the space (SentencePiece)."""
    if token.startswith("\u2581"):
        return " " + token[1:]
    if all(symbol in BYTES for symbol in token):
        return bytes(BYTES[symbol] for symbol in token).decode("utf-8", errors="ignore")
    return token


def plane(x: Tensor, steps: int = 500) -> Tensor:
    """(N, D) -> (N, 2), neighbours staying neighbours: t-SNE, van der Maaten & Hinton 2008.

    It begins with the two principal components, so that the same vectors give the same map.
    """
    x, N = x.double(), len(x)
    if N < 3:
        return F.pad(torch.arange(N, dtype=torch.float64)[:, None], (0, 1))
    far = torch.cdist(x, x).square()  # (N, N)
    alone = torch.eye(N, dtype=torch.bool)
    low, high = torch.full((N, 1), -20.0, dtype=torch.float64), torch.full((N, 1), 20.0, dtype=torch.float64)
    for _ in range(50):  # how sharply each looks around it, so that all have as many neighbours: eq. 1
        middle = (low + high) / 2
        p = (-middle.exp() * far).masked_fill(alone, -torch.inf).softmax(1)  # (N, N)
        wide = torch.special.entr(p).sum(1, keepdim=True) > math.log(max(2, min(15, N / 4)))
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    p = (p + p.mT) / (2 * N)  # (N, N)
    y = principal(x)
    y = y * (1e-2 / y.std().clamp(min=1e-12))  # (N, 2)
    past, gain = torch.zeros_like(y), torch.ones_like(y)
    for step in range(steps):
        early = step < steps // 4  # neighbours find each other first
        near = 1 / (1 + torch.cdist(y, y).square()).masked_fill(alone, torch.inf)  # (N, N)
        pull = ((4 if early else 1) * p - near / near.sum()) * near  # (N, N)
        slope = 4 * (pull.sum(1, keepdim=True) * y - pull @ y)  # eq. 5
        gain = torch.where(slope * past < 0, gain + 0.2, gain * 0.8).clamp(min=0.01)
        past = (0.5 if early else 0.8) * past - max(N / 4, 10) * gain * slope
        y = y + past
    return y


def principal(x: Tensor) -> Tensor:
    """(N, D) -> (N, 2), as much of the distances as a plane can keep: PCA, Pearson 1901.

    Of each direction, which could as well be its opposite, the largest number is positive.
    """
    _, _, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    v = v[:2]  # (2, D)
    v = v * v.gather(1, v.abs().argmax(1, keepdim=True)).sign()
    return F.pad((x - x.mean(0)) @ v.mT, (0, 2 - len(v)))


def map_svg(words: Sequence[str], places: Tensor) -> str:
    """Words at their places (N, 2), written by hand as the loss curve is."""
    low, high = (places.amin(0), places.amax(0)) if len(places) else (torch.zeros(2), torch.ones(2))
    share = ((places - low) / (high - low).clamp(min=1e-12)).tolist()
    title = f"the {len(words)} most frequent words: what is alike stands together"
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text class="title" x="{MARGIN}" y="36">{title}</text>',
    ]
    taken: list[tuple[float, float, float]] = []
    for word, (x, y) in zip(words, share, strict=True):
        left, top = MARGIN + (WIDTH - 2 * MARGIN) * x, TOP + (HEIGHT - TOP - 60) * y
        half = 3.5 * len(word)  # about half as wide as it will be
        while any(abs(left - l) < half + h and abs(top - t) < LINE for l, t, h in taken):
            top += LINE / 2  # where others can still be read
        taken.append((left, top, half))
        lines.append(f'<text class="word" x="{left:.1f}" y="{top:.1f}">{escape(printable(word))}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def printable(word: str) -> str:
    return "".join(c if c.isprintable() else " " for c in word)  # XML has no control characters at all
