"""Measure continuous batching: tokens per second of many streams, against one text after the other.

    python bench/batching.py [--streams 1 4 16 32] [--jobs 48] [--size tiny] [--context 128] [--vocab 4096]
                             [--rounds 3] [--threads 2]

Each stream sends its next request when the last is answered; prompts and answers have many lengths. The
baseline is `generate`, one text at a time. Times are the best of all rounds, in turns, on a GPU if there is
one. Prints one JSON line at the end.
"""

import argparse
import json
import random
import threading
import time

import torch

from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.models import GPT, MODELS, GPTConfig
from regard.serve.batch import Output
from regard.serve.engine import Engine
from regard.training.machine import choose_device
from regard.training.throughput import synchronize

Request = tuple[list[int], Sampling]


def make_requests(jobs: int, context: int, vocab: int) -> list[Request]:
    rng = random.Random(1)
    return [
        (
            [rng.randrange(vocab) for _ in range(rng.randint(1, context // 4))],
            Sampling(max_new_tokens=rng.randint(context // 8, context // 2), seed=i),
        )
        for i in range(jobs)
    ]


def run_alone(model: GPT, texts: list[Request]) -> tuple[float, float]:
    """Return the seconds for all texts, and the mean time to the first token."""
    begin, firsts = time.perf_counter(), []
    for prompt, sampling in texts:
        started = time.perf_counter()
        for n, _ in enumerate(generate(model, [prompt], sampling)):
            if not n:
                firsts.append(time.perf_counter() - started)
    return time.perf_counter() - begin, sum(firsts) / len(firsts)


def run_together(model: GPT, texts: list[Request], streams: int) -> tuple[float, float]:
    """As `run_alone`, with many streams at once."""
    engine, left, firsts = Engine(model, places=streams), list(reversed(texts)), []
    done = threading.Semaphore(0)

    def submit_next() -> None:
        if not left:
            done.release()
            return
        (prompt, sampling), started = left.pop(), time.perf_counter()
        tokens_seen: list[Output] = []

        def receive(what: Output) -> None:
            if isinstance(what, Exception):
                raise what
            if isinstance(what, str):
                submit_next()
            elif not tokens_seen:
                tokens_seen.append(what)
                firsts.append(time.perf_counter() - started)

        engine.submit(prompt, sampling, receive)

    begin = time.perf_counter()
    for _ in range(streams):
        submit_next()
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
    model, texts = GPT(GPTConfig(**settings)).to(device), make_requests(o.jobs, o.context, o.vocab)
    tokens = sum(sampling.max_new_tokens for _, sampling in texts)
    run_alone(model, texts[:2])
    synchronize(device)
    times: dict[int, list[tuple[float, float]]] = {streams: [] for streams in (0, *o.streams)}
    for _ in range(o.rounds):
        for streams, runs in times.items():
            runs.append(run_together(model, texts, streams) if streams else run_alone(model, texts))
    best = {streams: min(runs) for streams, runs in times.items()}
    print(f"{'streams':>10}{'tokens/s':>12}{'times':>8}{'first token, ms':>18}")
    for streams, (seconds, first) in best.items():
        name, ratio = streams or "generate", best[0][0] / seconds
        print(f"{name:>10}{tokens / seconds:12,.0f}{ratio:8.2f}{1000 * first:18.1f}")
    rates = {streams: tokens / seconds for streams, (seconds, _) in best.items() if streams}
    ratios = {streams: best[0][0] / best[streams][0] for streams in rates}
    about = {"size": o.size, "device": device.type, "threads": o.threads, "jobs": o.jobs, "tokens": tokens}
    print(json.dumps(about | {"alone": tokens / best[0][0], "tokens_per_second": rates, "faster": ratios}))


if __name__ == "__main__":
    main()
