"""Prompt-lookup decoding, Saxena 2023: guess the next tokens from what followed the last ones before.

A model reads several guesses in about the time of one token. Those that turn out right are as many steps at
once.

Shapes: T tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.decode.cpu_steps import RoomyKVCache

LENGTHS = 3, 2  # tokens that must have stood there before


def guess_next(ids: Sequence[int], count: int) -> list[int]:
    """What followed the last tokens of a text the last time they were there: at most `count` tokens."""
    text = np.array(ids)
    for n in LENGTHS if count > 0 else ():
        if len(text) > n:
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], n)
            places = np.flatnonzero((windows == text[-n:]).all(1))
            if len(places):
                enough = places[places + n + count <= len(text)]  # with so many tokens behind them
                begin = int(enough[-1] if len(enough) else places[0]) + n
                return [int(i) for i in text[begin : begin + count]]
    return []


class Guesses:
    """The steps of one text on a CPU, which read the next token together with guesses at those behind it."""

    def __init__(self, model: Any, state: Any, count: int):
        self.model, self.state, self.count = model, state, count
        self.ahead: list[int] = []  # guesses that are read, and not compared with the text yet
        self.rows: list[Tensor] = []  # the logits (1, V) behind each of them

    @staticmethod
    def suit(state: Any) -> bool:
        """Whether a state's last tokens can be removed again, and its positions follow from its length."""
        layers = getattr(state, "layers", ())
        removable = bool(layers) and all(isinstance(layer, RoomyKVCache) for layer in layers)
        return removable and state.attention_mask is None and state.positions is None

    def step(self, text: Sequence[int], most: int) -> Tensor:
        """The logits (1, V) after a text's last token; up to `most` guesses are read with it."""
        if self.ahead and self.ahead[0] == text[-1]:
            self.ahead.pop(0)
            return self.rows.pop(0)
        for layer in self.state.layers:  # the guesses that were wrong
            layer.remove(len(self.ahead))
        self.ahead = guess_next(text, min(self.count, most))
        device = next(self.model.parameters()).device
        ids = torch.tensor([[text[-1], *self.ahead]], device=device)
        first, *self.rows = self.model.logits(self.model.decode(ids, self.state))[0].split(1)
        return first
