"""Measure training speed: our full loop and nanoGPT's, same sizes, in turns on one machine.

    python bench/train.py [--size tiny|mini|gpt2] [--nanogpt FOLDER] [--set train.precision=bf16]...

FOLDER is a checkout of nanoGPT (its model.py is used unchanged); without it only our own rates are printed.
Prints one JSON line at the end.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

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
    sections = recipe.change(recipe.read("write"), {"train.batch": batch} | changes)
    model = GPT(GPTConfig(vocab=vocab, **GPTConfig.PRESETS[size])).to(device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    task = Write(WriteConfig(name="write"), tokenizer, model.config.context)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    config = recipe.fill("train", sections["train"], TrainConfig)
    trainer = Trainer(Path(tempfile.mkdtemp()), task, model, corpus, config, device)
    return trainer.train_step


def make_nanogpt_step(
    folder: str, size: str, tokens: np.ndarray, device: torch.device
) -> Callable[[], object]:
    """The loop of its train.py, with the settings of its README for this size."""
    sys.path.insert(0, folder)
    from model import GPT as Theirs  # type: ignore[import-not-found]
    from model import GPTConfig as TheirConfig

    vocab, batch, _ = SIZES[size]
    s = GPTConfig.PRESETS[size]
    sizes = {"n_layer": s["depth"], "n_head": s["heads"], "n_embd": s["dim"], "block_size": s["context"]}
    vocab = 50304 if size == "gpt2" else vocab
    model = Theirs(TheirConfig(vocab_size=vocab, dropout=0.0, bias=False, **sizes)).to(device)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), device.type)
    cuda = device.type == "cuda"
    run = torch.compile(model) if cuda else model
    T = s["context"]

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(tokens) - T, (batch,))
        x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
        if cuda:
            x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x, y

    def step() -> None:
        x, y = get_batch()
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            _, loss = run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


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
        loops["nanogpt"] = make_nanogpt_step(options.nanogpt, options.size, tokens, device)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for step in loops.values():
        for _ in range(5):
            step()
    for _ in range(options.rounds):  # in turns, under the same conditions
        for name, step in loops.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
            synchronize(device)
            times[name].append((time.perf_counter() - start) / steps)
    per_step = batch * GPTConfig.PRESETS[options.size]["context"]
    rates = {name: per_step / statistics.median(step_times) for name, step_times in times.items()}
    for name, rate in rates.items():
        against = f"  {rate / rates['nanogpt']:.2f}x nanoGPT" if "nanogpt" in rates else ""
        print(f"{name:14} {rate:12,.0f} tokens/s{against}")
    print(
        json.dumps(
            {"size": options.size, "device": device.type, "set": options.set, "tokens_per_second": rates}
        )
    )


if __name__ == "__main__":
    main()
