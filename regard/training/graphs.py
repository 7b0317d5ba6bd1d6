"""Replay a step as a CUDA graph: one launch instead of one for each kernel."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOST_GRAPHS = 64  # shapes beyond these run as usual
Function = Callable[..., None]


def set_value(old: float | Tensor, value: float) -> float | Tensor:
    """Return the value, copied into the old tensor if it is one, since a graph refers to it."""
    return old.fill_(value) if isinstance(old, Tensor) else value


class Graphs:
    """Calls a function as usual the first time that its inputs have some shapes, and then replays it.

    Values that differ from call to call must be inputs, or tensors that are changed in place: weights,
    gradients, learning rates. Random numbers are drawn as usual: a replay begins with the generator's present
    seed. If a function can't be captured, `report` is called once, and it runs without graphs.
    """

    def __init__(self, report: Callable[[str, Exception], None]):
        self.report, self.enabled = report, True
        self.calls: Counter[object] = Counter()
        self.graphs: dict[object, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]] = {}
        self.pool: Any = None  # memory that all graphs share: one runs at a time

    def __call__(self, function: Function, *inputs: Tensor) -> None:
        key = (function.__name__, *((t.shape, t.dtype) for t in inputs))
        self.calls[key] += 1
        if key not in self.graphs and self.calls[key] > 1 and self.enabled:
            self.capture(key, function, inputs)
        if key not in self.graphs:
            function(*inputs)
            return
        graph, buffers = self.graphs[key]
        for buffer, t in zip(buffers, inputs, strict=True):
            buffer.copy_(t, non_blocking=True)
        graph.replay()

    def capture(self, key: object, function: Function, inputs: tuple[Tensor, ...]) -> None:
        if len(self.graphs) >= MOST_GRAPHS:
            return
        buffers = tuple(t.clone() for t in inputs)
        try:
            graph = torch.cuda.CUDAGraph()
            # thread_local: other threads, which prepare the next batches, may use CUDA meanwhile
            with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
                function(*buffers)
        except Exception as error:
            self.enabled = False
            self.report("CUDA graphs", error)
            return
        self.pool = graph.pool()
        self.graphs[key] = graph, buffers
