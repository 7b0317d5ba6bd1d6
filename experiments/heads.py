"""Heads: fetch several items at once, with one head and with more.

A GPT of one layer reads eight random letters and a question mark, and names the first four letters at once.
Width and number of weights are equal. A softmax points to one place: a single head must blend four letters.

Shapes: B sequences, T letters.
"""

import torch
from torch import Tensor, nn

from experiments.training import Result, cross_entropy, fit, percent
from regard import GPT, GPTConfig
from regard.models.head import ModelWithHead

STEPS = 400
LETTERS, LENGTH, ASKED = 10, 8, 4
VARIANTS = (1, 2, 4)


def make_model(heads: int) -> nn.Module:
    config = GPTConfig(
        vocab=LETTERS + 1, context=LENGTH + 1, dim=32, depth=1, heads=heads, positions="learned"
    )
    return ModelWithHead(GPT(config), ASKED * LETTERS, dropout=0.0)


def draw(count: int) -> Tensor:
    return torch.randint(LETTERS, (count, LENGTH))  # (B, T)


def name_items(model: nn.Module, x: Tensor) -> Tensor:
    """The logits of the items that are asked for, (B, asked, letters)."""
    question = torch.full((len(x), 1), LETTERS)
    return model(torch.cat([x, question], dim=1)).unflatten(1, (ASKED, LETTERS))


def run(seed: int, steps: int = STEPS, variants: tuple[int, ...] = VARIANTS) -> Result:
    result = {}
    for heads in variants:
        torch.manual_seed(seed)
        model = make_model(heads)

        def loss(model: nn.Module = model) -> Tensor:
            x = draw(64)
            return cross_entropy(name_items(model, x), x[:, :ASKED])

        fit(model, loss, steps, lr=1e-2)
        x = draw(1000)
        with torch.no_grad():
            right = name_items(model, x).argmax(-1) == x[:, :ASKED]
        result[f"heads={heads}"] = {
            "letters right, %": percent(right),
            "all four right, %": percent(right.all(1)),
        }
    return result
