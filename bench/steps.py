"""Measure whole training steps of several tasks: tokens per second, memory, and where the time goes.

    python bench/steps.py ROW [--pairs FOLDER] [--profile FILE] [--losses N] [--begin SECONDS]
                          [--without graphs|joint|short|narrow|bytes|round] [--set K=V]

ROW is gpt2, bert, mini, base (a Transformer on pairs) or tiny (the default translator). FOLDER holds Multi30k
(train.en.gz, train.de.gz). Rates are targets per second, without padding. With --begin, those of each second
from the very first step, also while steps are prepared. Prints one JSON line at the end.
"""

import argparse
import fcntl
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data import Corpus, PairConfig, Stream
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig
from regard.runs import recipe
from regard.tasks import Fill, FillConfig, Translate, TranslateConfig, Write, WriteConfig, loss
from regard.tasks.request import DataRequest
from regard.text.tokenizer_kinds import train_tokenizer
from regard.training import compilation, joint
from regard.training import step as step_module
from regard.training.config import TrainConfig
from regard.training.machine import choose_device
from regard.training.throughput import synchronize
from regard.training.trainer import Trainer

ROWS: dict[str, tuple[str, dict[str, Any]]] = {  # a recipe, and what differs from it
    "gpt2": ("write", {"train.batch": 32, "train.optimizer": "adamw", "train.lr": 6e-4}),
    "bert": ("fill", {"train.batch": 256, "train.optimizer": "adamw", "train.lr": 1e-4}),
    "mini": ("write", {"train.batch": 64}),
    "base": (
        "translate",
        {"model.preset": "base", "data.vocab": 8000, "train.tokens": 16384, "train.optimizer": "adamw"},
    ),
    "tiny": ("translate", {}),
}


def make_trainer(row: str, device: torch.device, pairs: Path, changes: dict[str, Any]) -> Trainer:
    name, own = ROWS[row]
    sections = recipe.change(recipe.read(name), {"train.steps": 100_000} | own | changes)
    train = recipe.fill("train", sections["train"], TrainConfig)
    settings = {k: v for k, v in sections["model"].items() if k not in ("kind", "preset")}
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model: Any
    task: Any
    if name == "translate":
        config = TranslateConfig(name="translate")
        sizes = TransformerConfig.PRESETS[sections["model"].get("preset", "tiny")] | settings
        data = recipe.fill("data", sections["data"], PairConfig)
        files = [str(pairs / f"train.{language}.gz") for language in ("en", "de")]
        corpus = Translate.read(DataRequest(files, [], data, config, sizes["context"], []))
        assert corpus.tokenizer is not None
        task = Translate(config, corpus.tokenizer, sizes["context"])
        model = Transformer(TransformerConfig(vocab=corpus.tokenizer.vocab, **sizes))
    elif name == "fill":
        tokenizer = train_tokenizer("wordpiece", ["any text at all"] * 9, 256, Fill.specials)
        tokens = rng.integers(5, tokenizer.vocab, size=2_000_000).astype(np.uint16)
        model = Bert(BertConfig(vocab=30522, **BertConfig.PRESETS["base"] | {"context": 128} | settings))
        task = Fill(FillConfig(name="fill", next=False), tokenizer, 128)
        corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    else:
        vocab = 50257 if row == "gpt2" else 65
        tokens = (rng.integers(vocab, size=2_000_000) ** 2 // vocab).astype(np.uint16)  # uneven: to be learnt
        model = GPT(GPTConfig(vocab=vocab, **GPTConfig.PRESETS[row] | settings))
        tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
        task = Write(WriteConfig(name="write"), tokenizer, model.config.context)
        corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    return Trainer(Path(tempfile.mkdtemp()), task, model.to(device).train(), corpus, train, device)


def measure(trainer: Trainer, steps: int) -> dict[str, float]:
    """Steps as the loop takes them, with a row of the log every `train.log`."""
    device = trainer.device
    synchronize(device)
    trainer.pace.start()
    start = time.perf_counter()
    for _ in range(steps):
        trainer.train_step()
    tokens = trainer.pace.counts["tokens"]
    synchronize(device)
    seconds = time.perf_counter() - start
    # since the start: what a graph uses counts only while it is captured
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    read = sum(batch[0].numel() for batch in trainer.batches(0)) * steps  # in GPT and BERT; padding included
    return {
        "targets_per_second": tokens / seconds,
        "read_per_second": read / seconds,
        "ms": 1000 * seconds / steps,
        "GiB": memory,
    }


def measure_begin(trainer: Trainer, seconds: float) -> list[int]:
    """Targets per second in each second from now on."""
    rates, before = list[int](), 0.0
    trainer.pace.start()
    start = last = time.perf_counter()
    while last - start < seconds:
        trainer.train_step()
        if time.perf_counter() - last >= 1:
            synchronize(trainer.device)
            now = time.perf_counter()
            counts = trainer.pace.counts
            count = counts["target_tokens"] or counts["tokens"]
            rates.append(round((count - before) / (now - last)))
            before, last = count, now
    return rates


def profile(trainer: Trainer, file: str, steps: int = 5) -> dict[str, float]:
    """Write tables of kernels and of operations on the CPU; return the milliseconds of a step on the GPU."""
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            trainer.train_step()
        synchronize(trainer.device)
    rows = profiler.key_averages()
    kernels = [row for row in rows if row.device_type == torch.autograd.DeviceType.CUDA]
    with open(file, "w") as out:
        for title, order in (("kernels", "self_cuda_time_total"), ("CPU", "self_cpu_time_total")):
            out.write(f"{title}\n{rows.table(sort_by=order, row_limit=45, max_name_column_width=90)}\n")
    busy = sum(row.self_device_time_total for row in kernels) / 1000 / steps
    return {"GPU ms": busy, "kernels": sum(row.count for row in kernels) / steps}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--pairs", type=Path, default=Path("multi30k"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=12)
    parser.add_argument("--profile", metavar="FILE")
    parser.add_argument("--losses", type=int, default=0, help="print the losses of so many steps")
    parser.add_argument("--begin", type=float, default=0, metavar="SECONDS")
    parts = "graphs", "joint", "short", "narrow", "bytes", "round"
    parser.add_argument("--without", choices=parts, action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if "graphs" in options.without:
        compilation.use_graphs = lambda *settings: False
    if "joint" in options.without:
        step_module.join_products = lambda model: None
    if "short" in options.without:
        joint.SHORT_ROWS = False
    if "narrow" in options.without:
        step_module.narrow_residuals = lambda model: None
    if "bytes" in options.without:
        step_module.drop_by_bytes = lambda model: None
    if "round" in options.without:
        loss.ROUND = 1
    device = choose_device("auto")
    begin = time.perf_counter()
    trainer = make_trainer(options.row, device, options.pairs, recipe.assignments(options.set))
    result: dict[str, Any] = {"row": options.row, "set": options.set, "without": options.without}
    if options.begin:
        rates = measure_begin(trainer, options.begin)
        result |= {"median of the first seconds": statistics.median(rates), "each": rates}
    losses = [trainer.train_step() for _ in range(options.losses)]
    if losses:
        result["losses"] = [round(float(loss[0]), 4) for loss in losses if loss is not None]
    for _ in range(options.warmup):
        trainer.train_step()
    synchronize(device)
    result["start_s"] = time.perf_counter() - begin
    turn = wait_for_turn()
    result |= measure(trainer, options.steps)
    result["notices"] = [line for line, _ in trainer.reporter.pending]
    if options.profile:
        result |= profile(trainer, options.profile)
    print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in result.items()}), flush=True)
    del turn


def wait_for_turn() -> Any:
    """With STEPS_GATE, a folder: wait until its file `go` is there, and until no other process measures.

    The lock holds for as long as what is returned.
    """
    if folder := os.environ.get("STEPS_GATE"):
        (Path(folder) / f"ready-{os.getpid()}").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.1)
        lock = open(Path(folder) / "lock", "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock
    return None


if __name__ == "__main__":
    main()
