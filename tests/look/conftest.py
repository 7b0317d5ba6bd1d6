"""Chromium, a server for each kind of model, and pages that are watched."""

import contextlib
import functools

import pytest
from browsing import CHROMIUM, Tab, hostile, shown
from serving import served


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium to look with: apt-get install -y chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield made
        made.close()


@pytest.fixture(scope="module")
def server():
    """A server for each kind of model, while the tests run."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(kind):
            it = hostile() if kind == "hostile" else shown(kind)
            return stack.enter_context(served(it.model, it))

        yield started


@pytest.fixture
def tab(browser, server):
    made = []

    def opened(kind, state="", **options):
        url = kind if kind.startswith("file:") else server(kind).url
        made.append(Tab(browser, url, **options))
        return made[-1].open(state)

    yield opened
    for one in made:
        one.page.close()
        assert one.wrong == []
