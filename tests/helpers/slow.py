"""Cases of `make test`, and those that only differ from them in a part."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """The first `count` cases as they are; the others are slow."""
    marked = []
    for n, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if n < count else pytest.param(*values, marks=pytest.mark.slow))
    return marked
