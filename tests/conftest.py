"""What every test starts from."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it brings

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """A test's outcome depends neither on the tests before it nor on the clock."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, where there is one."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium to look with: apt-get install -y chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()
