"""Measure training speed on pairs: our full loop for each kind of model, and Hugging Face's Marian.

    python bench/pairs.py [--dim 256] [--depth 2] [--tokens 4096] [--vocab 8000] [--rounds 3] [--set K=V]

Pairs are random words with the lengths of ordinary sentences. Marian has the sizes of our Transformer, and
trains with AdamW on the same batches, in turns. Rates are target tokens per second, without padding. Prints
one JSON line at the end.
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
from torch import nn

from regard.data import Corpus, PairDataset
from regard.data.ragged import Ragged
from regard.models import MODELS
from regard.runs import recipe
from regard.tasks import Translate, TranslateConfig, targets
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training.config import TrainConfig
from regard.training.machine import choose_device
from regard.training.prefetch import to_device
from regard.training.throughput import synchronize
from regard.training.trainer import Trainer

CASES: dict[str, tuple[str, dict]] = {
    "RNN": ("rnn", {"attention": "none", "bidirectional": False}),
    "GRU": ("gru", {"attention": "none", "bidirectional": False}),
    "LSTM": ("lstm", {"attention": "none", "bidirectional": False}),
    "GRU + dot attention": ("gru", {"attention": "dot"}),
    "GRU + additive attention": ("gru", {"attention": "additive"}),
    "Transformer": ("transformer", {"heads": 4, "pre": True}),
}
PEER = "Marian (Hugging Face)"


def random_pairs(vocab: int, count: int = 4000) -> PairDataset:
    rng = np.random.default_rng(1)
    sides = []
    for spread in (4.0, 4.5):
        lengths = np.clip(np.round(rng.normal(14, spread, count)), 4, 40).astype(np.int64)
        sides.append(Ragged(rng.integers(4, vocab, lengths.sum()).astype(np.uint16), lengths))
    return PairDataset([""] * count, [""] * count, *sides)


def make_trainer(name: str, options: argparse.Namespace, data: PairDataset, device: torch.device) -> Trainer:
    kind, settings = CASES[name]
    model_class, config, _ = MODELS[kind]
    sizes = {"vocab": options.vocab, "context": 64, "dim": options.dim, "depth": options.depth}
    model = model_class(config(**sizes, **settings)).to(device).train()
    tokenizer = train_tokenizer("byte", ["any"], 256, Translate.specials)
    task = Translate(TranslateConfig(name="translate"), tokenizer, 64)
    changes = {"train.tokens": options.tokens, "train.optimizer": "adamw", "train.steps": 100_000}
    sections = recipe.change(recipe.read("translate"), changes | recipe.assignments(options.set))
    train = recipe.fill("train", sections["train"], TrainConfig)
    corpus = Corpus(data, None, tokenizer)
    return Trainer(Path(tempfile.mkdtemp()), task, model, corpus, train, device)


def marian(like: Trainer, options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    from transformers import MarianConfig, MarianMTModel

    sizes = {"encoder_layers": options.depth, "decoder_layers": options.depth, "d_model": options.dim}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 4, f"{side}_ffn_dim": 4 * options.dim}
    config = MarianConfig(vocab_size=options.vocab, max_position_embeddings=64, pad_token_id=0, **sizes)
    model = MarianMTModel(config)
    nn.Module.to(model, device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    step = iter(range(1_000_000))

    def train() -> None:
        (batch,) = like.batches(next(step))
        source, attention_mask, target, following = to_device(batch, device)
        with like.take_step.autocast:
            logits = model(input_ids=source, attention_mask=attention_mask, decoder_input_ids=target).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), following.flatten(), label_smoothing=0.1
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("dim", 256), ("depth", 2), ("tokens", 4096), ("vocab", 8000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=4, help="steps per round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    device = choose_device("auto")
    data = random_pairs(options.vocab)
    ours = {name: make_trainer(name, options, data, device) for name in CASES}
    train = {name: trainer.train_step for name, trainer in ours.items()}
    train[PEER] = marian(ours["Transformer"], options, device)
    rates: dict[str, list[float]] = {name: [] for name in train}
    reference = ours["Transformer"]
    at = 0
    for turn in range(options.rounds + 1):  # the first is to warm up
        count = sum(targets(b) for i in range(at, at + options.steps) for b in reference.batches(i))
        at += options.steps
        for name, step in train.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(options.steps):
                step()
            synchronize(device)
            if turn:
                rates[name].append(count / (time.perf_counter() - start))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, rate in medians.items():
        print(f"{name:26} {rate:10,.0f} tokens/s   {rate / medians[PEER]:.2f} of {PEER}")
    print(json.dumps({"device": device.type, "tokens_per_second": medians}))


if __name__ == "__main__":
    main()
