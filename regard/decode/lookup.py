"""Prompt-lookup decoding, Saxena 2023: guess the next tokens from what followed the last ones before.

A model reads several guesses in about the time of one token. Right guesses are as many steps at once.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.core.cache import State
from regard.decode.cpu_steps import RoomyKVCache
from regard.models.base import LanguageModel

LENGTHS = 3, 2  # tokens that must have stood there before


def guess_next(ids: Sequence[int], count: int) -> list[int]:
    """Return the tokens, at most `count`, that followed an earlier occurrence of a text's last tokens."""
    text = np.array(ids)
    for n in LENGTHS if count > 0 else ():
        if len(text) > n:
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
            places = np.flatnonzero((windows == text[-n:]).all(1))
            if len(places):
                enough = places[places + n + count <= len(text)]  # with enough tokens after them
                begin = int(enough[-1] if len(enough) else places[0]) + n
                return [int(i) for i in text[begin : begin + count]]
    return []


class Guesses:
    """The steps of one text on a CPU, which read the next token together with guesses at those behind it."""

    def __init__(self, model: LanguageModel, state: State, caches: list[RoomyKVCache], count: int):
        self.model, self.state, self.caches, self.count = model, state, caches, count
        self.ahead: list[int] = []  # guesses that are read, and not compared with the text yet
        self.rows: list[Tensor] = []  # the logits (1, V) behind each of them

    @classmethod
    def of(cls, model: object, state: object, count: int) -> "Guesses | None":
        """Those of a state whose last tokens can be removed, and whose positions follow from its length."""
        if not isinstance(model, LanguageModel) or not isinstance(state, State) or not state.layers:
            return None
        caches = [layer for layer in state.layers if isinstance(layer, RoomyKVCache)]
        plain = state.attention_mask is None and state.positions is None
        return cls(model, state, caches, count) if plain and len(caches) == len(state.layers) else None

    def step(self, text: Sequence[int], limit: int) -> Tensor:
        """The logits (1, V) after a text's last token; up to `limit` guesses are read with it."""
        if self.ahead and self.ahead[0] == text[-1]:
            self.ahead.pop(0)
            return self.rows.pop(0)
        for layer in self.caches:  # the guesses that were wrong
            layer.remove(len(self.ahead))
        self.ahead = guess_next(text, min(self.count, limit))
        device = next(self.model.parameters()).device
        ids = torch.tensor([[text[-1], *self.ahead]], device=device)
        first, *self.rows = self.model.logits(self.model.decode(ids, self.state))[0].split(1)
        return first
