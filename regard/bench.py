"""What this machine does: how fast a GPT learns and writes, beside another library, if it is installed.

All are measured in turns, so that they see the same machine. Times of different machines don't compare.
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

from . import recipe
from .data import Corpus, Stream
from .display import progress
from .generate import Sampling, generate
from .meter import wait
from .models import GPT, GPT_PRESETS, GPTConfig
from .tasks import Write, WriteConfig
from .text import train_tokenizer
from .train import choose_device
from .trainer import TrainConfig, Trainer

SIZES = {  # a preset: vocabulary, texts a step of learning
    "pico": (67, 3),
    "tiny": (65, 12),
    "mini": (65, 64),
    "gpt2": (50257, 8),
}
STREAMS = 1, 16  # texts that are written at once
PEER = "transformers"
Run = Callable[[], int]  # does something, and tells how many tokens that were


def bench(size: str = "tiny", seconds: float = 3.0) -> dict[str, Any]:
    """Tokens a second, of ours and of Hugging Face's GPT-2 of the same size if it is installed."""
    device = choose_device("auto")
    there = importlib.util.find_spec(PEER) is not None
    with tempfile.TemporaryDirectory() as folder:
        jobs: dict[str, dict[str, Run]] = {"learning": {"regard": learning(size, device, Path(folder))}}
        jobs |= {f"writing, {n} at once": {"regard": writing(size, device, n)} for n in STREAMS}
        if there:
            jobs["learning"][PEER] = their_learning(size, device)
            for n in STREAMS:
                jobs[f"writing, {n} at once"][PEER] = their_writing(size, device, n)
        with progress("measuring", sum(map(len, jobs.values()))) as advance:
            rates = {job: measured(runs, seconds, device, advance) for job, runs in jobs.items()}
    print(f"{size}, {device}, {torch.get_num_threads()} threads: tokens a second")
    for job, found in rates.items():
        ratio = f"   {found['regard'] / found[PEER]:.2f} x {PEER}" if PEER in found else ""
        print(f"{job:20}" + "".join(f"  {name} {rate:,.0f}" for name, rate in found.items()) + ratio)
    if not there:
        print(f"to compare: pip install {PEER}", file=sys.stderr)
    made = {"size": size, "device": device.type, "threads": torch.get_num_threads()}
    print(json.dumps(made | {"torch": torch.__version__, "tokens_per_second": rates}))
    return rates


def measured(
    runs: dict[str, Run], seconds: float, device: torch.device, advance: Callable[[int], None]
) -> dict[str, float]:
    """The best rate of each, in turns, after a first time that does not count."""
    for run in runs.values():
        run()
        advance(1)
    best = dict.fromkeys(runs, 0.0)
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or 0.0 in best.values():
        for name, run in runs.items():
            wait(device)
            start = time.perf_counter()
            tokens = run()
            wait(device)
            best[name] = max(best[name], tokens / (time.perf_counter() - start))
    return best


def sizes(size: str) -> tuple[int, int, dict[str, Any]]:
    """Vocabulary, texts a step, and the shape: GPT-2's, which both libraries have."""
    vocab, rows = SIZES[size]
    return vocab, rows, GPT_PRESETS["gpt2"] | GPT_PRESETS[size]


def learning(size: str, device: torch.device, folder: Path) -> Run:
    """A step of the whole training loop: data, model, optimizer."""
    vocab, rows, shape = sizes(size)
    tokens = np.random.default_rng(0).integers(vocab, size=200_000).astype(np.uint16)
    model = GPT(GPTConfig(vocab=vocab, **shape)).to(device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    task = Write(WriteConfig(name="write"), tokenizer, shape["context"])
    changes = {"train.batch": rows, "train.optimizer": "adamw"}
    config = recipe.fill("train", recipe.change(recipe.read("write"), changes)["train"], TrainConfig)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    trainer = Trainer(folder, task, model, corpus, config, device)
    trainer.started = time.monotonic()

    def step() -> int:
        trainer.train_step()
        return rows * int(shape["context"])

    return step


def writing(size: str, device: torch.device, streams: int) -> Run:
    vocab, _, shape = sizes(size)
    model = GPT(GPTConfig(vocab=vocab, **shape)).to(device).eval()
    prompts, new = prompt(vocab, shape["context"], streams)

    def write() -> int:
        steps = generate(model, prompts, Sampling(max_new_tokens=new, temperature=0))
        return sum(token is not None for tokens in steps for token in tokens)

    return write


def prompt(vocab: int, context: int, streams: int) -> tuple[list[list[int]], int]:
    """Texts to go on from, and by how many tokens: up to half of the context."""
    dice = np.random.default_rng(1)
    return dice.integers(vocab, size=(streams, context // 4)).tolist(), min(64, context // 4)


@contextmanager
def quietly() -> Iterator[Any]:
    """The other library, which has much to say."""
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        transformers.logging.set_verbosity(before)


def theirs(size: str, device: torch.device) -> Any:
    vocab, _, shape = sizes(size)
    with quietly() as library:
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


def their_learning(size: str, device: torch.device) -> Run:
    vocab, rows, shape = sizes(size)
    model = theirs(size, device).train()
    cuda = device.type == "cuda"
    run = torch.compile(model) if cuda else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cuda)
    ids = torch.randint(vocab, (rows, shape["context"]), device=device)

    def step() -> int:
        with quietly(), torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ids.numel()

    return step


def their_writing(size: str, device: torch.device, streams: int) -> Run:
    vocab, _, shape = sizes(size)
    model = theirs(size, device).eval()
    prompts, new = prompt(vocab, shape["context"], streams)
    ids = torch.tensor(prompts, device=device)

    def write() -> int:
        with quietly(), torch.inference_mode():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
            )
        return found[:, ids.shape[1] :].numel()

    return write
