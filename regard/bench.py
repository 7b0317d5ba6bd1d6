"""Measure the speed of training and generation with a GPT, next to transformers if it is installed.

The libraries run in turns, under the same conditions. Don't compare times from different machines.
"""

import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import Corpus, Stream
from regard.decode.generate import generate
from regard.decode.sampling import Sampling
from regard.draw.terminal import progress
from regard.models import GPT, GPTConfig
from regard.runs import recipe
from regard.tasks import Write, WriteConfig
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.config import TrainConfig
from regard.training.machine import choose_device
from regard.training.throughput import synchronize
from regard.training.trainer import Trainer

SIZES = {  # preset: vocabulary, batch size of a training step
    "pico": (67, 3),
    "tiny": (65, 12),
    "mini": (65, 64),
    "gpt2": (50257, 8),
}
BATCHES = 1, 16  # texts generated at once
PEER = "transformers"
Job = Callable[[], int]  # runs once and returns the number of tokens


def bench(size: str = "tiny", seconds: float = 3.0) -> dict[str, Any]:
    """Print and return tokens per second: ours, and of GPT-2 in transformers if that is installed."""
    device = choose_device("auto")
    has_peer = importlib.util.find_spec(PEER) is not None
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(size, device, Path(folder))
        jobs: dict[str, dict[str, Job]] = {"learning": {"regard": train_job(trainer)}}
        jobs |= {f"writing, {n} at once": {"regard": generate_job(size, device, n)} for n in BATCHES}
        if has_peer:
            jobs["learning"][PEER] = peer_train_job(size, device)
            for n in BATCHES:
                jobs[f"writing, {n} at once"][PEER] = peer_generate_job(size, device, n)
        with progress("measuring", sum(map(len, jobs.values()))) as advance:
            rates = {name: measure(job, seconds, device, advance) for name, job in jobs.items()}
    for notice, _ in trainer.reporter.pending:
        print(notice, file=sys.stderr)
    print(f"{size}, {device}, {torch.get_num_threads()} threads: tokens per second")
    for job, by_library in rates.items():
        ratio = f"   {by_library['regard'] / by_library[PEER]:.2f} x {PEER}" if has_peer else ""
        print(f"{job:20}" + "".join(f"  {name} {rate:,.0f}" for name, rate in by_library.items()) + ratio)
    if not has_peer:
        print(f"to compare: pip install {PEER}", file=sys.stderr)
    about = {"size": size, "device": device.type, "threads": torch.get_num_threads()}
    print(json.dumps(about | {"torch": torch.__version__, "tokens_per_second": rates}))
    return rates


def measure(
    jobs: dict[str, Job], seconds: float, device: torch.device, advance: Callable[[int], None]
) -> dict[str, float]:
    """Return the best rate of each job. They run in turns, after one run each to warm up."""
    for job in jobs.values():
        job()
        advance(1)
    best = dict.fromkeys(jobs, 0.0)
    end = time.perf_counter() + seconds * len(jobs)
    while time.perf_counter() < end or 0.0 in best.values():
        for name, job in jobs.items():
            synchronize(device)
            start = time.perf_counter()
            tokens = job()
            synchronize(device)
            best[name] = max(best[name], tokens / (time.perf_counter() - start))
    return best


def model_sizes(size: str) -> tuple[int, int, dict[str, Any]]:
    """Return the vocabulary, the batch size and the configuration of a GPT-2, which both libraries have."""
    vocab, rows = SIZES[size]
    return vocab, rows, GPTConfig.PRESETS["gpt2"] | GPTConfig.PRESETS[size]


def make_trainer(size: str, device: torch.device, folder: Path) -> Trainer:
    vocab, rows, shape = model_sizes(size)
    tokens = np.random.default_rng(0).integers(vocab, size=200_000).astype(np.uint16)
    model = GPT(GPTConfig(vocab=vocab, **shape)).to(device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    task = Write(WriteConfig(name="write"), tokenizer, shape["context"])
    changes = {"train.batch": rows, "train.optimizer": "adamw"}
    config = recipe.fill("train", recipe.change(recipe.read("write"), changes)["train"], TrainConfig)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    return Trainer(folder, task, model, corpus, config, device)


def train_job(trainer: Trainer) -> Job:
    """One step of the full training loop: data, model, optimizer."""

    def step() -> int:
        trainer.train_step()
        return trainer.config.batch * int(trainer.task.context)

    return step


def generate_job(size: str, device: torch.device, batch: int) -> Job:
    vocab, _, shape = model_sizes(size)
    model = GPT(GPTConfig(vocab=vocab, **shape)).to(device).eval()
    prompts, new = make_prompts(vocab, shape["context"], batch)

    def generate_once() -> int:
        steps = generate(model, prompts, Sampling(max_new_tokens=new, temperature=0))
        return sum(token is not None for tokens in steps for token in tokens)

    return generate_once


def make_prompts(vocab: int, context: int, batch: int) -> tuple[list[list[int]], int]:
    """Return random prompts, and the number of tokens to generate: together at most half of the context."""
    rng = np.random.default_rng(1)
    return rng.integers(vocab, size=(batch, context // 4)).tolist(), min(64, context // 4)


@contextmanager
def quiet_peer() -> Iterator[Any]:
    """Import transformers, with its log messages turned off."""
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        transformers.logging.set_verbosity(before)


def peer_model(size: str, device: torch.device) -> Any:
    vocab, _, shape = model_sizes(size)
    with quiet_peer() as library:
        config = library.GPT2Config(
            vocab_size=vocab,
            n_positions=shape["context"],
            n_embd=shape["dim"],
            n_layer=shape["depth"],
            n_head=shape["heads"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
        return library.GPT2LMHeadModel(config).to(device)


def peer_train_job(size: str, device: torch.device) -> Job:
    vocab, rows, shape = model_sizes(size)
    model = peer_model(size, device).train()
    cuda = device.type == "cuda"
    forward = torch.compile(model) if cuda else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
    ids = torch.randint(vocab, (rows, shape["context"]), device=device)

    def step() -> int:
        with quiet_peer(), torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ids.numel()

    return step


def peer_generate_job(size: str, device: torch.device, batch: int) -> Job:
    vocab, _, shape = model_sizes(size)
    model = peer_model(size, device).eval()
    prompts, new = make_prompts(vocab, shape["context"], batch)
    ids = torch.tensor(prompts, device=device)

    def generate_once() -> int:
        with quiet_peer(), torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
            )
        return out[:, ids.shape[1] :].numel()

    return generate_once
