"""Training and evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import nn


class HasModules(Protocol):
    def modules(self) -> Iterator[nn.Module]: ...


@contextmanager
def evaluating(model: HasModules) -> Iterator[None]:
    """Evaluation mode for a while; afterwards, every module is in its own mode again."""
    training = [m for m in model.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True
