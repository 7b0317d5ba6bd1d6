"""A server for each kind of model, and browser tabs."""

import collections
import contextlib
import functools
import json

import pytest

from helpers.browsing import Tab, hostile, shown
from helpers.serving import serve_session, wait_for_workers
from regard.serve import page, security


@pytest.fixture(autouse=True, scope="module")
def scripts_are_loaded_once():
    """A tab keeps the page's files, which it would load each time: half of what opening a page takes."""
    headers = security.security_headers

    def cached(path):
        if not path.startswith("/page/"):
            return headers(path)
        return [(b"cache-control", b"max-age=600"), *(h for h in headers(path) if h[0] != b"cache-control")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(security, "security_headers", cached)
        yield


@pytest.fixture(autouse=True, scope="module")
def a_training_is_looked_at_often():
    """The Training view asks for news of a run every two seconds, which tests would have to wait for."""
    original = page.PageRoutes.__init__

    def hurried(self, *args, **options):
        original(self, *args, **options)
        slow = b"const POLL = 2000;"
        assert slow in self.files["training.js"]
        self.files["training.js"] = self.files["training.js"].replace(slow, b"const POLL = 150;")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.PageRoutes, "__init__", hurried)
        yield


@pytest.fixture(scope="module")
def server():
    """A server for each kind of model, while the tests run."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(kind):
            it = hostile() if kind == "hostile" else shown(kind)
            return stack.enter_context(serve_session(it))

        yield started


@pytest.fixture(scope="session")
def spare_tabs():
    """Tabs that no test uses at the moment, by their options: a new one takes longer than most tests."""
    return collections.defaultdict(list)


@pytest.fixture
def tab(browser, server, spare_tabs):
    tabs = []

    def opened(kind, state="", **options):
        url = kind if kind.startswith(("file:", "http:")) else server(kind).url
        spare = spare_tabs[json.dumps(options, sort_keys=True)]
        one = spare.pop() if spare else Tab(browser, url, **options)
        one.url = url
        tabs.append((spare, one))
        return one.open(state)

    yield opened
    for spare, one in tabs:
        one.clear()
        assert one.wrong == []
        spare.append(one)
    wait_for_workers()  # what the last page asked for may still be computed, by a model of the next test
