"""Serving: tokens a second of many streams in one running batch, against one text after the other.

    python bench/batching.py [--streams 1 4 16 32] [--jobs 48] [--size tiny] [--context 128] [--vocab 4096]
                             [--rounds 3] [--threads 2]

Every stream asks again as soon as it is answered; prompts and answers are of many lengths. What each gets is
what it would get alone. One after the other: by `generate`. Best of all rounds, in turns; on a GPU where
there is one. Ends with one JSON line.
"""

import argparse
import json
import random
import threading
import time

import torch

from regard.generate import Sampling, generate
from regard.meter import wait
from regard.models import GPT, MODELS, GPTConfig
from regard.serve.engine import Engine, Token
from regard.train import choose_device

Ask = tuple[list[int], Sampling]


def asks(jobs: int, context: int, vocab: int) -> list[Ask]:
    rng = random.Random(1)
    return [
        (
            [rng.randrange(vocab) for _ in range(rng.randint(1, context // 4))],
            Sampling(max_new_tokens=rng.randint(context // 8, context // 2), seed=i),
        )
        for i in range(jobs)
    ]


def alone(model: GPT, texts: list[Ask]) -> tuple[float, float]:
    """Seconds, and the mean time to the first token."""
    begin, firsts = time.perf_counter(), []
    for prompt, how in texts:
        asked = time.perf_counter()
        for n, _ in enumerate(generate(model, [prompt], how)):
            if not n:
                firsts.append(time.perf_counter() - asked)
    return time.perf_counter() - begin, sum(firsts) / len(firsts)


def together(model: GPT, texts: list[Ask], streams: int) -> tuple[float, float]:
    """The same, of so many streams at once."""
    engine, left, firsts = Engine(model, places=streams), list(reversed(texts)), []
    done = threading.Semaphore(0)

    def ask() -> None:
        if not left:
            done.release()
            return
        (prompt, how), asked, seen = left.pop(), time.perf_counter(), []

        def heard(what: Token | str | Exception) -> None:
            if isinstance(what, Exception):
                raise what
            if isinstance(what, str):
                ask()
            elif not seen:
                seen.append(what)
                firsts.append(time.perf_counter() - asked)

        engine.submit(prompt, how, heard)

    begin = time.perf_counter()
    for _ in range(streams):
        ask()
    for _ in range(streams):
        done.acquire()
    seconds = time.perf_counter() - begin
    engine.close()
    return seconds, sum(firsts) / len(firsts)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 32])
    p.add_argument("--jobs", type=int, default=48)
    p.add_argument("--size", default="tiny")
    p.add_argument("--context", type=int, default=128)
    p.add_argument("--vocab", type=int, default=4096)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    device = choose_device("auto")
    settings = MODELS["gpt"][2][o.size] | {"context": o.context, "vocab": o.vocab}
    model, texts = GPT(GPTConfig(**settings)).to(device), asks(o.jobs, o.context, o.vocab)
    tokens = sum(how.max_new_tokens for _, how in texts)
    alone(model, texts[:2])
    wait(device)
    times: dict[int, list[tuple[float, float]]] = {streams: [] for streams in (0, *o.streams)}
    for _ in range(o.rounds):
        for streams, found in times.items():
            found.append(together(model, texts, streams) if streams else alone(model, texts))
    best = {streams: min(found) for streams, found in times.items()}
    print(f"{'streams':>10}{'tokens/s':>12}{'times':>8}{'first token, ms':>18}")
    for streams, (seconds, first) in best.items():
        name, ratio = streams or "generate", best[0][0] / seconds
        print(f"{name:>10}{tokens / seconds:12,.0f}{ratio:8.2f}{1000 * first:18.1f}")
    rates = {streams: tokens / seconds for streams, (seconds, _) in best.items() if streams}
    ratios = {streams: best[0][0] / best[streams][0] for streams in rates}
    known = {"size": o.size, "device": device.type, "threads": o.threads, "jobs": o.jobs, "tokens": tokens}
    print(json.dumps(known | {"alone": tokens / best[0][0], "tokens_per_second": rates, "faster": ratios}))


if __name__ == "__main__":
    main()
