"""Measure the cost of tracing a forward pass, and of being traceable.

    python bench/trace.py [--length 512] [--dim 768] [--heads 12] [--depth 12] [--rounds 5] [--threads 1]

One GPT, random weights, one text. `watched` records every attention, `collected` every intermediate, and
`trace` is `regard.trace`, which also runs the fast path of every attention and adds probabilities and words.
`hookless` is a plain forward pass of a model whose attention cannot be watched; its difference from `plain`
is the cost of being traceable. Times are the best of all rounds, in turns. Prints one JSON line at the end.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.core.attention import Attention, fused_attention, split
from regard.core.positions import rotate
from regard.describe.watch import watch
from regard.models import GPT, GPTConfig
from regard.runs.model import Model
from regard.tasks import TASKS, Write
from regard.text.tokenizer_kinds import train_tokenizer
from regard.tracing import trace
from regard.tracing.record import record


class Hookless(Attention):
    """The same computation, without hooks."""

    def forward(self, x: Tensor, *_: Any, rotary: Any = None, **__: Any) -> Tensor:
        q = rotate(split(self.q(x), self.heads), rotary)
        k, v = rotate(split(self.k(x), self.kv_heads), rotary), split(self.v(x), self.kv_heads)
        return self.out(fused_attention(q, k, v, None, None, True).transpose(1, 2).flatten(2))


def make_model(sizes: dict[str, Any]) -> tuple[Model, str]:
    """A GPT with random weights, and a text that fills its context."""
    letters, context = "abcdefghijklmnopqrstuvwxyz ", sizes["context"]
    tokenizer = train_tokenizer("char", [letters], 64, Write.specials)
    model = GPT(GPTConfig(vocab=16_384, **sizes)).eval()
    task = Write(TASKS["write"][1](name="write"), tokenizer, context)
    return Model(model, task, {}, kind="gpt"), (letters * context)[:context]


def make_kinds(wrapped: Model, text: str) -> dict[str, Callable[[], Tensor]]:
    """The ways to run a model on a text; each returns the logits."""
    model, ids = wrapped.model, torch.tensor([wrapped.task.tokenizer.encode(text)])
    assert ids.shape == (1, len(text))
    layers = [module for module in model.modules() if isinstance(module, Attention)]

    def hookless() -> Tensor:
        for layer in layers:
            layer.__class__ = Hookless
        try:
            return model(ids)
        finally:
            for layer in layers:
                layer.__class__ = Attention

    def watched() -> Tensor:
        with watch(model):
            return model(ids)

    def collect() -> Tensor:
        with record(model) as recording:
            logits = model(ids)
        recording.tensors()
        return logits

    return {
        "plain": lambda: model(ids),
        "hookless": hookless,
        "watched": watched,
        "collected": collect,
        "trace": lambda: trace(wrapped, text)["logits"][None],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("length", 512), ("dim", 768), ("heads", 12), ("depth", 12), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "dim": options.dim,
        "heads": options.heads,
        "depth": options.depth,
        "context": options.length,
    }
    model, text = make_model(sizes)
    kinds = make_kinds(model, text)
    best = dict.fromkeys(kinds, float("inf"))
    with torch.no_grad():
        plain = kinds["plain"]()
        for _ in range(options.rounds):
            for kind, run in kinds.items():
                start = time.perf_counter()
                logits = run()
                best[kind] = min(best[kind], time.perf_counter() - start)
                assert (logits - plain).abs().max() < 1e-3
    traced = trace(model, text)
    size = sum(t.nbytes for t in traced.tensors.values())
    for kind, seconds in best.items():
        print(f"{kind:10} {seconds:8.3f} s   {seconds / best['plain']:5.2f} x plain")
    print(f"{len(traced)} tensors, {size / 1e6:.0f} MB; difference to the fast path {traced.difference:.1e}")
    ratios = {kind: round(seconds / best["plain"], 3) for kind, seconds in best.items()}
    print(json.dumps({"length": options.length, **sizes, "seconds": best, "ratios": ratios, "bytes": size}))


if __name__ == "__main__":
    main()
