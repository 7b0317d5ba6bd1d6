"""Fixtures for all tests."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it brings

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests that check where os.fsync is called replace it themselves."""
    from helpers.disks import without_fsync

    with pytest.MonkeyPatch.context() as patch:
        without_fsync(patch)
        yield


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Set the seed, so that a test does not depend on those before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Skip measuring the machine, which takes longer than a tiny run."""
    from helpers.runs import unmeasured

    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium, or skip the test where it is not installed."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium to look with: apt-get install -y chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()
