"""Distance: copy a sequence by its length, from one fixed vector and with attention.

Two GRU translators, equal but for the attention, learn to copy 2 to 24 random letters in the same number of
steps. Each generates its answer alone; what counts is the share of letters that are right.

Shapes: B sequences, S letters, T generated letters.
"""

from typing import Literal

import torch
from torch import Tensor

from experiments.training import Result, cross_entropy, fit, generate_greedily, percent, shift_right
from regard import GRUConfig, Seq2Seq

STEPS = 600
LETTERS = 10  # the letters are 1 to 10; 0 begins an answer
LENGTHS = (4, 8, 12, 16, 20, 24)
VARIANTS: dict[str, Literal["none", "additive"]] = {"fixed vector": "none", "attention": "additive"}


def draw(count: int, length: int) -> Tensor:
    return 1 + torch.randint(LETTERS, (count, length))  # (B, S)


def run(seed: int, steps: int = STEPS, lengths: tuple[int, ...] = LENGTHS) -> Result:
    result: Result = {}
    longest = max(lengths)
    for name, attention in VARIANTS.items():
        torch.manual_seed(seed)
        model = Seq2Seq(
            GRUConfig(vocab=1 + LETTERS, context=longest, dim=64, dropout=0.0, attention=attention)
        )

        def loss(model: Seq2Seq = model) -> Tensor:
            x = draw(32, int(torch.randint(2, longest + 1, ())))
            return cross_entropy(model(x, shift_right(x)), x)

        fit(model, loss, steps, lr=5e-3)
        result[name] = {}
        for length in lengths:
            x = draw(200, length)
            right = generate_greedily(model, x, length) == x
            result[name][f"{length} letters: right, %"] = percent(right)
    return result
