"""Word vectors: neighbours, analogies, a map. Every model that reads tokens has them.

Shapes: N words, D width.
"""

import difflib
import gzip
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from tokenizers import models
from torch import Tensor, nn
from torch.nn import functional as F

from regard.draw.picture import draw
from regard.draw.word_map import WordMap
from regard.errors import UserError
from regard.files import atomic
from regard.text.projection import tsne
from regard.text.tokenizer import BYTES, Tokenizer

ON_MAP = 300  # words
SUGGESTED = 20_000  # words that are searched for a similar spelling: comparing takes time
DIGITS = 9  # digits that distinguish all float32 numbers


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

    @cached_property
    def norms(self) -> Tensor:
        return self.matrix.norm(dim=1).clamp(min=1e-12)

    def find(self, word: str) -> int:
        """The row of a word, or of the word in lower case; -1 if neither exists."""
        return self.rows.get(word, self.rows.get(word.lower(), -1))

    def row(self, word: str) -> int:
        """The row of a word; raise UserError if it is missing."""
        if (row := self.find(word)) < 0:
            near = difflib.get_close_matches(word.lower(), self.words[:SUGGESTED], 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {len(self):,} others"
            raise UserError(f"{word}: not among the words of this model; {hint}")
        return row

    def terms(self, text: str) -> tuple[list[int], list[float]]:
        """The rows and signs of a sum such as "king - man + woman"; words without a sign are added."""
        sign, rows, signs = 1.0, [], []
        for part in text.split():
            if part in ("+", "-", "\N{MINUS SIGN}"):
                sign = 1.0 if part == "+" else -1.0
            else:
                rows.append(self.row(part))
                signs.append(sign)
                sign = 1.0
        if not rows:
            raise UserError(f"{text!r}: no word in it; give a word, or a sum like: king - man + woman")
        return rows, signs

    def nearest(self, text: str, k: int = 10, distance: str = "cosine") -> list[tuple[str, float]]:
        """The k words nearest to "king" or "king - man + woman", except these words: by cosine similarity
        of sums of unit vectors (3CosAdd, Levy & Goldberg 2014), or by Euclidean distance."""
        return [(self.words[row], value) for row, value in self.near(*self.terms(text), k, distance)]

    def near(
        self, rows: list[int], signs: list[float], k: int = 10, distance: str = "cosine"
    ) -> list[tuple[int, float]]:
        """The k rows nearest to a sum of rows, with their similarity or distance."""
        if distance not in ("cosine", "euclidean"):
            raise UserError(f"distance={distance} is not a choice; known are cosine, euclidean")
        euclidean = distance == "euclidean"
        W, signed = self.matrix, self.matrix.new_tensor(signs)
        if euclidean:  # without differences for all words, which would be as large as W
            exact = "donot_use_mm_for_euclid_dist"
            values = torch.cdist(signed[None] @ W[rows], W, compute_mode=exact)[0]  # (N,)
        else:
            target = signed / self.norms[rows] @ W[rows]  # (D,)
            values = W @ F.normalize(target, dim=0) / self.norms  # (N,)
        values[rows] = torch.inf if euclidean else -torch.inf
        best = values.topk(min(k, int(values.isfinite().sum())), largest=not euclidean)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """The words that are to c as b is to a."""
        return self.nearest(f"{b} - {a} + {c}", k)

    def save(self, path: str | Path, binary: bool = False, like: Path | None = None) -> None:
        """Write word2vec's format, as text or binary: the number of words and their width, then each word
        with its numbers. It is compressed if the name ends with .gz. A new file gets the mode of `like`."""
        path, D = Path(path), self.matrix.shape[1]
        compressed, numbers = path.suffix.lower() == ".gz", f" %.{DIGITS}g" * D
        opened = gzip.open if compressed else open
        with atomic.atomic_file(path, like) as partial, opened(partial, "wb") as file:
            file.write(f"{len(self)} {D}\n".encode())
            for word, row in zip(self.words, self.matrix.cpu().numpy().astype("<f4"), strict=True):
                content = b" " + row.tobytes() if binary else (numbers % tuple(row.tolist())).encode()
                file.write(word.encode() + content + b"\n")

    def map(self, path: str | Path, count: int = ON_MAP, like: Path | None = None) -> None:
        """Draw the most frequent words in the plane as SVG; similar words are close together."""
        rows = [row for row, word in enumerate(self.words) if any(map(str.isalpha, word))][:count]
        places = tsne(self.unit[rows].cpu())
        figure = WordMap([self.words[row] for row in rows], places.numpy())
        atomic.write_text(Path(path), draw(figure).svg(), like)


class TextModel(Protocol):
    """A model with its tokenizer, as `regard.load` returns it."""

    model: nn.Module

    @property
    def tokenizer(self) -> Tokenizer: ...


def vectors(model: TextModel) -> Vectors:
    """The word vectors of a trained model (`regard.load`): its embeddings of tokens that are whole words."""
    return select_vectors(embeddings(model.model), whole_words(model.tokenizer))


def select_vectors(table: Tensor, ids: dict[str, int]) -> Vectors:
    """The vectors of these words from their rows of a table; without a copy if the rows are consecutive."""
    rows = list(ids.values())
    one_by_one = rows == list(range(rows[0], rows[0] + len(rows)))
    return Vectors(list(ids), table[rows[0] : rows[-1] + 1] if one_by_one else table[rows])


def embeddings(model: nn.Module) -> Tensor:
    """The token embeddings of a model: (vocab, D)."""
    embed = getattr(getattr(model, "model", model), "embed", None)  # also below a head
    if not isinstance(embed, nn.Embedding):
        raise UserError("this model has no embeddings of words; use one that reads or writes text")
    return embed.weight.detach()


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens that are whole words, by word, in ascending order.

    In subword vocabularies these are the tokens that begin a word: without ## in WordPiece, with a leading
    space in the others.
    """
    ids: dict[str, int] = {}
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
            text = token_text(token)
            word = text[1:] if text.startswith(" ") else ""
        if word and not any(map(str.isspace, word)):
            ids.setdefault(word, id)
    if not ids:
        raise UserError("this model's tokens are not whole words; train one with --set data.tokenizer=bpe")
    return ids


def token_text(token: str) -> str:
    """The text of a byte-level (GPT-2) or SentencePiece token."""
    if token.startswith("\u2581"):
        return " " + token[1:]
    if all(symbol in BYTES for symbol in token):
        return bytes(BYTES[symbol] for symbol in token).decode("utf-8", errors="ignore")
    return token
