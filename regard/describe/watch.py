"""Observe a model while it runs: `with evaluating(model), watch(model) as records: model(ids)`."""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch import Tensor, nn

Record = dict[str, Tensor]
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


def exclusive(model: nn.Module) -> threading.RLock:
    """The lock of the thread that watches or changes this model; that thread may take it again."""
    return _locks.setdefault(model, threading.RLock())


@contextmanager
def watch(model: nn.Module, only: Collection[nn.Module] | None = None) -> Iterator[dict[str, list[Record]]]:
    """{module's name: [one record per call]} of every attention in the model, or of `only` some modules.

    A record holds q, k, v, scores, weights and heads (before they are concatenated); and the bias and the
    mask, if there were any. They are part of the graph, so they have gradients. One thread at a time watches
    a model; others wait for it.
    """
    with exclusive(model):
        chosen = [(name, m) for name, m in model.named_modules() if only is None or m in only]
        watched: dict[str, Any] = {name: m for name, m in chosen if hasattr(m, "records")}
        before = {name: m.records for name, m in watched.items()}
        records: dict[str, list[Record]] = {name: [] for name in watched}
        for name, m in watched.items():
            m.records = records[name]
        try:
            yield records
        finally:  # watches may be nested
            for name, m in watched.items():
                m.records = before[name]


class HasModules(Protocol):
    def modules(self) -> Iterator[nn.Module]: ...


@contextmanager
def evaluating(model: HasModules) -> Iterator[None]:
    """Evaluation mode inside a `with` block; afterwards, every module is in its former mode again."""
    training = [m for m in model.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True
