"""What it costs to trace: all of a forward, against the plain forward; and what it costs not to.

    python bench/trace.py [--length 512] [--dim 768] [--heads 12] [--depth 12] [--rounds 5] [--threads 1]

One GPT, random weights, one text. `watched` records every attention on the open path, `collected` every
intermediate, `trace` is `regard.trace` with all it does: the fast path of every attention besides, the
probabilities, the words.
`hookless` is the plain forward of a model whose attention cannot be watched: the difference to `plain` is
what being watchable costs. Times are the best of all rounds, in turns. Ends with one JSON line.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention import Attention, fused, split
from regard.models import GPT, GPTConfig
from regard.positions import rotate
from regard.run import Model
from regard.tasks import TASKS, Write
from regard.text import train_tokenizer
from regard.trace import trace
from regard.trace.collecting import collected
from regard.watch import watch


class Hookless(Attention):
    """The same arithmetic, and nothing that would look on."""

    def forward(self, x: Tensor, *_: Any, turn: Any = None, **__: Any) -> Tensor:  # type: ignore[override]
        q = rotate(split(self.q(x), self.heads), turn)
        k, v = rotate(split(self.k(x), self.kv_heads), turn), split(self.v(x), self.kv_heads)
        return self.out(fused(q, k, v, None, None, True).transpose(1, 2).flatten(2))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("length", 512), ("dim", 768), ("heads", 12), ("depth", 12), ("rounds", 5)):
        p.add_argument(f"--{name}", type=int, default=usual)
    p.add_argument("--threads", type=int, default=1)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    letters = "abcdefghijklmnopqrstuvwxyz "
    tokenizer = train_tokenizer("char", [letters], 64, Write.specials)
    sizes = {"dim": o.dim, "heads": o.heads, "depth": o.depth, "context": o.length}
    model = GPT(GPTConfig(vocab=16_384, **sizes)).eval()
    made = Model(model, Write(TASKS["write"][1](name="write"), tokenizer, o.length), {}, kind="gpt")
    text = (letters * o.length)[: o.length]
    ids = torch.tensor([tokenizer.encode(text)])
    assert ids.shape == (1, o.length)

    def hookless() -> Tensor:
        for block in model.blocks:
            block.attn.f.__class__ = Hookless
        try:
            return model(ids)
        finally:
            for block in model.blocks:
                block.attn.f.__class__ = Attention

    def watched() -> Tensor:
        with watch(model):
            return model(ids)

    def all_of_it() -> Tensor:
        with collected(model) as found:
            logits = model(ids)
        found.tensors()
        return logits

    kinds: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: model(ids),
        "hookless": hookless,
        "watched": watched,
        "collected": all_of_it,
        "trace": lambda: trace(made, text)["logits"][None],
    }
    best = dict.fromkeys(kinds, float("inf"))
    with torch.no_grad():
        plain = model(ids)
        for _ in range(o.rounds):
            for kind, run in kinds.items():
                start = time.perf_counter()
                logits = run()
                best[kind] = min(best[kind], time.perf_counter() - start)
                assert (logits - plain).abs().max() < 1e-3
    found = trace(made, text)
    size = sum(t.nbytes for t in found.tensors.values())
    for kind, seconds in best.items():
        print(f"{kind:10} {seconds:8.3f} s   {seconds / best['plain']:5.2f} x plain")
    print(f"{len(found)} tensors, {size / 1e6:.0f} MB; difference to the fast path {found.difference:.1e}")
    ratios = {kind: round(seconds / best["plain"], 3) for kind, seconds in best.items()}
    print(json.dumps({"length": o.length, **sizes, "seconds": best, "ratios": ratios, "bytes": size}))


if __name__ == "__main__":
    main()
