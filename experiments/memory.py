"""Memory: write again what was read long ago, with a state, with a short window and with a long one.

Writers of about the same size read two letters, then other signs, then a question mark, after which they
write the letters again. A GPT attends to its window; a recurrent network has only what its state holds.

Shapes: B texts, T tokens.
"""

import math

import torch
from torch import Tensor, nn

from experiments.training import Result, cross_entropy, fit, percent
from regard import GPT, GPTConfig
from regard.models import RecurrentLM, RecurrentLMConfig

STEPS = 600
LETTERS, SIGNS, RECALLED = 10, 4, 2
ASK = LETTERS + SIGNS  # the question mark
DISTANCES = (4, 8, 16, 32, 64)  # from the first letter to the question mark
VARIANTS = ("RNN", "LSTM", "GPT, 17 tokens", "GPT, all tokens")
WINDOW = 9  # tokens that each of two layers attends to, itself included: 17 together


def make_model(variant: str) -> tuple[nn.Module, float]:
    """A model of about 60,000 weights, and the learning rate that suits it."""
    vocab, context = ASK + 1, DISTANCES[-1] + RECALLED + 1
    match variant:
        case "RNN":
            rnn = RecurrentLMConfig(vocab=vocab, context=context, dim=176, cell="rnn")
            return RecurrentLM(rnn), 5e-4
        case "LSTM":
            lstm = RecurrentLMConfig(vocab=vocab, context=context, dim=88, cell="lstm")
            return RecurrentLM(lstm), 1e-2
    window = WINDOW if variant == "GPT, 17 tokens" else None
    gpt = GPTConfig(vocab=vocab, context=context, dim=48, depth=2, heads=4, sliding_window=window)
    return GPT(gpt), 5e-3


def draw(count: int, distance: int) -> Tensor:
    letters = torch.randint(LETTERS, (count, RECALLED))
    signs = LETTERS + torch.randint(SIGNS, (count, distance - RECALLED))
    return torch.cat([letters, signs, torch.full((count, 1), ASK), letters], dim=1)  # (B, T)


def draw_distance() -> int:
    """Short distances as often as long ones: uniform in their logarithm."""
    low, high = math.log(DISTANCES[0]), math.log(DISTANCES[-1])
    return round(math.exp(torch.empty(()).uniform_(low, high).item()))


def run(seed: int, steps: int = STEPS, variants: tuple[str, ...] = VARIANTS) -> Result:
    result: Result = {}
    for variant in variants:
        torch.manual_seed(seed)
        model, lr = make_model(variant)

        def loss(model: nn.Module = model) -> Tensor:
            x = draw(32, draw_distance())
            return cross_entropy(model(x[:, :-1])[:, -RECALLED:], x[:, -RECALLED:])

        fit(model, loss, steps, lr)
        result[variant] = {}
        for distance in DISTANCES:
            x = draw(300, distance)
            with torch.no_grad():
                right = model(x[:, :-1])[:, -RECALLED:].argmax(-1) == x[:, -RECALLED:]
            result[variant][f"{distance} back: right, %"] = percent(right)
    return result
