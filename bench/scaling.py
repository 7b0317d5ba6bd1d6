"""Measure how time and memory grow: with length, batch, width and depth; and a Transformer beside an RNN.

    python -m bench.scaling [PLOT ...] [--out DIR] [--seconds 0.5] [--document]

GPTs with random weights, and recurrent networks of the same width and depth. Training is a whole step: the
loss, its gradient, AdamW, not compiled. Writing is a token after a text of that length, as `generate` writes
it. On a GPU in bf16, with the sizes of GPT-2; on a CPU with small ones. A size that does not fit in memory,
or takes more than a few seconds, ends its curve. Writes DIR/scaling.json and an SVG for each plot; --document
puts plots and numbers into docs/performance.md. Ends with one JSON line.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.rows.document import DOCUMENT, document
from torch import Tensor

from regard.decode.buffers import Text
from regard.decode.runners import make_runner
from regard.decode.sampling import Sampling
from regard.draw.plots import Curves
from regard.draw.scene import side_by_side
from regard.draw.svg import svg
from regard.models import GPT, GPTConfig, RecurrentLM, RecurrentLMConfig
from regard.tasks.loss import cross_entropy
from regard.training.machine import choose_device
from regard.training.throughput import synchronize

TOO_LONG = 4.0  # seconds of a step, after which a curve ends
MAX_STEPS = 12  # steps that are measured for a point, after two others
CELLS = ("rnn", "gru", "lstm")


@dataclass(frozen=True)
class Sizes:
    """The model in the middle of all plots, and the range of each."""

    dim: int
    depth: int
    heads: int
    vocab: int
    batch: int
    length: int
    lengths: list[int]
    batches: list[int]
    dims: list[int]
    depths: list[int]
    against: list[int] = field(default_factory=list)  # lengths at which recurrent networks are trained


GPU = Sizes(
    dim=768,
    depth=12,
    heads=12,
    vocab=50304,
    batch=8,
    length=1024,
    lengths=[2**n for n in range(8, 17)],
    batches=[2**n for n in range(8)],
    dims=[256, 512, 768, 1024, 1536, 2048],
    depths=[2, 4, 8, 12, 24, 48],
    against=[2**n for n in range(6, 13)],
)
CPU = Sizes(
    dim=64,
    depth=2,
    heads=4,
    vocab=256,
    batch=4,
    length=64,
    lengths=[2**n for n in range(5, 11)],
    batches=[1, 2, 4, 8, 16],
    dims=[32, 64, 128, 256],
    depths=[1, 2, 4, 8],
    against=[16, 32, 64, 128],
)
Point = dict[str, float]  # ms, and GiB where it is known


def make_gpt(s: Sizes, device: torch.device, **changes: int) -> GPT:
    sizes: dict[str, Any] = {"dim": s.dim, "depth": s.depth, "context": s.length} | changes
    sizes["heads"] = max(1, sizes["dim"] * s.heads // s.dim)  # heads keep their width
    with device:
        return GPT(GPTConfig(vocab=s.vocab, **sizes))


def make_recurrent(cell: str, s: Sizes, length: int, device: torch.device) -> RecurrentLM:
    config = RecurrentLMConfig(vocab=s.vocab, cell=cell, dim=s.dim, depth=s.depth, context=length)  # type: ignore[arg-type]
    with device:
        return RecurrentLM(config)


class SavedBytes:
    """Counts the bytes that autograd keeps for the gradient: what training needs besides the weights."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def pack(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return t


def train_step(model: GPT | RecurrentLM, batch: int, length: int) -> Callable[[], float]:
    """A step of training, which returns the bytes that were needed at once; on a CPU, those kept for the
    gradient and the weights."""
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(10, model.config.vocab, (batch, length + 1), device=device)
    model.train()

    def step() -> float:
        saved = SavedBytes()
        hooks = torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda t: t)
        with nullcontext() if cuda else hooks, torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = cross_entropy(model.hidden(ids[:, :-1]), model.output, ids[:, 1:]) / ids[:, 1:].numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        weights = sum(p.nbytes for p in model.parameters())
        return torch.cuda.max_memory_allocated() if cuda else sum(saved.storages.values()) + 4.0 * weights

    return step


def write_step(model: GPT, batch: int, length: int) -> Callable[[], float]:
    """A token for each of `batch` texts of this length, by a runner as in `generate` where the model has one;
    it returns the bytes needed at once, on a GPU."""
    device, new = next(model.parameters()).device, MAX_STEPS + 8
    ids = torch.randint(10, model.config.vocab, (batch, length - new))
    runner, state = make_runner(model.eval(), batch + 8), None  # so that there are pages to spare
    if runner is not None:
        greedy, rng = Sampling(temperature=0), np.random.default_rng(0)
        for row in ids.tolist():
            runner.add(Text(row, greedy, rng, new))
        with torch.inference_mode():  # all prompts are read before the first token
            runner._admit()
            while any(text.reading for text in runner.texts):
                runner._read()
        assert len(runner.texts) == batch
    else:
        with torch.inference_mode():
            ids = ids.to(device)
            state = model.start(ids)[1]

    def step() -> float:
        nonlocal state
        if runner is not None:
            runner.step()
        else:
            with torch.inference_mode():
                _, state = model.step(ids[:, :1], state)
        return float(torch.cuda.max_memory_allocated()) if device.type == "cuda" else math.nan

    return step


def measure(build: Callable[[], Callable[[], float]], device: torch.device, seconds: float) -> Point | None:
    """The median time of a call and its memory; None if it does not fit in memory."""
    try:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step, times, memory = build(), list[float](), math.nan
        memory = max(step(), step())
        end = time.perf_counter() + seconds
        while len(times) < 3 or (time.perf_counter() < end and len(times) < MAX_STEPS):
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            times.append(time.perf_counter() - start)
            if times[-1] > TOO_LONG:
                break
    except (torch.OutOfMemoryError, MemoryError):
        return None
    point = {"ms": 1000 * float(np.median(times))}
    return point if math.isnan(memory) else point | {"GiB": memory / 2**30}


def sweep(
    values: list[int], build: Callable[[int], Callable[[], float]], device: torch.device, seconds: float
) -> dict[int, Point]:
    """Points by value, from the smallest, as long as they are quick enough and fit."""
    points: dict[int, Point] = {}
    for value in values:
        point = measure(lambda value=value: build(value), device, seconds)  # type: ignore[misc]
        if point is None:
            break
        points[value] = point
        if point["ms"] > 1000 * TOO_LONG:
            break
    return points


def plots(s: Sizes, device: torch.device) -> dict[str, tuple[str, list[int], dict[str, Any]]]:
    """By name: what the axis counts, its values, and how to build each curve's step at a value."""

    def gpt(**changes: int) -> GPT:
        return make_gpt(s, device, **changes)

    B, T = s.batch, s.length
    return {
        "length": (
            "tokens of a text",
            s.lengths,
            {
                "training, one text": lambda n: train_step(gpt(context=n), 1, n),
                "writing a token": lambda n: write_step(gpt(context=n), 1, n),
            },
        ),
        "batch": (
            f"texts of {T:,} tokens",
            s.batches,
            {
                "training": lambda n: train_step(gpt(), n, T),
                "writing a token each": lambda n: write_step(gpt(), n, T),
            },
        ),
        "width": (
            "width of the model",
            s.dims,
            {
                "training": lambda n: train_step(gpt(dim=n), B, T),
                "writing a token each": lambda n: write_step(gpt(dim=n), B, T),
            },
        ),
        "depth": (
            "layers",
            s.depths,
            {
                "training": lambda n: train_step(gpt(depth=n), B, T),
                "writing a token each": lambda n: write_step(gpt(depth=n), B, T),
            },
        ),
        "recurrent": (
            "tokens of a text",
            s.against,
            {"Transformer": lambda n: train_step(gpt(context=n), B, n)}
            | {
                cell.upper(): lambda n, cell=cell: train_step(make_recurrent(cell, s, n, device), B, n)
                for cell in CELLS
            },
        ),
    }


def draw(name: str, axis: str, curves: dict[str, dict[int, Point]]) -> str:
    """Time and memory side by side, on logarithmic axes."""
    scenes = []
    for key, title in (("ms", "milliseconds"), ("GiB", "GiB of memory")):
        lines = {
            who: (np.array(list(points)), np.array([point[key] for point in points.values()]))
            for who, points in curves.items()
            if points and all(key in point for point in points.values())
        }
        if lines:
            scenes.append(Curves(title, axis, lines, log=True).scene())
    return svg(side_by_side(scenes, f"time and memory by {name}"))


def table(axis: str, curves: dict[str, dict[int, Point]]) -> str:
    """A row for each curve, a column for each value: milliseconds, and GiB."""
    values = sorted({value for points in curves.values() for value in points})
    lines = [f"| {axis} | {' | '.join(f'{value:,}' for value in values)} |", "|---" * (len(values) + 1) + "|"]
    for who, points in curves.items():
        cells = []
        for value in values:
            cells.append(", ".join(f"{n:.3g} {key}" for key, n in points.get(value, {}).items()))
        lines.append(f"| {who} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    device = choose_device("auto")
    every = plots(GPU if device.type == "cuda" else CPU, device)
    parser.add_argument("plots", nargs="*", metavar="PLOT", help=", ".join(every))
    parser.add_argument("--out", type=Path, default=Path("."), metavar="DIR")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each point")
    parser.add_argument("--document", action="store_true")
    o = parser.parse_args()
    if unknown := [name for name in o.plots if name not in every]:
        parser.error(f"no plot {unknown[0]}; there are {', '.join(every)}")
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    results: dict[str, Any] = {"device": machine, "torch": torch.__version__}
    o.out.mkdir(parents=True, exist_ok=True)
    for name in o.plots or every:
        axis, values, builders = every[name]
        curves = {who: sweep(values, build, device, o.seconds) for who, build in builders.items()}
        results[name] = curves
        picture, numbers = draw(name, axis, curves), table(axis, curves)
        (o.out / f"scaling-{name}.svg").write_text(picture, encoding="utf-8")
        (o.out / "scaling.json").write_text(json.dumps(results, indent=1))
        print(numbers, flush=True)
        if o.document:
            (DOCUMENT.parent / "pictures" / f"scaling-{name}.svg").write_text(picture, encoding="utf-8")
            shown = f"![time and memory by {name}](pictures/scaling-{name}.svg)"
            document(f"scaling {name}", f"{machine}, torch {torch.__version__}\n\n{shown}\n\n{numbers}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
