"""What every test starts from."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it brings

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """A test's outcome depends neither on the tests before it nor on the clock."""
    torch.manual_seed(0)
