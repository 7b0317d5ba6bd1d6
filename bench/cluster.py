"""The memory, or the time, of real processes beside what `--dry-run --for N` plans for them.

    python bench/cluster.py [--ways ddp fsdp hybrid] [--processes 2 4] [--dim 512] [--depth 8] [--batch 16]
                            [--time]

Trains a GPT on random tokens with torchrun and gloo, one thread a process. Prints the most bytes of all
tensors of training at a time, as the C library counts them (glibc's, so on Linux), beside the plan's: of the
process in the middle, and of the one with the most.
With `--time`, a step by the clock and of each process's processor time beside the plan's; the speed of a core
is that of a matrix product in each process at the same time. Give it no more processes than cores, of which
nothing else uses any: else only processor time counts. Ends with one JSON line.
"""

import argparse
import ctypes
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

CONTEXT, VOCAB, STEPS = 64, 997, 6
TIMED = 12  # steps with --time, of which the first three are not counted
SMALL = 32768  # bytes: smaller tensors are not counted
SIZE = 1024  # of the matrices whose product says how fast a core is


def sizes_of(o: argparse.Namespace) -> dict[str, int]:
    return {"dim": o.dim, "depth": o.depth, "heads": o.dim // 64, "context": CONTEXT}


def shard_of(way: str, processes: int) -> int | None:
    return max(1, processes // 2) if way == "hybrid" else None


def planned_step(way: str, processes: int, o: argparse.Namespace, peak: float) -> float:
    """Seconds of a step on processes with a core each, which makes so many operations a second."""
    from regard.training.plan.cluster import Cluster, count_sent, seconds_to_send, share_model
    from regard.training.plan.speed import Row, cost_of, known_machine, make_empty, step_seconds

    machine, sizes = replace(known_machine("cpu1"), peak=peak, processes=processes), sizes_of(o)
    shares = share_model(make_empty("gpt", sizes, {"vocab": VOCAB}), processes, way, shard_of(way, processes))
    cost = cost_of("gpt", sizes, {"vocab": VOCAB}, Row(CONTEXT, [(1, CONTEXT)], CONTEXT), muon=False)
    sent = count_sent(shares, parts=1, gpu=False)
    seconds = step_seconds(machine, cost, o.batch * CONTEXT), seconds_to_send(machine, shares, sent)
    return Cluster(machine, shares, {}, 0.0, sent, *seconds).step


def planned(way: str, processes: int, o: argparse.Namespace) -> float:
    from regard.training.plan.cluster import largest_sum, share_model, state_memory
    from regard.training.plan.speed import Row, cost_of, known_machine, logits_of, make_empty, saved_of

    sizes, per_process = sizes_of(o), o.batch * CONTEXT / processes
    shares = share_model(make_empty("gpt", sizes, {"vocab": VOCAB}), processes, way, shard_of(way, processes))
    row = Row(CONTEXT, [(1, CONTEXT)], CONTEXT)
    cost = cost_of("gpt", sizes, {"vocab": VOCAB}, row, muon=False)
    memory = state_memory(shares, parts=1, muon=False, ema=False)
    memory["kept for the backward pass"] = saved_of(known_machine("cpu2"), cost, per_process)
    memory["logits"] = logits_of(per_process, VOCAB)
    return largest_sum(memory, shares, 1, cost.layers)


def make_trainer(way: str, o: argparse.Namespace, run: Path) -> Any:
    from regard.data import Corpus, Stream
    from regard.models import GPT, GPTConfig
    from regard.tasks import Write, WriteConfig
    from regard.text.tokenizer_kinds import train_tokenizer
    from regard.training import distributed
    from regard.training.config import TrainConfig
    from regard.training.trainer import Trainer

    tokens = np.random.default_rng(0).integers(VOCAB, size=100_000).astype(np.uint16)
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    how: dict[str, Any] = {"parallel": way, "optimizer": "adamw", "precision": "fp32", "compile": "off"}
    how |= {"steps": TIMED if o.time else STEPS, "save": 10**6, "evaluate": 10**6, "batch": o.batch}
    how |= {"guard": False}
    how |= {"shard": shard_of(way, distributed.WORLD)} if way == "hybrid" else {}
    task: Any = Write(WriteConfig(name="write"), tokenizer, CONTEXT)
    model = GPT(GPTConfig(vocab=VOCAB, **sizes_of(o)))  # type: ignore[arg-type]
    run.mkdir(exist_ok=True)
    return Trainer(run, task, model, corpus, TrainConfig(**how), torch.device("cpu"))


def work(way: str, o: argparse.Namespace, out: Path) -> None:
    """One of the processes of torchrun."""
    import torch.distributed.fsdp

    from regard.training import distributed, throughput

    torch.set_num_threads(1)
    throughput.peak = lambda *_: 1e12  # not measured: it takes seconds
    with distributed.process_group(torch.device("cpu")):
        result = time_steps(way, o, out) if o.time else largest_memory(way, o, out)
        (out / f"{distributed.RANK}.json").write_text(json.dumps(result))


class Allocations(ctypes.Structure):
    """What glibc's `mallinfo2` returns; `mapped` are the bytes of large blocks."""

    names = ("arena", "free", "bins", "maps", "mapped", "unused", "bins_free", "used", "released", "top")
    _fields_ = [(name, ctypes.c_size_t) for name in names]


def largest_memory(way: str, o: argparse.Namespace, out: Path) -> int:
    """The most bytes of tensors at a time, above those from before."""
    from regard.memory import allocator

    allocator.library = None  # each tensor has a mapping of its own instead, which malloc counts
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Allocations
    before = library.mallinfo2().mapped
    trainer = make_trainer(way, o, out / "run")
    trainer.checkpointer.reserve = lambda: None  # the copy for checkpoints, which the plan counts apart
    save, largest = trainer.save, list[int]()

    def measure_and_save() -> None:
        largest.append(largest_mapped(library))
        save()

    trainer.save = measure_and_save
    trainer.run()
    return largest[0] - int(before)


def largest_mapped(library: ctypes.CDLL) -> int:
    """The most bytes of mappings at a time, which `malloc_stats` writes to standard error.

    torch's profiler is no measure: it misses what gloo's threads free, and counts it forever.
    """
    with tempfile.TemporaryFile("w+") as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        library.malloc_stats()
        os.dup2(stderr, 2)
        os.close(stderr)
        file.seek(0)
        largest = re.search(r"max mmap bytes += +(\d+)", file.read())
    assert largest
    return int(largest[1])


def time_steps(way: str, o: argparse.Namespace, out: Path) -> dict[str, float]:
    """Seconds of a step by the clock and of the processor, and what this core computes beside the others."""
    from regard.training import distributed

    distributed.barrier()
    a, rates = torch.randn(SIZE, SIZE), list[tuple[float, float]]()
    for _ in range(20):
        clock, processor = time.perf_counter(), time.thread_time()
        a @ a
        rates.append((time.perf_counter() - clock, time.thread_time() - processor))
    fastest = [2 * SIZE**3 / min(times) for times in zip(*rates, strict=True)]
    trainer, marks = make_trainer(way, o, out / "run"), list[tuple[float, float]]()
    step = trainer.train_step

    def timed_step() -> Any:
        marks.append((time.perf_counter(), time.process_time()))
        return step()

    trainer.train_step = timed_step
    trainer.run()
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(marks[3:])]
    seconds, processor = (statistics.median(times) for times in zip(*steps, strict=True))
    names = ("seconds", "processor", "peak", "processor_peak")
    return dict(zip(names, (seconds, processor, *fastest), strict=True))


def start(way: str, processes: int, o: argparse.Namespace) -> list[Any]:
    """The results of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        sizes = [word for name in ("dim", "depth", "batch") for word in (f"--{name}", str(getattr(o, name)))]
        sizes += ["--time"] if o.time else []
        words = [*launch, str(processes), __file__, *sizes, "--worker", way, folder]
        settings = {"OMP_NUM_THREADS": "1"} | ({} if o.time else {"MALLOC_MMAP_THRESHOLD_": str(SMALL)})
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | settings)
        assert done.returncode == 0, done.stderr
        return [json.loads((Path(folder) / f"{n}.json").read_text()) for n in range(processes)]


def measure(way: str, processes: int, o: argparse.Namespace) -> list[int]:
    """The most bytes of tensors of each process, in ascending order."""
    return sorted(start(way, processes, o))


def memory_row(way: str, processes: int, o: argparse.Namespace) -> dict[str, float]:
    measured, plan = measure(way, processes, o), planned(way, processes, o)
    middle, largest = measured[len(measured) // 2 - 1], measured[-1]
    row = {"middle_MB": middle / 1e6, "largest_MB": largest / 1e6, "planned_MB": plan / 1e6}
    return row | {"ratio": middle / plan, "largest_ratio": largest / plan}


def time_row(way: str, processes: int, o: argparse.Namespace) -> dict[str, float]:
    """The slowest process counts by the clock, and the mean of all in processor time."""
    rows = start(way, processes, o)
    row: dict[str, float] = {}
    for kind, take, peak in (("seconds", max, "peak"), ("processor", statistics.mean, "processor_peak")):
        speed = min(r[peak] for r in rows) if take is max else statistics.mean(r[peak] for r in rows)
        plan, measured = planned_step(way, processes, o, speed), take(r[kind] for r in rows)
        row |= {f"planned_{kind}": plan, f"measured_{kind}": measured, f"{kind}_ratio": measured / plan}
    return row


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ways", nargs="+", default=["ddp", "fsdp", "hybrid"])
    p.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    for name, usual in (("dim", 512), ("depth", 8), ("batch", 16)):
        p.add_argument(f"--{name}", type=int, default=usual)
    p.add_argument("--time", action="store_true", help="of a step, instead of memory")
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.worker:
        work(o.worker[0], o, Path(o.worker[1]))
        return
    rows = []
    for way in o.ways:
        for processes in o.processes if way != "hybrid" else (n for n in o.processes if n >= 4):
            row = time_row(way, processes, o) if o.time else memory_row(way, processes, o)
            rows.append({"way": way, "processes": processes} | {k: round(v, 3) for k, v in row.items()})
            print(rows[-1], flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
