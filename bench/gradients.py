"""Measure how far back gradients reach: |d log p(y_1) / d x_s| by the number of words after x_s.

    python bench/gradients.py [--length 100] [--seeds 3]

Untrained models on random words. Prints a table of the norm relative to that of the nearest word, and one
JSON line at the end.
"""

import argparse
import json

import torch
from torch import Tensor

from regard.models import MODELS

VOCAB, DIM, ROWS = 1000, 256, 32
FIXED = {"attention": "none", "bidirectional": False}
CASES: dict[str, tuple[str, dict[str, object]]] = {  # name: kind of model, settings
    "RNN": ("rnn", FIXED),
    "GRU": ("gru", FIXED),
    "LSTM": ("lstm", FIXED),
    "GRU + attention": ("gru", {}),
    "Transformer": ("transformer", {"heads": 4}),
}


def gradient_norms(kind: str, settings: dict[str, object], length: int, seed: int) -> Tensor:
    """Return the mean gradient norm (S,) of each source word, from the first to the last."""
    torch.manual_seed(seed)
    model_class, config, _ = MODELS[kind]
    model = model_class(config(vocab=VOCAB, context=length + 1, dim=DIM, dropout=0.0, **settings))
    words: list[Tensor] = []
    hook = model.embed.register_forward_hook(lambda _, __, out: words.append(out))
    log_p = model(torch.randint(VOCAB, (ROWS, length)), torch.zeros(ROWS, 1, dtype=torch.long)).log_softmax(
        -1
    )
    hook.remove()
    chosen = log_p[:, 0].gather(-1, torch.randint(VOCAB, (ROWS, 1)))
    (grad,) = torch.autograd.grad(chosen.sum(), words[0])  # the source is embedded before the target
    return grad.norm(dim=-1).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    results = {}
    shown = [d for d in (1, 2, 5, 10, 20, 30, 50, 75, 100) if d <= options.length]
    print(f"{'words between':20}", *(f"{d:>8}" for d in shown))
    for name, (kind, settings) in CASES.items():
        each = [gradient_norms(kind, settings, options.length, seed) for seed in range(options.seeds)]
        mean = torch.stack(each).mean(0).flip(0)  # from the last word of the source back
        relative = (mean / mean[0]).tolist()
        results[name] = {d + 1: x for d, x in enumerate(relative)}
        print(f"{name:20}", *(f"{relative[d - 1]:8.1e}" for d in shown))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
