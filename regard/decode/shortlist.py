"""Translating with the words that can translate the source's: the output layer computes the logits of few
tokens. Jean et al. 2015, section 3.3.

Shapes: B rows, S source tokens, D width, V vocabulary, n tokens that any of the rows may use.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.cache import Mask
from regard.decode.cpu_steps import multiply, speed_up
from regard.errors import UserError
from regard.files.tensors import read_tensors, write_tensors
from regard.models.base import EncoderDecoder
from regard.quantize.weights import SmallWeight

SHORTLIST = "shortlist.safetensors"  # the file of a run
FREQUENT = 10  # times as many frequent tokens as likely ones: all sentences of a batch share them


@dataclass(frozen=True)
class Shortlist:
    """The tokens that may translate each source token (source vocabulary, count), and those that may stand in
    any translation (N,)."""

    by_source: Tensor
    always: Tensor

    def save(self, path: Path, like: Path | None = None) -> None:
        write_tensors(path, {"by_source": self.by_source, "always": self.always}, like=like)

    @classmethod
    def load(cls, path: Path, source_vocab: int, vocab: int) -> Self:
        """Read a file; raise UserError if it is not one for these vocabularies."""
        tensors = read_tensors(path)
        shapes = {name: (t.dtype, t.dim()) for name, t in tensors.items()}
        fits = shapes == {"by_source": (torch.int32, 2), "always": (torch.int32, 1)}
        if not fits or len(tensors["by_source"]) != source_vocab or not len(tensors["always"]):
            raise UserError(f"{path}: not a shortlist for this model; remove it")
        for t in tensors.values():
            if t.numel() and not 0 <= int(t.min()) <= int(t.max()) < vocab:
                raise UserError(f"{path}: it has tokens that the model does not have; remove it")
        return cls(**tensors)

    def allowed(self, source: Tensor, attention_mask: Mask, vocab: int) -> Tensor:
        """Which tokens each row may use (B, V), from sources (B, S)."""
        ids = self.by_source[source]  # (B, S, count)
        if attention_mask is not None:
            ids = ids.where(attention_mask[..., None], self.always[0])
        allowed = torch.zeros(len(source), vocab, dtype=torch.bool)
        allowed[:, self.always.long()] = True
        return allowed.scatter_(1, ids.flatten(1).long(), True)


@dataclass
class ShortState:
    """A model's state with the tokens (n,) of the logits and what each row may use of them (B, n)."""

    inner: Any
    tokens: Tensor | None  # None: all
    allowed: Tensor
    weight: Tensor  # of the output layer, for these tokens
    bias: Tensor | None

    def vocab(self) -> list[int] | None:
        return None if self.tokens is None else self.tokens.tolist()

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)
        self.allowed = self.allowed[rows]


class ShortlistWriter(nn.Module):
    """A model on a CPU whose rows use the tokens of their own shortlists only: other logits are -inf.

    A row's list does not depend on the others'. If it is `compact`, its logits (B, n) are only those of the
    state's `tokens`, which any of the rows may use.
    """

    def __init__(self, model: EncoderDecoder, shortlist: Shortlist, is_compact: bool = False):
        super().__init__()
        self.model, self.config = model, model.config
        self.shortlist, self.is_compact = shortlist, is_compact

    def compact(self) -> "ShortlistWriter":
        return ShortlistWriter(self.model, self.shortlist, is_compact=True)

    def start(self, source: Tensor, prompt: Tensor, attention_mask: Mask = None) -> tuple[Tensor, ShortState]:
        weight, bias = self.model.output, self.model.output_bias
        allowed = self.shortlist.allowed(source, attention_mask, len(weight))
        inner = self.model.begin(source, attention_mask)
        state = ShortState(inner, None, allowed, weight, bias)
        if self.is_compact and has_rows(weight):
            state.tokens = tokens = allowed.any(0).nonzero()[:, 0]  # (n,)
            state.allowed, state.weight = allowed[:, tokens], select_rows(weight, tokens)
            state.bias = None if bias is None else bias[tokens]
        logits = self._logits(prompt, state)
        speed_up(self.model, inner)
        return logits, state

    def step(self, ids: Tensor, state: ShortState) -> tuple[Tensor, ShortState]:
        return self._logits(ids, state), state

    def _logits(self, ids: Tensor, state: ShortState) -> Tensor:
        x = self.model.decode(ids, state.inner)[:, -1]  # (B, D)
        logits = multiply(x, state.weight, state.bias)  # (B, n)
        return logits.masked_fill_(~state.allowed, -math.inf)


def has_rows(W: Tensor) -> bool:
    """Whether rows of a weight can be selected: those of a packed one can't."""
    return not isinstance(W, SmallWeight) or bool(W.parts)


def select_rows(W: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a weight (N, K), in its precision."""
    return type(W)(*(part[rows] for part in W.parts)) if isinstance(W, SmallWeight) else W[rows]


def make_shortlist(by_source: np.ndarray, counts: np.ndarray, needed: list[int], shared: bool) -> Shortlist:
    """A shortlist of the targets of each source token, the most frequent tokens (by their `counts`), and what
    is `needed`. In a vocabulary that both sides share, a source token may also be copied."""
    most_frequent = np.argsort(-counts, kind="stable")[: FREQUENT * by_source.shape[1]]
    if shared:
        by_source = np.concatenate([np.arange(len(by_source), dtype=np.int32)[:, None], by_source], axis=1)
    always = list(dict.fromkeys([*needed, *most_frequent.tolist()]))
    return Shortlist(torch.from_numpy(by_source), torch.tensor(always, dtype=torch.int32))
