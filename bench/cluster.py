"""The memory of real processes beside what `--dry-run --for N` plans for them.

    python bench/cluster.py [--ways ddp fsdp hybrid] [--processes 2 4] [--dim 512] [--depth 8] [--batch 16]

Trains a GPT on random tokens with torchrun and gloo, one thread a process. Prints the most bytes of all
tensors of training at a time, as torch counts them, beside the plan's: of the process in the middle, and of
the one with the most, as gloo's threads free what was sent when they get to run. Ends with one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

CONTEXT, VOCAB, STEPS = 64, 997, 6


def sizes_of(o: argparse.Namespace) -> dict[str, int]:
    return {"dim": o.dim, "depth": o.depth, "heads": o.dim // 64, "context": CONTEXT}


def shard_of(way: str, processes: int) -> int | None:
    return max(1, processes // 2) if way == "hybrid" else None


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


def work(way: str, o: argparse.Namespace, out: Path) -> None:
    """One of the processes of torchrun."""
    import torch.distributed.fsdp

    from regard.data import Corpus, Stream
    from regard.models import GPT, GPTConfig
    from regard.tasks import Write, WriteConfig
    from regard.text.tokenizer_kinds import train_tokenizer
    from regard.training import distributed, throughput
    from regard.training.config import TrainConfig
    from regard.training.trainer import Trainer

    torch.set_num_threads(1)
    throughput.peak = lambda *_: 1e12  # not measured: it takes seconds
    tokens = np.random.default_rng(0).integers(VOCAB, size=100_000).astype(np.uint16)
    tokenizer = train_tokenizer("byte", ["any"], 256, Write.specials)
    corpus = Corpus(Stream([tokens], tokens.nbytes), None, tokenizer)
    how: dict[str, Any] = {"parallel": way, "optimizer": "adamw", "precision": "fp32", "compile": "off"}
    how |= {"steps": STEPS, "save": 10**6, "evaluate": 10**6, "batch": o.batch, "guard": False}
    how |= {"shard": shard_of(way, distributed.WORLD)} if way == "hybrid" else {}
    task: Any = Write(WriteConfig(name="write"), tokenizer, CONTEXT)
    task.finish = lambda *_, **__: None
    with distributed.process_group(torch.device("cpu")):
        (run := out / "run").mkdir(exist_ok=True)
        profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        profiler.start()
        model = GPT(GPTConfig(vocab=VOCAB, **sizes_of(o)))  # type: ignore[arg-type]
        trainer = Trainer(run, task, model, corpus, TrainConfig(**how), torch.device("cpu"))
        del model
        save = trainer.save

        def stop_and_save() -> None:
            profiler.stop()
            save()

        trainer.save = stop_and_save  # type: ignore[method-assign]
        trainer.run()
        largest = largest_total(profiler, out / f"trace-{distributed.RANK}")
        (out / f"{distributed.RANK}.json").write_text(json.dumps(largest))


def largest_total(profiler: torch.profiler.profile, file: Path) -> int:
    """The most bytes of tensors at a time, in the second half of training."""
    profiler.export_chrome_trace(str(file))
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e["name"] == "[memory]"]
    totals = [e["args"]["Total Allocated"] for e in sorted(events, key=lambda e: e["ts"])]
    return int(max(totals[len(totals) // 2 :]))


def measure(way: str, processes: int, o: argparse.Namespace) -> list[int]:
    """The most bytes of tensors of each process, in ascending order."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        sizes = [word for name in ("dim", "depth", "batch") for word in (f"--{name}", str(getattr(o, name)))]
        words = [*launch, str(processes), __file__, *sizes, "--worker", way, folder]
        done = subprocess.run(
            words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        assert done.returncode == 0, done.stderr
        return sorted(json.loads((Path(folder) / f"{n}.json").read_text()) for n in range(processes))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ways", nargs="+", default=["ddp", "fsdp", "hybrid"])
    p.add_argument("--processes", nargs="+", type=int, default=[2, 4])
    for name, usual in (("dim", 512), ("depth", 8), ("batch", 16)):
        p.add_argument(f"--{name}", type=int, default=usual)
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.worker:
        work(o.worker[0], o, Path(o.worker[1]))
        return
    rows = []
    for way in o.ways:
        for processes in o.processes if way != "hybrid" else (n for n in o.processes if n >= 4):
            measured, plan = measure(way, processes, o), planned(way, processes, o)
            middle, largest = measured[len(measured) // 2 - 1], measured[-1]
            row = {"middle_MB": middle / 1e6, "largest_MB": largest / 1e6, "planned_MB": plan / 1e6}
            row |= {"ratio": middle / plan, "largest_ratio": largest / plan}
            rows.append({"way": way, "processes": processes} | {k: round(v, 3) for k, v in row.items()})
            print(rows[-1], flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
