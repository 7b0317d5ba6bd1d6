"""Order: reverse a sequence, with and without positions.

A Transformer of one layer reads eight random letters and generates them in reverse. Without positions,
attention sees a bag of letters: it cannot know which letter stood where.

Shapes: B sequences, T letters.
"""

from typing import Literal

import torch
from torch import Tensor

from experiments.training import Result, cross_entropy, fit, generate_greedily, percent, shift_right
from regard import Transformer, TransformerConfig

STEPS = 400
LETTERS, LENGTH = 10, 8  # the letters are 1 to 10; 0 begins an answer
Positions = Literal["none", "sinusoidal", "learned"]
VARIANTS: tuple[Positions, ...] = ("none", "sinusoidal", "learned")


def run(seed: int, steps: int = STEPS, variants: tuple[Positions, ...] = VARIANTS) -> Result:
    result = {}
    for positions in variants:
        torch.manual_seed(seed)
        config = TransformerConfig(
            vocab=1 + LETTERS, context=LENGTH, dim=32, depth=1, heads=2, dropout=0.0, positions=positions
        )
        model = Transformer(config)

        def draw(count: int) -> Tensor:
            return 1 + torch.randint(LETTERS, (count, LENGTH))  # (B, T)

        def loss(model: Transformer = model) -> Tensor:
            x = draw(64)
            return cross_entropy(model(x, shift_right(x.flip(1))), x.flip(1))

        fit(model, loss, steps, lr=1e-2)
        x = draw(500)
        right = generate_greedily(model, x, LENGTH) == x.flip(1)
        result[f"positions={positions}"] = {
            "letters right, %": percent(right),
            "whole sequences right, %": percent(right.all(1)),
        }
    return result
