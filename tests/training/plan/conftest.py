"""What the tests of plans share."""

from collections.abc import Iterator, Sequence

import pytest
from torch import nn

from regard.training.plan import speed


@pytest.fixture(autouse=True, scope="module")
def passes_once() -> Iterator[None]:
    """Pass over each model once: most plans begin with the same small ones."""
    pass_over, known = speed.pass_over, dict[str, tuple[float, float]]()

    def pass_over_once(model: nn.Module, row: Sequence[tuple[int, ...]]) -> tuple[float, float]:
        key = repr((model.config, row))
        if key not in known:
            known[key] = pass_over(model, row)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "pass_over", pass_over_once)
        yield
