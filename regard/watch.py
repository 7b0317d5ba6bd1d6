"""Look on while a model runs, without changing it: `with watch(model) as seen: model(ids)`."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Record = dict[str, Tensor]


@contextmanager
def watch(model: nn.Module, some: Collection[nn.Module] | None = None) -> Iterator[dict[str, list[Record]]]:
    """{module's name: [one record per call]} of every attention in the model: each module that has a `seen`,
    or `some` of these.

    A record holds q, k, v, scores, weights and heads (what was averaged), before the heads are joined; and
    the bias and the mask, if there were any. They are still part of the graph: their gradients can be asked
    for, and under `torch.no_grad` they cost memory only.
    """
    watched: dict[str, Any] = {
        name: m for name, m in model.named_modules() if hasattr(m, "seen") and (some is None or m in some)
    }
    before = {name: m.seen for name, m in watched.items()}
    seen: dict[str, list[Record]] = {name: [] for name in watched}
    for name, m in watched.items():
        m.seen = seen[name]
    try:
        yield seen
    finally:  # one within another gives back what it took
        for name, m in watched.items():
            m.seen = before[name]
