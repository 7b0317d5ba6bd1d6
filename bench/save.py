"""How long a checkpoint holds up training with several processes, and what memory it takes.

    python bench/save.py [--ways ddp fsdp hybrid] [--processes 2] [--dim 512] [--depth 8] [--saves 4]
                         [--no-valid]

Trains a GPT on random tokens with torchrun and gloo, one thread a process. For each way it prints, of the
process where it is largest: the time between two steps in which a checkpoint is begun (the stall), by the
clock and of the processor, and the pages of new memory that the training thread touches in it; the time of
merely copying as many bytes in this process, the steps while the files are written against other steps, and
the memory of the copy and how far it rises beyond, in shares: a share is what a process has of the weights
and the optimizer's state. The first checkpoint, before which the copy is allocated, is listed apart. Ends
with one JSON line.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

EVERY = 6  # steps from one checkpoint to the next
BATCH, CONTEXT, VOCAB = 4, 64, 997


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most bytes that this process has had since `reset_peak`."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("VmHWM:")[1].split()[0])


def local_bytes(tensors: list[Tensor]) -> int:
    return sum((t.to_local() if hasattr(t, "to_local") else t).nbytes for t in tensors)


def new_pages() -> int:
    """The pages of memory that this thread was the first to touch."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def copying(size: int) -> tuple[float, float]:
    """Seconds to copy so many bytes in memory that is in use already, by the clock and of the processor."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    times = []
    for _ in range(5):
        begun, used = time.perf_counter(), time.thread_time()
        target.copy_(source)
        times.append((time.perf_counter() - begun, time.thread_time() - used))
    return min(clock for clock, _ in times), min(processor for _, processor in times)


def make_trainer(way: str, o: argparse.Namespace, folder: Path) -> Any:
    from regard.data import Corpus, Stream
    from regard.models import GPT, GPTConfig
    from regard.tasks import Write, WriteConfig
    from regard.text.tokenizer_kinds import train_tokenizer
    from regard.training.config import TrainConfig
    from regard.training.trainer import Trainer

    tokens = np.random.default_rng(0).integers(VOCAB, size=100_000).astype(np.uint16)
    sides = [Stream([part], part.nbytes) for part in (tokens[2000:], tokens[:2000])]
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    sizes = {"dim": o.dim, "depth": o.depth, "heads": o.dim // 64, "context": CONTEXT, "vocab": VOCAB}
    torch.manual_seed(0)
    model = GPT(GPTConfig(**sizes))
    how: dict[str, Any] = {"parallel": way, "optimizer": "adamw", "precision": "fp32", "compile": "off"}
    how |= {"steps": EVERY * (o.saves + 1), "save": EVERY, "evaluate": 10**6, "batch": BATCH, "keep": 1}
    how |= {"guard": False}
    how |= {"shard": max(1, o.processes // 2)} if way == "hybrid" else {}
    task = Write(WriteConfig(name="write"), tokenizer, CONTEXT)
    corpus = Corpus(sides[0], None if o.no_valid else sides[1], tokenizer)
    return Trainer(folder, task, model, corpus, TrainConfig(**how), torch.device("cpu"))


class Watch:
    """Notes of each turn of the loop how long it took, the largest memory, and whether files were written."""

    def __init__(self, trainer: Any):
        self.trainer, self.step, self.save = trainer, trainer.train_step, trainer.save
        self.turns: list[dict[str, Any]] = []
        self.share = self.copied = 0  # bytes
        trainer.train_step, trainer.save = self.train_step, self.timed_save

    def train_step(self) -> Any:
        self.end_turn()
        self.turns.append({"begun": time.perf_counter(), "writing": self.trainer.checkpointer.is_writing()})
        reset_peak()
        return self.step()

    def end_turn(self) -> None:
        if self.turns:
            self.turns[-1] |= {
                "seconds": time.perf_counter() - self.turns[-1]["begun"],
                "memory": peak_memory(),
            }

    def timed_save(self) -> None:
        begun, used, pages = time.perf_counter(), time.thread_time(), new_pages()
        self.save()
        self.turns[-1] |= {
            "stall": time.perf_counter() - begun,
            "processor": time.thread_time() - used,
            "pages": new_pages() - pages,
        }
        checkpointer = self.trainer.checkpointer
        own = [*checkpointer.weights().values(), *checkpointer.optimizer_state().values()]
        self.share = local_bytes(own)
        self.copied = local_bytes([*checkpointer.background.copies.values()])

    def result(self) -> dict[str, float]:
        self.end_turn()
        turns = self.turns[2:]  # the first ones allocate what steps need
        first, *saves = [t for t in turns if "stall" in t]
        plain = [t for t in turns if "stall" not in t and not t["writing"]]
        written = [t for t in turns if t["writing"] and "stall" not in t]
        usual = statistics.median(t["seconds"] for t in plain)
        before = max(t["memory"] for t in plain if t["begun"] < first["begun"])
        during = max(t["memory"] for t in turns if t["begun"] >= first["begun"])
        copy, copy_processor = copying(self.share)
        return {
            "share_MB": self.share / 1e6,
            "first_stall_ms": 1000 * first["stall"],
            "stall_ms": 1000 * max(t["stall"] for t in saves),
            "first_processor_ms": 1000 * first["processor"],
            "stall_processor_ms": 1000 * max(t["processor"] for t in saves),
            "first_new_pages": first["pages"],
            "new_pages": max(t["pages"] for t in saves),
            "copy_ms": 1000 * copy,
            "copy_processor_ms": 1000 * copy_processor,
            "step_ms": 1000 * usual,
            "step_writing": statistics.median([t["seconds"] for t in written] or [usual]) / usual,
            "memory_shares": (during - before + self.copied) / self.share,
        }


def work(way: str, o: argparse.Namespace, out: Path) -> None:
    """One of the processes of torchrun."""
    from regard.training import distributed, throughput

    torch.set_num_threads(1)
    throughput.peak = lambda *_: 1e12  # not measured: it takes seconds
    with distributed.process_group(torch.device("cpu")):
        run = out / "run"
        run.mkdir(exist_ok=True)
        trainer = make_trainer(way, o, run)
        watch = Watch(trainer)
        trainer.run()
        (out / f"{distributed.RANK}.json").write_text(json.dumps(watch.result()))


def measure(way: str, o: argparse.Namespace) -> dict[str, float]:
    """The largest figures of all processes; of memory, those of each."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        words = [*launch, str(o.processes), __file__, *sys.argv[1:], "--worker", way, folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        rows = [json.loads((Path(folder) / f"{n}.json").read_text()) for n in range(o.processes)]
    return {name: round(max(row[name] for row in rows), 2) for name in rows[0]}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ways", nargs="+", default=["ddp", "fsdp"])
    for name, usual in (("processes", 2), ("dim", 512), ("depth", 8), ("saves", 4)):
        p.add_argument(f"--{name}", type=int, default=usual)
    p.add_argument("--no-valid", action="store_true", help="each checkpoint is the published model, too")
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.worker:
        way, folder = o.worker
        work(way, o, Path(folder))
        return
    rows = {}
    for way in o.ways:
        rows[way] = measure(way, o)
        print(way, rows[way], flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
