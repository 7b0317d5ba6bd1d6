"""Look inside a model without changing it: `with trace(model) as seen: model(ids)`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Record = dict[str, Tensor]


@contextmanager
def trace(model: nn.Module) -> Iterator[dict[str, list[Record]]]:
    """{module's name: [one record per call]} of every attention in the model: each module that has a `seen`.

    A record holds q, k, v, weights and heads (what was averaged), before the heads are joined. They are still
    part of the graph: their gradients can be asked for, and under `torch.no_grad` they cost memory only.
    """
    watched: dict[str, Any] = {name: m for name, m in model.named_modules() if hasattr(m, "seen")}
    before = {name: m.seen for name, m in watched.items()}
    seen: dict[str, list[Record]] = {name: [] for name in watched}
    for name, m in watched.items():
        m.seen = seen[name]
    try:
        yield seen
    finally:  # a trace within a trace gives back what it took
        for name, m in watched.items():
            m.seen = before[name]
