"""Fixtures for all tests."""

import asyncio
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: a second thread costs more than it brings
# Or each process, also those that tests start, compiles everything anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Or the first error inside of a tokenizer reads all symbols of its library: 50 MB, in some test of memory.
os.environ.pop("RUST_BACKTRACE", None)

import pytest
import torch

sys.dont_write_bytecode = False
torch.set_num_threads(1)
if not torch.cuda.is_available():  # Triton's kernels are interpreted, if it is installed; it reads this once
    os.environ.setdefault("TRITON_INTERPRET", "1")

MEMORY = Path("/dev/shm")  # a disk in memory, where there is one: the tests write some 100,000 files
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

LONGEST = (  # modules that start first, so that no core idles at the end
    "training/test_distributed.py",
    "test_models.py",
    "viewer/test_faults.py",
    "training/test_resume.py",
    "viewer/test_browser.py",
    "viewer/test_scene.py",
    "training/test_trainer.py",
    "test_tour.py",
    "test_torture.py",
    "viewer/test_tours.py",
    "test_site.py",
    "convert/test_hostile.py",
    "convert/huggingface/test_families.py",
    "viewer/test_whatif.py",
    "viewer/test_model_file.py",
    "viewer/test_questions.py",
    "viewer/test_notebook.py",
    "viewer/test_page_sums.py",
    "models/test_seq2seq.py",
    "training/test_teacher.py",
    "training/test_checkpoint_fields.py",
    "tasks/test_fill.py",
    "viewer/test_compare.py",
    "viewer/test_space.py",
    "viewer/test_live.py",
    "viewer/test_take.py",
    "serve/test_workers.py",
    "serve/test_fuzz.py",
    "training/plan/test_plan.py",
    "training/test_guard.py",
    "decode/test_generate.py",
    "decode/test_runner.py",
    "convert/test_ctranslate2.py",
    "convert/onnx/test_onnx.py",
    "test_experiments.py",
    "test_documents.py",
    "cli/test_ask.py",
    "test_demo.py",
    "serve/test_cli.py",
    "viewer/test_film.py",
    "viewer/test_cell.py",
    "tasks/test_caption.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order below: xdist would start with modules of many tests, and end with few long ones."""
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among a million objects that stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    order = {tests / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests that check where os.fsync is called replace it themselves."""
    from helpers.disks import without_fsync

    with pytest.MonkeyPatch.context() as patch:
        without_fsync(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def a_machine_of_known_speed() -> Iterator[None]:
    """Half a second of large products at the beginning of every run: longer than most runs here take."""
    from helpers.runs import in_float32
    from regard.training import throughput
    from regard.training.plan import speed

    with pytest.MonkeyPatch.context() as patch:
        for module in (throughput, speed):
            patch.setattr(module, "peak", lambda device, bf16: 1e9)
        in_float32(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def the_last_lines_of_a_log_are_written() -> Iterator[None]:
    """A busy machine may need more time for them than a server that is ended gives it."""
    from regard.serve import log

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "CLOSE_SECONDS", 60.0)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Set the seed, so that a fixture of a module does not depend on the tests before it."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)


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


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """Start Chromium, or skip the test where it is not installed; with the event loop that drives it."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    names = "chromium-headless-shell", "chromium", "chromium-browser"  # the first takes a quarter less time
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("no Chromium to look with: apt-get install -y chromium-headless-shell")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += [
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
    ]  # it beeps
    flags += ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]  # WebGPU in software
    with sync.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=chromium, args=flags)
        new_page = launched.new_page

        def new_patient_page(**options: Any) -> Any:
            page = new_page(**options)
            page.set_default_timeout(60_000)
            return page

        launched.new_page = new_patient_page
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield launched, loop
        asyncio._set_running_loop(loop)
        launched.close()


@pytest.fixture(scope="module")
def browser(chromium: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """Chromium, one for all modules; its loop is this thread's only while they run: others have their own."""
    launched, loop = chromium
    asyncio._set_running_loop(loop)
    yield launched
    asyncio._set_running_loop(None)
