"""Measure training speed: our full loop and nanoGPT's, same sizes, in turns on one machine.

    python -m bench.train [--size tiny|mini|gpt2] [--nanogpt FOLDER] [--set train.precision=bf16]...

FOLDER is a checkout of nanoGPT (its model.py is used unchanged). Without it the peer on a CPU is a plain
float32 loop like its (bench/rows/plain_gpt.py). Ratios by the processor's clock, too, as a busy machine
changes them less.
Prints one JSON line at the end.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench.rows.plain_gpt import plain_training

from regard.bench.measure import Options
from regard.bench.peers import nanogpt_training
from regard.data import Corpus, Stream
from regard.models import GPT, GPTConfig
from regard.runs import recipe
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.config import TrainConfig
from regard.training.machine import choose_device
from regard.training.throughput import synchronize
from regard.training.trainer import Trainer

SIZES = {  # vocabulary, sequences per step, steps per round
    "tiny": (65, 12, 20),
    "mini": (65, 64, 20),
    "gpt2": (50257, 32, 10),
}


def make_regard_step(
    size: str, tokens: np.ndarray, device: torch.device, changes: dict
) -> Callable[[], object]:
    vocab, batch, _ = SIZES[size]
    sections = recipe.change(
        recipe.read("write"), {"train.batch": batch, "train.steps": 500, "train.optimizer": "muon"} | changes
    )
    model = GPT(GPTConfig(vocab=vocab, **GPTConfig.PRESETS[size])).to(device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    task = Write(WriteConfig(name="write"), tokenizer, model.config.context)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    config = recipe.fill("train", sections["train"], TrainConfig)
    trainer = Trainer(Path(tempfile.mkdtemp()), task, model, corpus, config, device)
    return trainer.train_step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--nanogpt", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    device = choose_device("auto")
    vocab, batch, steps = SIZES[options.size]
    tokens = np.random.default_rng(0).integers(vocab, size=2_000_000).astype(np.uint16)
    changes = recipe.assignments(options.set)
    loops = {"regard": make_regard_step(options.size, tokens, device, changes)}
    if "train.optimizer" not in changes:
        loops["regard adamw"] = make_regard_step(
            options.size, tokens, device, changes | {"train.optimizer": "adamw"}
        )
    if options.nanogpt:
        loops["nanogpt"] = nanogpt_training(
            options.size, tokens, batch, Options(device, nanogpt=Path(options.nanogpt))
        )
    elif device.type == "cpu":
        loops["plain"] = plain_training(GPTConfig.PRESETS[options.size], vocab, tokens, batch)
    times: dict[str, list[float]] = {name: [] for name in loops}
    processor: dict[str, list[float]] = {name: [] for name in loops}
    for step in loops.values():
        for _ in range(5):
            step()
    for _ in range(options.rounds):  # in turns, under the same conditions
        for name, step in loops.items():
            synchronize(device)
            start, used = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            synchronize(device)
            processor[name].append((time.process_time() - used) / steps)
            times[name].append((time.perf_counter() - start) / steps)
    per_step = batch * GPTConfig.PRESETS[options.size]["context"]
    rates = {name: per_step / statistics.median(step_times) for name, step_times in times.items()}
    work = {name: statistics.median(step_times) for name, step_times in processor.items()}
    for name, rate in rates.items():
        peer = next((one for one in ("nanogpt", "plain") if one in rates), name)
        against = (
            f"  {rate / rates[peer]:.2f}x {peer}, {work[peer] / work[name]:.2f}x by the processor's clock"
        )
        print(f"{name:14} {rate:12,.0f} tokens/s{against}")
    print(
        json.dumps(
            {"size": options.size, "device": device.type, "set": options.set, "tokens_per_second": rates}
        )
    )


if __name__ == "__main__":
    main()
